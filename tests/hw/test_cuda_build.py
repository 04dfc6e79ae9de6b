"""Without a GPU: the kernels compile where nvcc is, structures agree with the headers, messages say what is missing."""

from __future__ import annotations

import ctypes
import re
from itertools import pairwise
from pathlib import Path

import pytest

from blink.cli import main
from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.policy import GraphShape
from blink.hw.cuda import build as build_module
from blink.hw.cuda import driver as driver_module
from blink.hw.cuda import nvrtc
from blink.hw.cuda.build import DEFAULT_ARCH, KERNELS, VARIABLE, build, find_nvcc, require_cuda_compiler
from blink.hw.cuda.graphs import covering
from blink.hw.cuda.kernels import NAMES
from blink.hw.cuda.lockstep import missing
from blink.hw.cuda.ports import RING_AREAS, area_bytes
from blink.hw.cuda.structures import CONTROL_WORDS, ENGINE_ARRAYS, Control, EngineIo
from blink.hw.native.build import compile_with, kernels_folder
from blink.hw.native.instance import planned
from blink.hw.native.library import load_library
from tests.hw.native_help import needs_compiler, small_settings
from tests.shared import ROOT

needs_nvcc = pytest.mark.skipif(find_nvcc() is None, reason="no CUDA compiler: install the CUDA toolkit")
needs_nvrtc = pytest.mark.skipif(nvrtc.missing() is not None, reason=str(nvrtc.missing()))
without_gpu = pytest.mark.skipif(missing() is None, reason="this machine has a GPU")


def _source(name: str) -> str:
    return (kernels_folder() / name).read_text()


# --- compiling ---


def _has_every_kernel(image: bytes) -> bool:
    return image.startswith(b"\x7fELF") and all(f".text.{name}\0".encode() in image for name in NAMES)


@needs_nvcc
@pytest.mark.parametrize("flags", [(), ("-DBLINK_MUTANT_KV_BLOCKS_RETURNED_AT_CLAIM",)])
def test_every_kernel_compiles_and_links_for_the_device(
    flags: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "nvcc")
    assert _has_every_kernel(build(extra_flags=flags).read_bytes())


@needs_nvcc
def test_programs_that_measure_compile(tmp_path: Path) -> None:
    """CUDA sources outside `kernels`: each is a program of its own, whose first comment says how it is compiled."""
    found = sorted((ROOT / "blink").rglob("*.cu"))
    assert found
    flags = ["-std=c++17", f"-arch={DEFAULT_ARCH}", "-Werror", "all-warnings", f"-I{kernels_folder() / 'include'}"]
    for source in found:
        target = tmp_path / f"{source.stem}.o"
        compile_with("measure", [require_cuda_compiler() or "", *flags, "-c", str(source), "-o", str(target)])
        assert target.is_file()


@needs_nvrtc
@pytest.mark.slow
def test_every_kernel_compiles_and_links_without_nvcc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    assert require_cuda_compiler() is None
    image = build().read_bytes()
    assert _has_every_kernel(image)
    assert b"cudaGraphLaunch" in image  # of the device runtime, linked in


@needs_nvrtc
def test_what_nvrtc_complains_of_is_one_line(tmp_path: Path) -> None:
    source = tmp_path / "wrong.cu"
    source.write_text("#include <stdint.h>\n__global__ void wrong() { uint32_t a = nowhere; }\n")
    with pytest.raises(InputError, match=r"NVRTC cannot compile.*wrong\.cu\(2\): error.*nowhere"):
        nvrtc.compile_kernels(kernels_folder(), [source], "sm_90")
    source.write_text("extern __device__ int elsewhere(); __global__ void wrong() { elsewhere(); }\n")
    with pytest.raises(InputError, match=r"nvJitLink: .*elsewhere"):
        nvrtc.compile_kernels(kernels_folder(), [source], "sm_90")


@needs_nvcc
def test_the_cubin_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = build()

    def again(*arguments: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(build_module, "compile_with", again)
    assert build() == first


def test_every_kernel_of_the_sources_is_loaded() -> None:
    text = "".join(_source(f"src/{name}") for name in KERNELS)
    assert set(re.findall(r"extern \"C\" __global__[^(]*?(?:\([^)]*\))?\s*(blink_\w+)\(", text)) == set(NAMES)
    assert {path.name for path in (kernels_folder() / "src").glob("*.cu")} == set(KERNELS)


# --- structures ---


def test_structures_of_the_host_are_those_of_the_headers() -> None:
    control = re.findall(r"X\(uint64_t, (\w+)\)", _source("include/blink/control.h"))
    assert tuple(control) == CONTROL_WORDS
    io = _source("include/blink/engine_io.h")
    assert tuple(re.findall(r"^  \w+ \*(\w+);", io, re.MULTILINE)) == ENGINE_ARRAYS
    size = re.search(r"sizeof\(EngineIo\) == (\d+)", io)
    assert size is not None
    assert ctypes.sizeof(EngineIo) == int(size[1])


def test_control_words_are_read_and_written_by_name() -> None:
    memory = (ctypes.c_uint64 * 64)()
    control = Control(ctypes.addressof(memory))
    control["heartbeat"] = (1 << 64) - 1
    assert memory[CONTROL_WORDS.index("heartbeat")] == (1 << 64) - 1
    memory[CONTROL_WORDS.index("error")] = 7
    assert control["error"] == 7
    control.clear()
    assert not any(memory)


@needs_compiler
def test_areas_of_the_ring_do_not_overlap() -> None:
    config = planned(load_library(), small_settings())
    spans = sorted((int(config[f"{area}_offset"][0]), area_bytes(config, area)) for area in RING_AREAS)
    for (start, size), (after, _) in pairwise(spans):
        assert start + size <= after
    assert all(start % 4096 == 0 for start, _ in spans)


def test_the_smallest_captured_shape_that_fits_is_launched() -> None:
    shapes = tuple(GraphShape(GraphKind.DECODE, batch, 64) for batch in (1, 4, 16))
    assert covering(shapes, GraphKind.DECODE, 3, 64) == shapes[1]
    assert covering(shapes, GraphKind.DECODE, 16, 1) == shapes[2]
    assert covering(shapes, GraphKind.DECODE, 17, 1) is None
    assert covering(shapes, GraphKind.PREFILL, 1, 1) is None


# --- what is missing ---


@without_gpu
@pytest.mark.parametrize("command", [["run", "--backend", "cuda"], ["conform", "--backends", "sim,cuda"]])
def test_a_command_says_in_one_line_what_is_missing(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, str(ROOT / "scenarios" / "conformance-small.toml")]) != 0
    error = capsys.readouterr().err
    assert "backend cuda: needs" in error
    assert error.count("\n") == 1


def test_without_the_bindings_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cuda.bindings", None)
    with pytest.raises(InputError, match=r"cuda-bindings.*pip install 'blink-twin\[cuda\]'"):
        driver_module._bindings()


def test_without_a_cuda_compiler_the_message_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(nvrtc, "missing", lambda: "NVRTC is not found")
    with pytest.raises(InputError, match=r"needs nvcc or NVRTC.*CUDA_HOME.*blink-twin\[nvrtc\]"):
        require_cuda_compiler()


def test_a_compiler_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "gcc")
    with pytest.raises(InputError, match=r"BLINK_CUDA_COMPILER = 'gcc' is not allowed; allowed: nvcc, nvrtc"):
        require_cuda_compiler()


def test_without_nvrtc_it_says_what_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "DEVICE_RUNTIME", "libnowhere.a")
    monkeypatch.setattr(nvrtc, "_version", lambda: (13, 0, 13, 0))
    assert nvrtc.missing() == (
        "libnowhere.a is not found; install it with pip install 'blink-twin[nvrtc]', or set CUDA_HOME"
    )


def test_the_path_to_the_ring_is_the_gpu_backends_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--ingress", "mapped", str(ROOT / "scenarios" / "ci-tiny.toml")]) != 0
    assert "--ingress: says how a GPU is reached" in capsys.readouterr().err
