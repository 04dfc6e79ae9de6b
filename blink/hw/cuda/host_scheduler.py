"""The same scheduler on the host (`cpu-resident`): it launches the captured graphs and waits for each from a CPU.

What it is for: the comparison. Scheduler source, frontend, engine and graphs are those of the GPU backend; the block
stands in pinned host memory that the graphs' first and last nodes reach over PCIe.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

from blink.common.events import GraphKind
from blink.hw.cuda.driver import Cuda, host_entry
from blink.hw.cuda.graphs import Graphs
from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.stub import StubEngine
from blink.hw.engines.contract import Engine
from blink.hw.native.instance import Instance, create
from blink.hw.native.library import load_library
from blink.hw.native.process import SILENCE_LIMIT_NS, START_LIMIT_S, Stop
from blink.hw.native.settings import NativeSettings

_CALLS = ("cuCtxSetCurrent", "cuGraphLaunch", "cuMemcpyDtoHAsync_v2", "cuStreamSynchronize")
_POINTER, _U64, _I64 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64


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


class HostGraphs(ctypes.Structure):
    """kernels/include/blink/host_graphs.h."""

    _fields_ = (
        ("set_context", _POINTER), ("launch", _POINTER), ("copy_out", _POINTER), ("synchronize", _POINTER),
        ("context", _POINTER), ("stream", _POINTER), ("prefill", _POINTER), ("decode", _POINTER),
        ("source", _U64), ("target", _POINTER), ("size_bytes", _U64), ("error", _I64),
    )  # fmt: skip


class HostCalls:
    """What code of the host needs to launch graphs without Python; after each, something may be copied back.

    `copied`: source on the device, target in pinned memory, bytes; by default nothing.
    """

    def __init__(self, cuda: Cuda, graphs: Graphs, stream: int, copied: tuple[int, int, int] = (0, 0, 0)) -> None:
        self._handles = {kind: (_POINTER * len(found))(*found) for kind, found in graphs.handles.items()}
        self._graphs = HostGraphs(
            *(host_entry(name) for name in _CALLS),
            cuda.context, stream,
            ctypes.addressof(self._handles[GraphKind.PREFILL]), ctypes.addressof(self._handles[GraphKind.DECODE]),
            *copied, 0,
        )  # fmt: skip
        self.address = ctypes.addressof(self._graphs)

    @property
    def error(self) -> int:
        """The first CUresult that was not 0."""
        return int(self._graphs.error)


class HostRing(Instance):
    """A ring in pinned memory, for the frontend of this process and a scheduler on one of its threads."""

    backend = "cpu-resident"

    def __init__(self, cuda: Cuda, settings: NativeSettings) -> None:
        super().__init__(load_library(), settings, memory=lambda size_bytes: PinnedMemory(cuda, size_bytes))

    def reset(self) -> None:
        """A fresh ring and a fresh scheduler in the same memory. No scheduler may run."""
        ctypes.memset(self.base, 0, int(self.config["total_bytes"][0]))
        create(self.library, self.settings, self.config, self.base)


class HostScheduler:
    """A scheduler on a thread of this process, with an engine's graphs; the life of CudaScheduler.

    `engine` None is the stub. After each graph its sampled tokens are copied back, as a host loop does. `cores`: where
    the thread may run, by default where this process may.
    """

    def __init__(
        self, kernels: Kernels, ring: HostRing, engine: Engine | None = None, cores: frozenset[int] | None = None
    ) -> None:
        self._cuda, self._ring, self._cores = kernels.cuda, ring, cores
        self._release = self._cuda.allocate_pinned(4096)  # a stub's hang is for tests of the device: never used here
        self._own: Engine | None = None
        if engine is None:
            engine = self._own = StubEngine(kernels, ring.settings, ring.base, self._release)
        self.graphs = Graphs(kernels, engine, ring.settings, ring.base, ring.config.tobytes())
        self.stream = self._cuda.stream()
        rows = ring.settings.decode_table.fallback.batch
        self._tokens = self._cuda.allocate_pinned(4 * rows)
        self.calls = HostCalls(self._cuda, self.graphs, self.stream, (engine.buffers.sampled, self._tokens, 4 * rows))
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._ring.library.set_stop(self._ring.base, int(Stop.RUN))
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._cores:
            os.sched_setaffinity(0, self._cores)  # of this thread
        self._ring.library.run_graphs(self._ring.base, self.calls.address)

    def wait_until_up(self) -> None:
        """Return once the heart beats. Raises RuntimeError if it does not begin to."""
        if self._thread is None:
            self.start()
        due = time.monotonic() + START_LIMIT_S
        while not self._ring.library.heartbeat_ns(self._ring.base):
            if time.monotonic() > due:
                raise RuntimeError("the scheduler's thread did not start")
            time.sleep(0.001)

    def record_ns(self, host_ns: int) -> int:
        """Both read the machine's clock."""
        return host_ns

    def fault(self) -> str | None:
        """Why the scheduler will not go on, None if it is well."""
        if self.calls.error:
            return f"a call of the CUDA driver failed (CUresult {self.calls.error})"
        library, base = self._ring.library, self._ring.base
        silence_ns = library.now_ns() - library.heartbeat_ns(base)
        if silence_ns > SILENCE_LIMIT_NS:
            return f"the scheduler's heart has not beaten for {silence_ns // 1_000_000_000} s"
        return None

    def stop(self, how: Stop, limit_s: float = 10.0) -> bool:
        """Set the stop word and wait for the end. True if it came in time."""
        if self._thread is not None:
            self._ring.library.set_stop(self._ring.base, int(how))
            self._thread.join(limit_s)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def kill(self) -> None:
        """Abort what runs; a thread cannot be ended otherwise."""
        self.stop(Stop.ABORT, 5.0)

    @property
    def is_running(self) -> bool:
        """Whether the thread is still there. Its memory cannot be given back then."""
        return self._thread is not None

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
