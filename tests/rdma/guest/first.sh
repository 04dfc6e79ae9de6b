#!/bin/busybox sh
# First process of the guest: loads modules, lays a layer of memory over the host's root (which stays read-only), and goes on
# in there with the script that the host has left in the shared folder.
/bin/busybox --install -s /bin
export PATH=/bin
give_up() { echo "guest: $1"; poweroff -f; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do
  insmod "/modules/$module" || echo "guest: $module did not load"
done </modules/order

shared=trans=virtio,version=9p2000.L,msize=524288
mount -t 9p -o "$shared,ro,cache=loose" host /below || give_up "no root from the host"
mount -t tmpfs memory /above
mkdir /above/upper /above/work
mount -t overlay -o lowerdir=/below,upperdir=/above/upper,workdir=/above/work layered /root || give_up "no overlay"
mount -t tmpfs run /root/run
mkdir /root/run/guest
mount -t 9p -o "$shared,cache=none" guest /root/run/guest || give_up "no folder of the host"
for folder in proc sys dev; do mount --move "/$folder" "/root/$folder"; done
exec chroot /root /bin/bash /run/guest/second.sh
