"""The scheduler on a thread of this process, with graphs that somebody else launches: captured ones, or an engine's."""

from __future__ import annotations

import ctypes
import os
import threading
import time

from blink.hw.native.instance import Instance
from blink.hw.native.process import SILENCE_LIMIT_NS, START_LIMIT_S, Stop

SCHEDULER_THREAD = "scheduler"
"""What the thread is called."""
_POINTER, _U64, _I64 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int64


class HostGraphs(ctypes.Structure):
    """kernels/include/blink/host_graphs.h."""

    _fields_ = (
        ("set_context", _POINTER), ("launch", _POINTER), ("copy_out", _POINTER), ("synchronize", _POINTER),
        ("context", _POINTER), ("stream", _POINTER), ("prefill", _POINTER), ("decode", _POINTER),
        ("source", _U64), ("target", _POINTER), ("size_bytes", _U64), ("error", _I64),
    )  # fmt: skip


class ThreadScheduler:
    """A scheduler over an instance's block; the life of SchedulerProcess.

    `graphs`: what it calls for each graph. `cores`: where the thread may run, by default where this process may.
    `silence_limit_ns`: how old the heartbeat of a scheduler may be that is well; it does not beat during a call.
    """

    def __init__(
        self,
        instance: Instance,
        graphs: HostGraphs,
        cores: frozenset[int] | None = None,
        silence_limit_ns: int = SILENCE_LIMIT_NS,
    ) -> None:
        self._instance, self._graphs, self._cores = instance, graphs, cores
        self._silence_limit_ns = silence_limit_ns
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._instance.library.set_stop(self._instance.base, int(Stop.RUN))
        self._thread = threading.Thread(target=self._run, name=SCHEDULER_THREAD, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._cores:
            os.sched_setaffinity(0, self._cores)  # of this thread
        self._instance.library.run_graphs(self._instance.base, ctypes.addressof(self._graphs))

    def wait_until_up(self) -> None:
        """Return once the heart beats. Raises RuntimeError if it does not begin to."""
        if self._thread is None:
            self.start()
        due = time.monotonic() + START_LIMIT_S
        while not self._instance.library.heartbeat_ns(self._instance.base):
            if time.monotonic() > due:
                raise RuntimeError("the scheduler's thread did not start")
            time.sleep(0.001)

    def record_ns(self, host_ns: int) -> int:
        """Both read the machine's clock."""
        return host_ns

    def fault(self) -> str | None:
        """Why the scheduler will not go on, None if it is well."""
        library, base = self._instance.library, self._instance.base
        silence_ns = library.now_ns() - library.heartbeat_ns(base)
        if silence_ns > self._silence_limit_ns:
            return f"the scheduler's heart has not beaten for {silence_ns // 1_000_000_000} s"
        return None

    def stop(self, how: Stop, limit_s: float = 10.0) -> bool:
        """Set the stop word and wait for the end. True if it came in time."""
        if self._thread is not None:
            self._instance.library.set_stop(self._instance.base, int(how))
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
