"""Turns: when a thread that never sleeps runs, beside others on its core that never sleep either.

It runs for one slice of the scheduler, then each competitor runs for one. How many they are changes when the system
moves threads between cores, not from one turn to the next. What follows one another is spread evenly over its law
(multiples of irrational numbers), so that a run of seconds, too, shows the mean; where it begins is drawn.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from blink.perf.host.cores import CoreShare
from blink.perf.host.stall import Draws, competitors

_STEPS = (0.7548776662466927, 0.5698402909980532)
"""The inverse of the plastic number and its square: multiples of both, modulo 1, fill the unit square evenly."""


class Turns:
    """The turns of one thread from time 0 on, drawn as far as somebody asks. It runs for `turn_ns`, each competitor for
    `slice_ns`.

    `mean` competitors, one more or one less with probability `imbalance` each, for `placement_ns` (0: drawn anew each
    turn). It begins somewhere within a turn, and where `first` others run.
    """

    def __init__(
        self,
        mean: float,
        imbalance: float,
        turn_ns: int,
        slice_ns: int,
        placement_ns: int,
        rng: np.random.Generator,
        first: int | None = None,
    ) -> None:
        self._first = first
        self._mean, self._imbalance, self._placement_ns, self._rng = mean, imbalance, placement_ns, rng
        self._turn_ns, self._slice_ns = turn_ns, slice_ns
        self._rivals = 0
        self._starts: list[int] = []  # of its turns
        self._next_ns = self._until_ns = -int(rng.integers(turn_ns))
        self._draws: Draws = _Even(rng) if placement_ns else rng
        self._draw()

    @classmethod
    def of(cls, cores: CoreShare, rng: np.random.Generator) -> Turns:
        """Those of a thread on these cores."""
        turn_ns = round(cores.slice_ns / cores.rival_weight)
        return cls(
            cores.competitors, cores.imbalance, turn_ns, cores.slice_ns, cores.placement_ns, rng, cores.first_beside
        )

    def late_ns(self, now_ns: int) -> int:
        """From `now_ns` until it runs: 0 in its own turn. Any order of questions gives the same answers."""
        while self._next_ns <= now_ns:
            self._draw()
        turn = self._starts[bisect_right(self._starts, now_ns) - 1]
        if now_ns < turn + self._turn_ns:
            return 0
        following = bisect_right(self._starts, now_ns)
        return (self._starts[following] if following < len(self._starts) else self._next_ns) - now_ns

    def _draw(self) -> None:
        """One more turn, and where the one after it begins."""
        start = self._next_ns
        if start >= self._until_ns:
            if self._placement_ns and self._first is not None:
                self._rivals, self._first = self._first, None
            else:
                self._rivals = competitors(self._mean, self._imbalance, self._draws)
            self._until_ns = start + max(1, self._placement_ns)
        self._starts.append(start)
        self._next_ns = start + self._turn_ns + self._slice_ns * self._rivals


class _Even:
    """Pairs of numbers from 0 to 1, each pair far from those before it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._at = [float(rng.random()) for _ in _STEPS]
        self._next = 0

    def random(self) -> float:
        """The next one."""
        index, self._next = self._next, (self._next + 1) % len(_STEPS)
        self._at[index] = (self._at[index] + _STEPS[index]) % 1.0
        return self._at[index]
