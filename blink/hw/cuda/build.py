"""Compiles the kernels for a GPU's architecture, once for each version of their sources, and keeps the cubin."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from blink.common.errors import InputError
from blink.hw.native.build import beside, cache_folder, compile_with, kernels_folder, key_of

KERNELS = ("scheduler.cu", "engine_io.cu", "measure.cu")
DEFAULT_ARCH = "sm_90"
FLAGS = ("-std=c++17", "-O3", "-rdc=true", "-Werror", "all-warnings")
"""-rdc and cudadevrt: the scheduler launches graphs from the device."""


def find_nvcc() -> str | None:
    """The CUDA compiler: $CUDA_HOME/bin or $CUDA_PATH/bin before the search path; None if there is none."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(name)
        if home and (found := shutil.which("nvcc", path=str(Path(home) / "bin"))):
            return found
    return shutil.which("nvcc")


def require_nvcc() -> str:
    """The CUDA compiler. Raises InputError that says what to install."""
    found = find_nvcc()
    if found is None:
        raise InputError(
            "backend cuda: needs nvcc to compile its kernels; install the CUDA toolkit, 12.4 or newer, or set CUDA_HOME"
        )
    return found


def build(arch: str = DEFAULT_ARCH, extra_flags: Sequence[str] = ()) -> Path:
    """The path of the linked cubin with every kernel; compiles it if these sources were never compiled like that.

    `extra_flags` come last, such as -DBLINK_MUTANT_... or -lineinfo. Raises InputError without nvcc, or with its first
    complaint.
    """
    nvcc, kernels = require_nvcc(), kernels_folder()
    sources = [kernels / "src" / name for name in KERNELS]
    flags = [f"-arch={arch}", *FLAGS, *extra_flags]
    cubin = cache_folder() / f"blink_kernels-{key_of(nvcc, kernels, sources, flags)}.cubin"
    if not cubin.is_file():
        with TemporaryDirectory(prefix="blink-kernels-") as folder, beside(cubin) as unfinished:
            objects = [str(Path(folder) / f"{source.stem}.o") for source in sources]
            for source, target in zip(sources, objects, strict=True):
                compile_with(
                    "backend cuda", [nvcc, *flags, f"-I{kernels / 'include'}", "-c", str(source), "-o", target]
                )
            link = [nvcc, f"-arch={arch}", "-dlink", "-cubin", *objects, "-lcudadevrt", "-o", unfinished]
            compile_with("backend cuda", link)
    return cubin
