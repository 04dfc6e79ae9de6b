"""CpuThread: one thread that keeps its core busy, and its place in the turns that the scheduler gives it."""

from __future__ import annotations

import numpy as np

from blink.perf.host.conditions import HostConditions
from blink.perf.host.operation import HostOp
from blink.perf.host.stall import StallDistribution, competitors


class CpuThread:
    """Remembers how much of its time slice is left, which `HostConditions.op_ns` does not.

    A thread that spins for its GPU and competes with others leaves its core in the middle of a step and finds the
    result only when its next turn begins, so that what it observes falls on multiples of the slice. Where nobody
    competes it behaves as `op_ns` and `spin_ns` do. All times are ns on one clock that must not go back.
    """

    def __init__(self, conditions: HostConditions, rng: np.random.Generator) -> None:
        self._conditions, self._cores, self._rng = conditions, conditions.cores, rng
        sources = tuple(source for source in conditions.stall.sources if not source.slice_ns)
        self._short = StallDistribution(sources)
        self._turn_ns = round(self._cores.slice_ns / self._cores.rival_weight)
        self._left_ns = round(float(rng.random()) * self._turn_ns)

    def run(self, now_ns: int, kind: HostOp, base_ns: float) -> int:
        """When work that takes `base_ns` on the undisturbed host, begun now, has ended."""
        cpu_ns = base_ns * self._conditions.inflation[kind]
        need_ns = round(cpu_ns + self._short.sample_ns(cpu_ns, self._rng))
        if not self._cores.competitors:
            return now_ns + need_ns
        while need_ns > self._left_ns:
            need_ns -= self._left_ns
            now_ns = self._next_turn(now_ns + self._left_ns)
        self._left_ns -= need_ns
        return now_ns + need_ns

    def spin_until(self, now_ns: int, ready_ns: int) -> int:
        """When a thread that has spun since now sees what happens at `ready_ns`."""
        if self._cores.competitors:
            while ready_ns - now_ns > self._left_ns:
                now_ns = self._next_turn(now_ns + self._left_ns)
        spun_ns = max(0, ready_ns - now_ns)
        self._left_ns -= spun_ns if self._cores.competitors else 0
        return now_ns + spun_ns + round(self._short.overlap_ns(self._rng))

    def _next_turn(self, now_ns: int) -> int:
        """The slice is used up: the competitors take their turns; time and the new slice."""
        rivals = competitors(self._cores.competitors, self._cores.imbalance, self._rng)
        self._left_ns = self._turn_ns
        return now_ns + rivals * self._cores.slice_ns
