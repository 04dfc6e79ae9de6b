"""Kernel and first file system of the guest in which RDMA tests run, made from Debian's own packages, kept in a cache.

The kernel is the one that `linux-image-amd64` names: it brings `rdma_rxe` (Soft-RoCE), which gives real verbs over any
network interface. Nothing of the kernel package is installed on this machine.
"""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "crc32_generic", "rdma_rxe", "rdma_ucm", "virtio_net")
"""What the guest loads; `depmod` says what each of them needs. rxe asks for crc32 without depending on it."""
WANTED = (
    "crypto", "arch/x86/crypto", "lib", "drivers/infiniband/core", "drivers/infiniband/sw", "drivers/virtio",
    "drivers/net/virtio_net.ko", "drivers/net/net_failover.ko", "fs/9p", "fs/netfs", "fs/fscache", "fs/overlayfs",
    "fs/configfs", "net/9p", "net/core", "net/ipv4", "net/ipv6",
)  # fmt: skip
"""Parts of the module tree that these modules come from."""
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "modprobe": "kmod",
    "ip": "iproute2",
    "rdma": "iproute2",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
}
"""Program -> Debian's package that has it."""
_XZ_MAGIC = b"\xfd7zXZ\x00"
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Image:
    """What qemu boots."""

    kernel: Path
    initrd: Path


def missing() -> list[str]:
    """Debian's packages that have to be installed first."""
    return sorted({package for program, package in PROGRAMS.items() if shutil.which(program, path=_path()) is None})


def image(cache: Path) -> Image:
    """The image for the present kernel of the distribution; made where the cache has none.

    Raises RuntimeError if the package cannot be had.
    """
    package = _kernel_package()
    version = package.removeprefix("linux-image-")
    cache.mkdir(parents=True, exist_ok=True)
    found = Image(cache / f"vmlinux-{version}", cache / f"initrd-{version}-{_scripts_digest()}.gz")
    if found.kernel.exists() and found.initrd.exists():
        return found
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        tree = _unpacked(_downloaded(package, cache), Path(folder) / "tree", version)
        _run("depmod", "-b", str(tree), version)
        packed = (tree / f"boot/vmlinuz-{version}").read_bytes()
        # Unpacked here, the kernel boots without seconds of decompression under emulation.
        kernel = Path(folder) / "vmlinux"
        kernel.write_bytes(lzma.LZMADecompressor().decompress(packed[packed.index(_XZ_MAGIC) :]))
        initrd = _first_file_system(tree, version, Path(folder))
        kernel.replace(found.kernel)
        initrd.replace(found.initrd)
    return found


def _kernel_package() -> str:
    said = _run("apt-cache", "depends", "linux-image-amd64")
    names = [line.split()[-1] for line in said.splitlines() if "Depends: linux-image-" in line]
    if not names:
        raise RuntimeError("apt knows no package linux-image-amd64: run apt-get update first")
    return names[0]


def _downloaded(package: str, cache: Path) -> Path:
    found = sorted(cache.glob(f"{package}_*.deb"))
    if not found:
        _run("apt-get", "download", "-q", package, cwd=cache)
        found = sorted(cache.glob(f"{package}_*.deb"))
    return found[-1]


def _unpacked(archive: Path, tree: Path, version: str) -> Path:
    modules = f"./lib/modules/{version}"
    wanted = [f"./boot/vmlinuz-{version}", f"{modules}/modules.*"]
    wanted += [f"{modules}/kernel/{part}" + ("" if part.endswith(".ko") else "/*") for part in WANTED]
    tree.mkdir()
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as files:
        command = ["tar", "-x", "-C", str(tree), "--wildcards", *wanted]
        subprocess.run(command, stdin=files.stdout, check=False, capture_output=True)  # a part may be built in
    return tree


def _first_file_system(tree: Path, version: str, folder: Path) -> Path:
    root = folder / "root"
    for name in ("bin", "proc", "sys", "dev", "modules", "below", "above", "root"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox", path=_path())
    assert busybox is not None
    shutil.copy(busybox, root / "bin/busybox")
    shutil.copy(_HERE / "first.sh", root / "init")
    (root / "init").chmod(0o755)
    order: list[str] = []
    for module in MODULES:
        for line in _run("modprobe", "-d", str(tree), "-S", version, "--show-depends", module).splitlines():
            path = Path(line.split()[1]) if line.startswith("insmod ") else None
            if path is not None and path.name not in order:
                order.append(path.name)
                shutil.copy(path, root / "modules")
    (root / "modules/order").write_text("\n".join(order) + "\n")
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    archive = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], input=names.encode(), cwd=root, capture_output=True, check=True
    )
    packed = subprocess.run(["gzip", "-1"], input=archive.stdout, capture_output=True, check=True)
    made = folder / "initrd.gz"
    made.write_bytes(packed.stdout)
    return made


def _scripts_digest() -> str:
    import hashlib

    return hashlib.blake2b((_HERE / "first.sh").read_bytes() + repr(MODULES).encode(), digest_size=4).hexdigest()


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/bin:/bin"


def _run(*command: str, cwd: Path | None = None) -> str:
    environment = {**os.environ, "PATH": _path(), "LC_ALL": "C"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RuntimeError(f"{command[0]}: {last}")
    return done.stdout
