"""Compiles the kernels for a GPU's architecture, once for each version of their sources, and keeps the cubin.

With nvcc, or where there is none with NVRTC; $BLINK_CUDA_COMPILER chooses.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from blink.common.errors import InputError
from blink.hw.cuda import nvrtc
from blink.hw.native.build import beside, cache_folder, compile_with, digest_of, kernels_folder, version_of

KERNELS = ("scheduler.cu", "engine_io.cu", "measure.cu")
DEFAULT_ARCH = "sm_90"
NVCC_FLAGS = ("-std=c++17", "-O3", "-rdc=true", "-Werror", "all-warnings")
"""-rdc and cudadevrt: the scheduler launches graphs from the device."""
VARIABLE = "BLINK_CUDA_COMPILER"
COMPILERS = ("nvcc", "nvrtc")


def find_nvcc() -> str | None:
    """The CUDA compiler: $CUDA_HOME/bin or $CUDA_PATH/bin before the search path; None if there is none."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        home = os.environ.get(name)
        if home and (found := shutil.which("nvcc", path=str(Path(home) / "bin"))):
            return found
    return shutil.which("nvcc")


def require_cuda_compiler() -> str | None:
    """The path of nvcc, or None for NVRTC. Raises InputError that says what to install if neither is there."""
    chosen = os.environ.get(VARIABLE)
    if chosen not in (None, "", *COMPILERS):
        raise InputError(f"${VARIABLE} = {chosen!r} is not allowed; allowed: {', '.join(COMPILERS)}")
    found = find_nvcc() if chosen != "nvrtc" else None
    if found:
        return found
    without = nvrtc.missing()
    if chosen == "nvcc" or (without and chosen != "nvrtc"):
        raise InputError(
            "backend cuda: needs nvcc or NVRTC to compile its kernels; install the CUDA toolkit, 12.4 or newer, or set "
            f"CUDA_HOME, or {nvrtc.INSTALL}"
        )
    if without:
        raise InputError(f"backend cuda: {without}")
    return None


def build(arch: str = DEFAULT_ARCH, extra_flags: Sequence[str] = ()) -> Path:
    """The path of the linked cubin with every kernel; compiles it if these sources were never compiled like that.

    `extra_flags` come last, such as -DBLINK_MUTANT_... or -lineinfo. Raises InputError without a compiler, or with its
    first complaint.
    """
    nvcc, kernels = require_cuda_compiler(), kernels_folder()
    sources = [kernels / "src" / name for name in KERNELS]
    version = version_of(nvcc) if nvcc else nvrtc.version()
    flags = [f"-arch={arch}", *(NVCC_FLAGS if nvcc else nvrtc.FLAGS), *extra_flags]
    cubin = cache_folder() / f"blink_kernels-{digest_of([version, *flags], kernels, sources)}.cubin"
    if not cubin.is_file():
        with beside(cubin) as unfinished:
            if nvcc:
                _compile_with_nvcc(nvcc, kernels, sources, arch, flags, unfinished)
            else:
                Path(unfinished).write_bytes(nvrtc.compile_kernels(kernels, sources, arch, extra_flags))
    return cubin


def _compile_with_nvcc(
    nvcc: str, kernels: Path, sources: Sequence[Path], arch: str, flags: Sequence[str], target: str
) -> None:
    with TemporaryDirectory(prefix="blink-kernels-") as folder:
        objects = [str(Path(folder) / f"{source.stem}.o") for source in sources]
        for source, made in zip(sources, objects, strict=True):
            compile_with("backend cuda", [nvcc, *flags, f"-I{kernels / 'include'}", "-c", str(source), "-o", made])
        link = [nvcc, f"-arch={arch}", "-dlink", "-cubin", *objects, "-lcudadevrt", "-o", target]
        compile_with("backend cuda", link)
