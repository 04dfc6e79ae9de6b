"""GPU memory for RDMA: what the GPU is asked, and what is refused. No adapter that reaches one was to be had."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from blink.common.errors import InputError
from blink.hw.native.instance import planned
from blink.hw.native.library import load_library
from blink.hw.verbs import gpu_block
from blink.hw.verbs.gpu_block import GpuBlock, GpuMemory, check_gpu
from tests.hw.cuda_help import GPU_MARKS
from tests.hw.native_help import needs_compiler, small_settings

ALL = {"GPU_DIRECT_RDMA_SUPPORTED": 1, "GPU_DIRECT_RDMA_WRITES_ORDERING": 200, "DMA_BUF_SUPPORTED": 1}


class FakeGpu:
    """Answers for a GPU, and exports a file in place of a dma-buf."""

    def __init__(self, **changes: int) -> None:
        self._answers = {**ALL, **changes}
        self.exported: list[tuple[int, int]] = []

    def attribute(self, name: str) -> int:
        """See Gpu."""
        return self._answers[name]

    def dma_buf(self, address: int, size_bytes: int) -> int:
        """See Gpu."""
        self.exported.append((address, size_bytes))
        return os.memfd_create("in place of a dma-buf")


def test_a_gpu_that_is_fit_says_what_it_found() -> None:
    found = check_gpu(FakeGpu(), GpuMemory.DMA_BUF)
    assert found == {"GPU memory": "dma-buf", "GPU's ordering of WRITEs": "200"}


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"GPU_DIRECT_RDMA_SUPPORTED": 0}, GpuMemory.DMA_BUF, "--memory dma-buf: this GPU lets no other device"),
        (
            {"GPU_DIRECT_RDMA_WRITES_ORDERING": 0},
            GpuMemory.PEERMEM,
            r"in order \(ordering 0, 100 is needed\): T1 is not",
        ),
        ({"DMA_BUF_SUPPORTED": 0}, GpuMemory.DMA_BUF, "--memory dma-buf: this driver exports no dma-buf"),
        ({}, GpuMemory.PEERMEM, "--memory peermem: the kernel module nvidia-peermem is not loaded"),
    ],
)
def test_what_would_not_be_safe_is_refused(
    change: dict[str, int], kind: GpuMemory, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_block, "PEERMEM", Path("/nowhere"))
    with pytest.raises(InputError, match=says):
        check_gpu(FakeGpu(**change), kind)


@needs_compiler
def test_a_dma_buf_covers_whole_pages_and_areas_are_offsets_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load_library()
    config = planned(library, small_settings())
    gpu, registered = FakeGpu(), list[tuple[int, int, bool]]()

    def register(device: object, fd: int, offset: int, size: int, *, writable: bool) -> None:
        os.fstat(fd)
        registered.append((offset, size, writable))

    monkeypatch.setattr(gpu_block, "register_dma_buf", register)
    block = GpuBlock(gpu, config, library.dtypes, 0x7F00_0000_0000, GpuMemory.DMA_BUF)
    for area in block.areas.values():
        block.register(None, area)  # type: ignore[arg-type]
    assert gpu.exported == [(0x7F00_0000_0000, -(-int(config["total_bytes"][0]) // 4096) * 4096)]
    assert (int(config["outputs_offset"][0]), 4 * int(config["output_area_tokens"][0]), False) in registered
    assert (int(config["status_offset"][0]), 65_536, True) in registered
    block.close()
    with pytest.raises(InputError, match="which is no page of"):
        GpuBlock(gpu, config, library.dtypes, 0x7F00_0000_0100, GpuMemory.DMA_BUF)


@pytest.mark.parametrize("kind", [pytest.param(GpuMemory.DMA_BUF, marks=GPU_MARKS)])
def test_a_real_ring_in_gpu_memory_is_exported(kind: GpuMemory) -> None:
    from blink.hw.cuda.lockstep import load_kernels
    from blink.hw.cuda.ports import Ingress
    from blink.hw.cuda.ring import CudaRing

    cuda = load_kernels().cuda
    try:
        found = check_gpu(cuda, kind)
    except InputError as error:
        pytest.skip(str(error))
    assert int(found["GPU's ordering of WRITEs"]) >= gpu_block.ORDERED_FOR_OWNER
    ring = CudaRing(cuda, load_library(), small_settings(), Ingress.COPY)
    block = GpuBlock(cuda, ring.config, ring.library.dtypes, ring.base, kind)
    assert os.fstat(block._fd).st_size >= int(ring.config["total_bytes"][0])
    block.close()
    ring.close()
