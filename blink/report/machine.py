"""What stands on this machine, of what the project can make use of. Looks, never installs, imports no heavy package."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 10
PYTHON_MIN = (3, 11)
NEEDED_PACKAGES = ("simpy", "numpy", "networkx", "pyarrow", "pydantic", "rich")
NVRTC_LIBRARIES = ("libnvrtc.so", "libnvJitLink.so", "libcudadevrt.a")
PYVERBS_FOLDERS = (Path("/usr/lib/python3/dist-packages"), Path("/usr/lib64/python3/site-packages"))
RDMA_DEVICES = Path("/sys/class/infiniband")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked for. `needed`: nothing works without it."""

    name: str
    found: bool
    detail: str
    enables: str
    install: str = ""
    needed: bool = False

    def plain(self) -> dict[str, Any]:
        """As JSON prints it."""
        return dataclasses.asdict(self)


def examine() -> list[Finding]:
    """Every finding, needed ones first."""
    return [
        _python(),
        *(_package(name, "simulation and reports", f"pip install {name}", needed=True) for name in NEEDED_PACKAGES),
        _package("matplotlib", "blink plot", "pip install 'blink-twin[plot]'"),
        _compiler(),
        _nvcc(),
        _nvrtc(),
        _gpu(),
        _package("torch", "a captured model as engine on the GPU", "pip install torch"),
        _package("cuda", "Python's side of the GPU backend", "pip install 'blink-twin[cuda]'"),
        _rdma(),
        _pyverbs(),
        _qemu(),
    ]


def _python() -> Finding:
    version = platform.python_version()
    good = tuple(int(part) for part in version.split(".")[:2]) >= PYTHON_MIN
    return Finding("python", good, version, "everything", "Python 3.11 or newer", needed=True)


def _package(name: str, enables: str, install: str, needed: bool = False) -> Finding:
    found = importlib.util.find_spec(name) is not None
    detail = "not installed"
    if found:
        try:
            distributions = importlib.metadata.packages_distributions().get(name, [name])
            detail = importlib.metadata.version(distributions[0])
        except importlib.metadata.PackageNotFoundError:
            detail = "version unknown"
    return Finding(name, found, detail, enables, install, needed)


def _pyverbs() -> Finding:
    """Also the distribution's, which a virtual environment does not see but blink.hw.verbs finds."""
    found = _package("pyverbs", "one-sided RDMA from Python", "the package python3-pyverbs of rdma-core")
    if found.found:
        return found
    for folder in PYVERBS_FOLDERS:
        modules = (folder / "pyverbs" / f"device{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
        if any(module.is_file() for module in modules):
            return dataclasses.replace(found, found=True, detail=f"the distribution's, in {folder}")
    return found


def _compiler() -> Finding:
    name = next(
        (name for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name and shutil.which(name)), None
    )
    detail = first_line([name, "--version"]) if name else None
    return Finding(
        "c++", detail is not None, detail or "no compiler found", "the device scheduler compiled for the host",
        "g++ or clang++ with C++17",
    )  # fmt: skip


def _nvcc() -> Finding:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    name = shutil.which("nvcc") or (str(Path(home) / "bin" / "nvcc") if home else None)
    lines = _output([name, "--version"]) if name else []
    release = next((line.strip() for line in lines if "release" in line), None)
    return Finding(
        "nvcc", release is not None, release or "not found", "building the kernels for a GPU", "the CUDA toolkit"
    )


def _nvrtc() -> Finding:
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    found = {name: [file for wheel in wheels for file in wheel.glob(f"*/lib/{name}*")] for name in NVRTC_LIBRARIES}
    files = [files[0].name for files in found.values() if files]
    return Finding(
        "nvrtc", len(files) == len(found), ", ".join(files) or "no wheel of it", "the same without nvcc",
        "pip install 'blink-twin[nvrtc]'",
    )  # fmt: skip


def _gpu() -> Finding:
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    lines = [line.strip() for line in _output(query) if line.strip()]
    return Finding(
        "gpu", bool(lines), "; ".join(lines) or "nvidia-smi finds none", "runs and calibration on real hardware",
        "an NVIDIA GPU of compute capability 9.0 or newer, with its driver",
    )  # fmt: skip


def _rdma() -> Finding:
    devices = sorted(path.name for path in RDMA_DEVICES.iterdir()) if RDMA_DEVICES.is_dir() else []
    return Finding(
        "rdma", bool(devices), ", ".join(devices) or "no device", "the frontend over one-sided RDMA",
        "an RDMA adapter, or the kernel module rdma_rxe over any network interface",
    )  # fmt: skip


def _qemu() -> Finding:
    detail = first_line(["qemu-system-x86_64", "--version"])
    return Finding(
        "qemu", detail is not None, detail or "not found", "RDMA tests in a guest, on a machine without an adapter",
        "the package qemu-system-x86",
    )  # fmt: skip


def first_line(command: list[str]) -> str | None:
    """First line that a command prints; None if it cannot be run."""
    return next((line.strip() for line in _output(command) if line.strip()), None)


def _output(command: list[str]) -> list[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True, errors="replace")
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()
