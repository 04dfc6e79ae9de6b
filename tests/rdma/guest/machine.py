"""One guest: qemu without hardware help, this machine's files under it read-only, a folder through which it answers."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.rdma.guest.image import Image
from tests.rdma.guest.ticks import counter_khz

MEMORY_MB = 2048
DIED = 125
"""Exit code of a guest that ended without saying how its command did."""
_HERE = Path(__file__).parent
_CPU = "max,-erms,-fsrm,-avx,-avx2,-fma,-f16c"
"""Without the first two the kernel copies by 8-byte words (rep movsq): an adapter moves aligned words whole, too.
The others are emulated wrongly by qemu 7.2: numpy then sorts into a wrong order, or crashes."""


class Guest:
    """A guest that runs one command and powers off. `wait` for it; `folder` has what the command left in /run/guest.

    `network` is qemu's description of the other end of its Ethernet (without an id), None for loopback alone; `address`
    is its own, with prefix length. RDMA_DEVICE and RDMA_GID_INDEX name the verbs device for the command.
    """

    def __init__(
        self,
        image: Image,
        folder: Path,
        command: Sequence[str],
        *,
        cwd: Path,
        name: str = "guest",
        environment: Mapping[str, str] | None = None,
        network: str | None = None,
        address: str = "",
        number: int = 1,
    ) -> None:
        self.folder, self.name = folder, name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(_HERE / "second.sh", folder)
        settings = {
            "GUEST_NAME": name, "GUEST_ADDRESS": address, "GUEST_PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin",
            "GUEST_HOME": str(Path.home()),
        }  # fmt: skip
        (folder / "settings").write_text("".join(f"{key}={shlex.quote(text)}\n" for key, text in settings.items()))
        words = {"RDMA_DEVICE": "rxe0", "RDMA_GID_INDEX": "1", **(environment or {})}
        exports = "".join(f"export {key}={shlex.quote(text)}\n" for key, text in words.items())
        (folder / "command").write_text(f"{exports}cd {shlex.quote(str(cwd))}\nexec {shlex.join(command)}\n")
        self._console = (folder / "console").open("wb")
        self._monitor = Path(tempfile.mkdtemp(prefix="blink-guest-")) / "monitor"  # a socket's path must be short
        self._process = subprocess.Popen(
            self._qemu(image, network, number), stdin=subprocess.DEVNULL, stdout=self._console, stderr=self._console
        )

    def _qemu(self, image: Image, network: str | None, number: int) -> list[str]:
        kernel = (
            f"console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable tsc_early_khz={counter_khz()} no_timer_check "
            "random.trust_cpu=on"
        )
        command = [
            "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", _CPU, "-m", str(MEMORY_MB), "-smp", "1",
            "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "stdio",
            "-monitor", f"unix:{self._monitor},server,nowait",
            "-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", kernel,
        ]  # fmt: skip
        shares = (("host", "/", ",readonly=on,multidevs=remap"), ("guest", str(self.folder), ""))
        for tag, path, more in shares:
            command += ["-fsdev", f"local,id={tag},path={path},security_model=none{more}"]
            command += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        if network is not None:
            kind, _, rest = network.partition(",")
            command += ["-netdev", f"{kind},id=wire,{rest}"]
            command += ["-device", f"virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:00:00:{number:02x}"]
        return command

    def wait(self, limit_s: float, moved: Callable[[], object] = lambda: None) -> int:
        """The command's exit code; DIED if the guest ended without one, or had to be ended.

        It is if for `limit_s` it has not ended, and what `moved` returns has not changed.
        """
        last, changed_s = moved(), time.monotonic()
        try:
            while self.is_running and time.monotonic() < changed_s + limit_s:
                time.sleep(0.1)
                if (now := moved()) != last:
                    last, changed_s = now, time.monotonic()
        finally:
            self.close()
        try:
            return int((self.folder / "code").read_text())
        except (OSError, ValueError):
            return DIED

    def set_link(self, up: bool) -> None:
        """Plug the cable of its Ethernet in, or pull it."""
        with socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(5)
            monitor.connect(str(self._monitor))
            monitor.sendall(f"set_link wire {'on' if up else 'off'}\n".encode())
            monitor.recv(1 << 16)  # its prompt, at least
            time.sleep(0.01)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def said(self, lines: int = 40) -> str:
        """The last lines of the console and of the command."""
        texts = []
        for name in ("console", "output"):
            path = self.folder / name
            found = path.read_text(errors="replace").splitlines() if path.exists() else []
            texts += [f"--- {self.name}: {name}", *found[-lines:]]
        return "\n".join(texts)

    def close(self) -> None:
        """End it at once if it runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._console.close()
        shutil.rmtree(self._monitor.parent, ignore_errors=True)
