"""Threads of the host: every operation takes the time that the host's conditions make of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from blink.common.units import NS_PER_S
from blink.perf.host.operation import HostOp
from blink.perf.host.stall import StallDistribution

_DRAWN_AT_ONCE = 1024


class Conditions(Protocol):
    """What the host does to an operation (blink.perf.host.conditions.HostConditions)."""

    @property
    def inflation(self) -> Mapping[HostOp, float]: ...

    @property
    def stall(self) -> StallDistribution: ...

    def wakeup_ns(self, rng: np.random.Generator) -> int: ...

    def spin_ns(self, wait_ns: float, rng: np.random.Generator) -> int: ...


class Quiet:
    """A host without noise, on which a woken thread runs at once: for tests of the loops."""

    inflation: Mapping[HostOp, float] = dict.fromkeys(HostOp, 1.0)
    stall = StallDistribution()

    def wakeup_ns(self, rng: np.random.Generator) -> int:
        """No time."""
        return 0

    def spin_ns(self, wait_ns: float, rng: np.random.Generator) -> int:
        """The wait itself."""
        return round(wait_ns)


class HostThread:
    """One thread with its own random numbers; `reserve` queues work on it in the order in which it is handed over.

    Interruptions are a Poisson process over the thread's CPU time, so when the next one comes and how long it lasts is
    drawn ahead, many at once; how the work is cut into operations changes nothing.
    """

    __slots__ = ("_conditions", "_cpu_ns", "_factor", "_free_ns", "_rng", "_stall_at", "_stalls", "_turn_ns", "busy_ns")

    def __init__(self, conditions: Conditions, rng: np.random.Generator) -> None:
        self._conditions, self._rng = conditions, rng
        self._factor = {kind: conditions.inflation[kind] for kind in HostOp}
        self._free_ns = 0
        self._turn_ns = 0  # of the last piece of work that was queued
        self._cpu_ns = 0.0
        self._stalls: list[tuple[float, float]] = []  # (CPU time, length), the next one last
        self._stall_at = float("inf")
        self.busy_ns = 0
        if conditions.stall.rate_per_s > 0.0:
            self._draw()

    def run(self, kind: HostOp, base_ns: float) -> int:
        """How long an operation takes that would take `base_ns` on an idle machine."""
        return self.work(base_ns * self._factor[kind])

    def factor(self, kind: HostOp) -> float:
        """How much longer than on an idle machine this kind of work runs, interruptions apart."""
        return self._factor[kind]

    def work(self, cpu_ns: float) -> int:
        """How long a stretch of work of any kinds takes that keeps the core for `cpu_ns`."""
        self._cpu_ns = end = self._cpu_ns + cpu_ns
        while self._stall_at < end:
            cpu_ns += self._stalls.pop()[1]
            if not self._stalls:
                self._draw()
            self._stall_at = self._stalls[-1][0]
        taken = round(cpu_ns)
        self.busy_ns += taken
        return taken

    def spin(self, wait_ns: int) -> int:
        """Busy waiting for something that happens in `wait_ns`: until the thread has seen it."""
        seen_ns = self._conditions.spin_ns(wait_ns, self._rng)
        self.busy_ns += seen_ns
        return seen_ns

    def wakeup(self) -> int:
        """From the moment a sleeping thread may go on until it runs."""
        return self._conditions.wakeup_ns(self._rng)

    def reserve(self, ready_ns: int, duration_ns: int) -> int:
        """When work that is ready at `ready_ns` starts; a thread that slept has to be woken."""
        start = self._free_ns
        if ready_ns >= start:
            start = ready_ns + self.wakeup()
        self._free_ns = start + duration_ns
        self._turn_ns = duration_ns
        return start

    def interleave(self, ready_ns: int, duration_ns: int) -> int:
        """When work starts that an event loop takes up between two pieces of its backlog: it waits for one piece.

        What is queued behind it comes later by its duration; what was handed over before keeps its time, though.
        """
        start = self._free_ns
        if ready_ns >= start:
            return self.reserve(ready_ns, duration_ns)
        self._free_ns += duration_ns
        return min(start, ready_ns + self._turn_ns)

    def _draw(self) -> None:
        """The next interruptions: exponential gaps, each of a source in proportion to its rate."""
        rng, sources = self._rng, self._conditions.stall.sources
        rates = np.cumsum([source.rate_per_s for source in sources])
        since = self._cpu_ns if self._stall_at == float("inf") else self._stall_at
        at = since + np.cumsum(rng.exponential(NS_PER_S / rates[-1], _DRAWN_AT_ONCE))
        which = np.searchsorted(rates, rng.random(_DRAWN_AT_ONCE) * rates[-1], side="right")
        lengths = np.empty(_DRAWN_AT_ONCE, np.float64)
        for index, source in enumerate(sources):
            mine = np.flatnonzero(which == index)
            lengths[mine] = source.lengths_many_ns(mine.size, rng)
        self._stalls = list(zip(at.tolist(), lengths.tolist(), strict=True))[::-1]
        self._stall_at = self._stalls[-1][0]
