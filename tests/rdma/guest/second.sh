#!/bin/bash
# Second half of the guest's start, on the host's own files: network, Soft-RoCE, then the command; its exit code goes back.
. /run/guest/settings
export PATH="$GUEST_PATH" HOME="$GUEST_HOME" TERM=dumb LANG=C.UTF-8
ln -sfn /proc/self/fd /dev/fd
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
hostname "$GUEST_NAME"
ip link set lo up
link=lo
if [ -n "$GUEST_ADDRESS" ]; then
  link=$(ls /sys/class/net | grep -v '^lo$' | head -1)
  ip addr add "$GUEST_ADDRESS" dev "$link"
  ip link set "$link" up
fi
rdma link add rxe0 type rxe netdev "$link"
ulimit -l unlimited
echo "guest $GUEST_NAME: up after $(cut -d' ' -f1 /proc/uptime) s: $(rdma link | head -1)"
bash /run/guest/command </dev/null >/run/guest/output 2>&1
code=$?
echo "$code" >/run/guest/code
sync
echo "guest $GUEST_NAME: exit code $code after $(cut -d' ' -f1 /proc/uptime) s"
echo o >/proc/sysrq-trigger
read -r -t 10 </dev/zero
