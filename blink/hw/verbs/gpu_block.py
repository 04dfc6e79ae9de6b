"""A scheduler's block in GPU memory, registered for RDMA by a dma-buf of it, or by its addresses (nvidia-peermem)."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np

from blink.common.errors import InputError
from blink.hw.native.instance import Config
from blink.hw.verbs.areas import STRUCTURES, Area, ring_areas
from blink.hw.verbs.device import Device
from blink.hw.verbs.memory import Registration, register, register_dma_buf

PEERMEM = Path("/sys/module/nvidia_peermem")
ORDERED_FOR_OWNER = 100
"""CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER: kernels of this GPU see writes of an adapter in their order."""


class GpuMemory(StrEnum):
    """How an adapter gets at GPU memory."""

    DMA_BUF = "dma-buf"
    PEERMEM = "peermem"


class Gpu(Protocol):
    """What is asked of blink.hw.cuda.driver.Cuda."""

    def attribute(self, name: str) -> int: ...

    def dma_buf(self, address: int, size_bytes: int) -> int: ...


def check_gpu(gpu: Gpu, kind: GpuMemory) -> dict[str, str]:
    """What the GPU says of RDMA into its memory. Raises InputError if it would not be safe, or cannot be done."""
    if not gpu.attribute("GPU_DIRECT_RDMA_SUPPORTED"):
        raise InputError(f"--memory {kind.value}: this GPU lets no other device at its memory (GPUDirect RDMA)")
    ordering = gpu.attribute("GPU_DIRECT_RDMA_WRITES_ORDERING")
    if ordering < ORDERED_FOR_OWNER:
        raise InputError(
            f"--memory {kind.value}: WRITEs of an adapter need not reach this GPU's kernels in order (ordering "
            f"{ordering}, {ORDERED_FOR_OWNER} is needed): T1 is not safe over it; allowed: --memory host"
        )
    if kind is GpuMemory.DMA_BUF and not gpu.attribute("DMA_BUF_SUPPORTED"):
        raise InputError("--memory dma-buf: this driver exports no dma-buf; the open kernel modules do")
    if kind is GpuMemory.PEERMEM and not PEERMEM.is_dir():
        raise InputError("--memory peermem: the kernel module nvidia-peermem is not loaded (modprobe nvidia-peermem)")
    return {"GPU memory": kind.value, "GPU's ordering of WRITEs": str(ordering)}


class GpuBlock:
    """A block at an address of the GPU. `close` it after everything that was registered.

    Each area is registered by itself, as in host memory. A dma-buf covers whole pages; areas begin on pages, and what
    an area does not fill of its last page belongs to it alone. Trace records are READ where the GPU writes them, so
    that their times are the GPU's; `clock_offset_ns` says what that clock shows more than the host's.
    """

    def __init__(
        self, gpu: Gpu, config: Config, dtypes: dict[str, np.dtype[np.void]], base: int, kind: GpuMemory,
        clock_offset_ns: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        page = os.sysconf("SC_PAGE_SIZE")
        if base % page:
            raise InputError(f"--memory {kind.value}: the block begins at {base:#x}, which is no page of {page} bytes")
        self.backend, self._base, self._kind, self._clock_offset_ns = "cuda", base, kind, clock_offset_ns
        self.areas = ring_areas(config, dtypes)
        self.structures = {name: dtypes[name] for name in STRUCTURES}
        self.trace_capacity = int(config["trace_capacity"][0])
        total = -(-int(config["total_bytes"][0]) // page) * page
        self._fd = gpu.dma_buf(base, total) if kind is GpuMemory.DMA_BUF else -1

    @property
    def record_offset_ns(self) -> int:
        """See Exported."""
        return self._clock_offset_ns()

    def register(self, device: Device, area: Area) -> Registration:
        """See Exported."""
        if self._fd >= 0:
            return register_dma_buf(
                device, self._fd, area.offset_bytes, area.size_bytes, writable=area.writable
            )  # fmt: skip
        return register(device, self._base + area.offset_bytes, area.size_bytes, writable=area.writable)

    def close(self) -> None:
        """Close the dma-buf."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
