"""Threads of the host: every operation takes the time that the host's conditions make of it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from blink.perf.host.operation import HostOp


class Conditions(Protocol):
    """What the host does to an operation: inflation, stalls, and the wait until a woken thread runs."""

    def op_ns(self, kind: HostOp, base_ns: float, rng: np.random.Generator) -> int: ...

    def wakeup_ns(self, rng: np.random.Generator) -> int: ...


class Quiet:
    """A host without noise, on which a woken thread runs at once: for tests of the loops."""

    def op_ns(self, kind: HostOp, base_ns: float, rng: np.random.Generator) -> int:
        """The time of the idle machine."""
        return round(base_ns)

    def wakeup_ns(self, rng: np.random.Generator) -> int:
        """No time."""
        return 0


class HostThread:
    """One thread with its own random numbers; `reserve` queues work on it in the order in which it is handed over."""

    __slots__ = ("_conditions", "_free_ns", "_rng", "busy_ns")

    def __init__(self, conditions: Conditions, rng: np.random.Generator) -> None:
        self._conditions, self._rng = conditions, rng
        self._free_ns = 0
        self.busy_ns = 0

    def run(self, kind: HostOp, base_ns: float) -> int:
        """How long an operation takes that would take `base_ns` on an idle machine."""
        taken = self._conditions.op_ns(kind, base_ns, self._rng)
        self.busy_ns += taken
        return taken

    def wakeup(self) -> int:
        """From the moment a waiting thread may go on until it runs."""
        return self._conditions.wakeup_ns(self._rng)

    def reserve(self, ready_ns: int, duration_ns: int) -> int:
        """When work that is ready at `ready_ns` starts; a thread that slept has to be woken."""
        start = self._free_ns
        if ready_ns >= start:
            start = ready_ns + self.wakeup()
        self._free_ns = start + duration_ns
        return start
