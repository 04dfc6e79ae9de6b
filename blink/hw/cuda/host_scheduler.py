"""The same scheduler on the host (`cpu-resident`): it launches the captured graphs and waits for each from a CPU.

What it is for: the comparison. Scheduler source, frontend, engine and graphs are those of the GPU backend; the block
stands in pinned host memory that the graphs' first and last nodes reach over PCIe.
"""

from __future__ import annotations

import ctypes

from blink.common.events import GraphKind
from blink.hw.cuda.driver import Cuda, host_entry
from blink.hw.cuda.graphs import Graphs
from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.stub import StubEngine
from blink.hw.engines.contract import Engine
from blink.hw.native.instance import Instance, create
from blink.hw.native.library import load_library
from blink.hw.native.settings import NativeSettings
from blink.hw.native.thread import HostGraphs, ThreadScheduler

_CALLS = ("cuCtxSetCurrent", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize")


class PinnedMemory:
    """Memory of the host that the GPU has mapped at the same address."""

    def __init__(self, cuda: Cuda, size_bytes: int) -> None:
        self._cuda, self.size_bytes = cuda, size_bytes
        self.address = cuda.allocate_pinned(size_bytes)
        self._bytes = memoryview((ctypes.c_char * size_bytes).from_address(self.address)).cast("B")

    def view(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Some of it."""
        return self._bytes[offset_bytes : offset_bytes + size_bytes]

    def close(self) -> None:
        """Give it back."""
        self._bytes.release()
        self._cuda.free_pinned(self.address)


class HostCalls:
    """What code of the host needs to launch graphs without Python; after each, something may be copied back.

    `copied`: source on the device, target in pinned memory, bytes; by default nothing.
    """

    def __init__(self, cuda: Cuda, graphs: Graphs, stream: int, copied: tuple[int, int, int] = (0, 0, 0)) -> None:
        self._handles = {kind: (ctypes.c_void_p * len(found))(*found) for kind, found in graphs.handles.items()}
        self.graphs = HostGraphs(
            *(host_entry(name) for name in _CALLS),
            cuda.context, stream,
            ctypes.addressof(self._handles[GraphKind.PREFILL]), ctypes.addressof(self._handles[GraphKind.DECODE]),
            *copied, 0,
        )  # fmt: skip
        self.address = ctypes.addressof(self.graphs)

    @property
    def error(self) -> int:
        """The first CUresult that was not 0."""
        return int(self.graphs.error)


class HostRing(Instance):
    """A ring in pinned memory, for the frontend of this process and a scheduler on one of its threads."""

    backend = "cpu-resident"

    def __init__(self, cuda: Cuda, settings: NativeSettings) -> None:
        super().__init__(load_library(), settings, memory=lambda size_bytes: PinnedMemory(cuda, size_bytes))

    def reset(self) -> None:
        """A fresh ring and a fresh scheduler in the same memory. No scheduler may run."""
        ctypes.memset(self.base, 0, int(self.config["total_bytes"][0]))
        create(self.library, self.settings, self.config, self.base)


class HostScheduler(ThreadScheduler):
    """A scheduler on a thread of this process, with an engine's graphs; the life of CudaScheduler.

    `engine` None is the stub. After each graph its sampled tokens are copied back, as a host loop does. `cores`: where
    the thread may run, by default where this process may.
    """

    def __init__(
        self, kernels: Kernels, ring: HostRing, engine: Engine | None = None, cores: frozenset[int] | None = None
    ) -> None:
        self._cuda = kernels.cuda
        self._release = self._cuda.allocate_pinned(4096)  # a stub's hang is for tests of the device: never used here
        self._own: Engine | None = None
        if engine is None:
            engine = self._own = StubEngine(kernels, ring.settings, ring.base, self._release)
        self.graphs = Graphs(kernels, engine, ring.settings, ring.base, ring.config.tobytes())
        self.stream = self._cuda.stream()
        rows = ring.settings.decode_table.fallback.batch
        self._tokens = self._cuda.allocate_pinned(4 * rows)
        self.calls = HostCalls(self._cuda, self.graphs, self.stream, (engine.buffers.sampled, self._tokens, 4 * rows))
        super().__init__(ring, self.calls.graphs, cores)

    def fault(self) -> str | None:
        """Why the scheduler will not go on, None if it is well."""
        if self.calls.error:
            return f"a call of the CUDA driver failed (CUresult {self.calls.error})"
        return super().fault()

    def close(self) -> None:
        """Give graphs and memory back."""
        self.kill()
        if self.is_running:
            return
        self.graphs.close()
        if self._own:
            self._own.close()
        self._cuda.close_stream(self.stream)
        self._cuda.free_pinned(self._tokens)
        self._cuda.free_pinned(self._release)
