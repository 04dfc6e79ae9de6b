"""The scheduler as a persistent kernel: launched, watched and stopped through mapped words alone."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.hw.cuda.clock import ClockOffset, compare_clocks
from blink.hw.cuda.graphs import Graphs
from blink.hw.cuda.kernels import SCHEDULER_THREADS, Kernels
from blink.hw.cuda.marks import GraphMarks
from blink.hw.cuda.ring import DRAIN_GAP_NS, CudaRing
from blink.hw.cuda.structures import Control, CudaHost
from blink.hw.cuda.stub import StubEngine
from blink.hw.engines.contract import Engine
from blink.hw.native.process import SILENCE_LIMIT_NS, START_LIMIT_S, Stop

WINDOW_MAX = 120
"""Fire-and-forget launches that CUDA allows one execution of the launching graph."""
KILL_LIMIT_S = 5.0
_CONTROL_BYTES = 4096


class CudaScheduler:
    """A scheduler graph over a ring, with an engine's graphs. `start` it, `stop` it, start it again, `close` it.

    `engine` None is the stub. `kernel` is the kernel of the scheduler graph. `marks`: see Graphs.
    """

    def __init__(
        self,
        kernels: Kernels,
        ring: CudaRing,
        engine: Engine | None = None,
        kernel: str = "scheduler",
        marks: GraphMarks | None = None,
    ) -> None:
        window = ring.settings.limits.window
        if not 2 <= window <= WINDOW_MAX:
            raise InputError(
                f"limits.window = {window} is not allowed with backend cuda; allowed: 2 to {WINDOW_MAX}, the launches "
                "that CUDA grants one execution"
            )
        self._kernels, self._cuda, self._ring = kernels, kernels.cuda, ring
        self.control = Control(self._cuda.allocate_pinned(_CONTROL_BYTES))
        self._own: Engine | None = None
        if engine is None:
            engine = self._own = StubEngine(kernels, ring.settings, ring.base, self.control.address)
        self.graphs = Graphs(kernels, engine, ring.settings, ring.base, ring.device_config, marks)
        self.stream = self._cuda.stream()
        self._executable = self._scheduler_graph(kernel)
        self.clock = ClockOffset(0, 0)
        self._running = False
        self._beat, self._beat_seen_ns = 0, 0

    @property
    def host(self) -> CudaHost:
        """What the kernels get beside the block."""
        arrays = self.graphs.arrays
        return CudaHost(arrays[GraphKind.PREFILL], arrays[GraphKind.DECODE], self.control.address)

    def _scheduler_graph(self, kernel: str) -> int:
        with self._cuda.capturing(self.stream) as captured:
            memory = ctypes.c_uint64(self._ring.base)
            self._kernels.launch(kernel, 1, SCHEDULER_THREADS, self.stream, memory, self.host)
        executable = self._cuda.instantiate(captured[0])
        self._cuda.upload(executable, self.stream)
        self._cuda.wait(self.stream)
        self._cuda.close_graph(captured[0])
        return executable

    # --- its life ---

    def start(self) -> None:
        """Launch the first instance over what stands in the ring."""
        self.control.clear()
        self.clock = compare_clocks(self._kernels, self.control)
        self.control.clear()
        self._ring.drain_gap_ns = DRAIN_GAP_NS
        self._running = True
        self.launch()
        self._beat, self._beat_seen_ns = 0, time.monotonic_ns()

    def launch(self, stream: int | None = None) -> None:
        """Launch the scheduler graph from the host, on a stream of its own unless another is given."""
        self._cuda.launch_graph(self._executable, self.stream if stream is None else stream)

    def wait_until_up(self) -> None:
        """Return once the heart beats. Raises RuntimeError if it does not begin to."""
        if not self._running:
            self.start()
        if not _wait_for(lambda: bool(self.control["heartbeat"]), START_LIMIT_S):
            self.kill()
            raise RuntimeError("the scheduler's kernel did not start")

    def record_ns(self, host_ns: int) -> int:
        """A time of the host on the clock of trace records, as far as the clocks were compared at the start."""
        return host_ns + self.clock.offset_ns

    def fault(self) -> str | None:
        """Why the scheduler will not go on, None if it is well."""
        error = self.control["error"]
        if error:
            return f"the launch of graph {self.control['error_launch']} was refused (cudaError_t {error})"
        if self.control["ended"]:
            return "the scheduler ended early"
        now, beat = time.monotonic_ns(), self.control["heartbeat"]
        if beat != self._beat:
            self._beat, self._beat_seen_ns = beat, now
        if now - self._beat_seen_ns > SILENCE_LIMIT_NS:
            return f"the scheduler's heart has not beaten for {(now - self._beat_seen_ns) // 1_000_000_000} s"
        return None

    def stop(self, how: Stop, limit_s: float = 10.0) -> bool:
        """Set the stop word and wait for the end; give up after `limit_s`. True if it ended by itself."""
        if self._running:
            self.control["stop"] = int(how)
            if not _wait_for(lambda: bool(self.control["ended"]), limit_s):
                self.kill()
                return False
            self._ended()
        return True

    def kill(self) -> None:
        """Abort what runs, let go of a graph that a test hangs. A scheduler that does not obey is left alone."""
        if not self._running:
            return
        self.control["release"] = 1
        self.control["stop"] = int(Stop.ABORT)
        if _wait_for(lambda: bool(self.control["ended"]), KILL_LIMIT_S):
            self._ended()

    def _ended(self) -> None:
        self.control["release"] = 1
        self._cuda.wait(self.stream)
        self._ring.drain_gap_ns = 0
        self._running = False

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended. Its memory cannot be given back then."""
        return self._running

    def close(self) -> None:
        """Give graphs and memory back; all of it is kept if a scheduler would not end."""
        self.kill()
        if self._running:
            return
        self._cuda.close_executable(self._executable)
        self.graphs.close()
        if self._own:
            self._own.close()
        self._cuda.close_stream(self.stream)
        self._cuda.free_pinned(self.control.address)


def _wait_for(condition: Callable[[], bool], limit_s: float) -> bool:
    due = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > due:
            return False
        time.sleep(0.0002)
    return True
