"""Compiles the kernels without nvcc: NVRTC for each source, then nvJitLink with the runtime that launches graphs.

NVRTC brings no standard headers; what the kernels need of them stands in kernels/include/nvrtc.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from blink.common.errors import InputError

FLAGS = ("--std=c++17", "--relocatable-device-code=true", "--device-int128")
DEVICE_RUNTIME = "libcudadevrt.a"
INSTALL = "pip install 'blink-twin[nvrtc]'"


def missing() -> str | None:
    """None if kernels can be compiled like this here, else what is not found."""
    try:
        _version()
        _device_runtime()
    except InputError as error:
        return str(error)
    return None


def version() -> str:
    """Of the compiler and the linker. Raises InputError that says what is not found."""
    return "NVRTC {}.{}, nvJitLink {}.{}".format(*_version())


def compile_kernels(kernels: Path, sources: Sequence[Path], arch: str, extra_flags: Sequence[str] = ()) -> bytes:
    """The linked cubin of the sources, which include from `kernels`/include. Raises InputError with a complaint."""
    from cuda.bindings import nvjitlink

    include = kernels / "include"
    flags = [*FLAGS, f"--gpu-architecture={arch}", f"-I{include}", f"-I{include / 'nvrtc'}", *extra_flags]
    runtime = _device_runtime().read_bytes()
    linker = nvjitlink.create(1, [f"-arch={arch}"])
    try:
        for source in sources:
            image = _compiled(source, flags)
            nvjitlink.add_data(linker, nvjitlink.InputType.CUBIN, image, len(image), source.name)
        nvjitlink.add_data(linker, nvjitlink.InputType.LIBRARY, runtime, len(runtime), DEVICE_RUNTIME)
        nvjitlink.complete(linker)
        linked = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, linked)
    except nvjitlink.nvJitLinkError as error:
        log = bytearray(nvjitlink.get_error_log_size(linker))
        nvjitlink.get_error_log(linker, log)
        raise InputError(f"backend cuda: nvJitLink: {_complaint(bytes(log)) or error}") from None
    finally:
        nvjitlink.destroy(linker)
    return bytes(linked)


def _version() -> tuple[int, int, int, int]:
    try:
        from cuda.bindings import nvjitlink, nvrtc

        _, *compiler = nvrtc.nvrtcVersion()
        return (*compiler, *nvjitlink.version())
    except (ImportError, RuntimeError, OSError) as error:  # the bindings load the libraries when they are first called
        raise InputError(f"NVRTC or nvJitLink is not found ({error}); install them with {INSTALL}") from None


def _compiled(source: Path, flags: Sequence[str]) -> bytes:
    from cuda.bindings import nvrtc

    code, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    if int(code):
        raise InputError(f"backend cuda: NVRTC: {code.name}")
    try:
        code = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])[0]
        if int(code):
            log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
            raise InputError(f"backend cuda: NVRTC cannot compile the scheduler: {_complaint(log) or code.name}")
        return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(size_of: Any, fill: Any, program: Any) -> bytes:
    buffer: bytes = b" " * size_of(program)[1]  # the bindings write into it
    fill(program, buffer)
    return buffer


def _complaint(log: bytes) -> str:
    lines = [line.strip() for line in log.decode(errors="replace").replace("\0", "").splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "")


def _device_runtime() -> Path:
    """The device runtime's library, of a toolkit or of a wheel."""
    for folder in _library_folders():
        if (found := folder / DEVICE_RUNTIME).is_file():
            return found
    raise InputError(f"{DEVICE_RUNTIME} is not found; install it with {INSTALL}, or set CUDA_HOME")


def _library_folders() -> Iterator[Path]:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    for home in filter(None, homes):
        yield from (Path(home) / "lib64", Path(home) / "lib")
    spec = importlib.util.find_spec("nvidia")
    for wheels in (spec.submodule_search_locations or ()) if spec else ():
        yield from sorted(Path(wheels).glob("*/lib"), reverse=True)  # cu13 before cuda_runtime of CUDA 12
