"""StallDistribution: how often work on a core is interrupted, and how long; KernelQueue: by the kernel's own work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from blink.common.results import I64
from blink.common.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class KernelQueue:
    """Kernel work of other jobs on one core, all of which goes before user threads: an M/M/1 queue.

    Pieces of `section_ns` on average, exponential, fill a share `busy` of the core's time. A user thread waits until
    the queue is empty: for a busy period, or for what is left of one. Both are drawn from the inverse Gaussian law with
    the exact mean and variance, which is the first passage of the diffusion that approximates the queue.
    """

    busy: float
    section_ns: float

    @property
    def period_ns(self) -> float:
        """Mean busy period, L / (1 - busy)."""
        return self.section_ns / (1.0 - self.busy)

    @property
    def remaining_ns(self) -> float:
        """Mean time until the queue is empty, for a thread that finds it busy: L / (1 - busy)^2."""
        return self.period_ns / (1.0 - self.busy)

    def draw_period_ns(self, rng: np.random.Generator) -> float:
        """One busy period; its variance is L^2 (1 + busy) / (1 - busy)^3."""
        return float(rng.wald(self.period_ns, self.section_ns / (1.0 + self.busy)))

    def draw_periods_ns(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """`count` busy periods, shape (count,)."""
        return rng.wald(self.period_ns, self.section_ns / (1.0 + self.busy), count)

    def draw_remaining_ns(self, rng: np.random.Generator) -> float:
        """Time until the queue is empty, found busy: unfinished work is exponential, and more comes while it drains."""
        work_ns = max(1.0, float(rng.exponential(self.period_ns)))
        return float(rng.wald(work_ns / (1.0 - self.busy), work_ns**2 / (2.0 * self.busy * self.section_ns)))


@dataclass(frozen=True, slots=True)
class StallSource:
    """Interruptions that arrive as a Poisson process over the CPU time of the interrupted work.

    `rate_per_s` counts per second of CPU time. A length is exponential with `mean_ns`; or a busy period of `queue`; or,
    where `slice_ns` is not 0, `slice_ns` times the number of competitors that take their turn: the mean rounded down or
    up at random, so that the mean holds, and one more or one less each with probability `imbalance`; or one of
    `lengths_ns`.
    """

    name: str
    rate_per_s: float
    mean_ns: float
    queue: KernelQueue | None = None
    slice_ns: int = 0
    imbalance: float = 0.0
    lengths_ns: tuple[float, ...] = ()

    @classmethod
    def kernel(cls, queue: KernelQueue) -> StallSource:
        """Busy periods of a queue: pieces arrive at a core that is free of them at the rate of the queue."""
        return cls("kernel", queue.busy / queue.section_ns * NS_PER_S, queue.period_ns, queue)

    @property
    def load(self) -> float:
        """Stall time per time of work."""
        return self.rate_per_s * self.mean_ns / NS_PER_S

    def length_ns(self, rng: np.random.Generator) -> float:
        """One interruption."""
        if self.queue:
            return self.queue.draw_period_ns(rng)
        if self.lengths_ns:
            return self.lengths_ns[int(rng.integers(len(self.lengths_ns)))]
        if self.slice_ns:
            return float(competitors(self.mean_ns / self.slice_ns, self.imbalance, rng) * self.slice_ns)
        return float(rng.exponential(self.mean_ns))

    def lengths_many_ns(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """`count` interruptions, shape (count,)."""
        if self.queue:
            return self.queue.draw_periods_ns(count, rng)
        if self.lengths_ns or self.slice_ns:
            return np.array([self.length_ns(rng) for _ in range(count)], np.float64)
        return rng.exponential(self.mean_ns, count)

    def remaining_ns(self, rng: np.random.Generator) -> float:
        """What is left of an interruption in which one finds oneself; long ones are found more often."""
        if self.queue:
            return self.queue.draw_remaining_ns(rng)
        if self.lengths_ns:  # each length is found in proportion to itself
            at = float(rng.random()) * math.fsum(self.lengths_ns)
            ends = np.cumsum(self.lengths_ns)
            found = min(int(np.searchsorted(ends, at, side="right")), len(self.lengths_ns) - 1)
            return self.lengths_ns[found] * float(rng.random())
        if self.slice_ns:
            return max(1.0, self.length_ns(rng) / self.slice_ns) * self.slice_ns * float(rng.random())
        return float(rng.exponential(self.mean_ns))  # of an exponential length an exponential is left


class Draws(Protocol):
    """Where numbers from 0 to 1 come from."""

    def random(self) -> float:
        """The next one."""


def competitors(mean: float, imbalance: float, rng: Draws) -> int:
    """How many other runnable threads share a core that has `mean` of them on average."""
    whole = math.floor(mean)
    count = whole + (float(rng.random()) < mean - whole)
    move = float(rng.random())
    # A core with none cannot have one less, so it has no more either: the mean stays.
    if count >= 1:
        count += (move < imbalance) - (move >= 1.0 - imbalance)
    return count


@dataclass(frozen=True, slots=True)
class StallDistribution:
    """All sources of interruptions of one condition of the host."""

    sources: tuple[StallSource, ...] = ()
    rate_per_s: float = field(init=False)  # interruptions per second of CPU time
    load: float = field(init=False)  # stall time per time of work: work of c takes c (1 + load) on average

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate_per_s", math.fsum(source.rate_per_s for source in self.sources))
        object.__setattr__(self, "load", math.fsum(source.load for source in self.sources))

    def sample_ns(self, cpu_ns: float, rng: np.random.Generator) -> float:
        """Stall time that hits a stretch of `cpu_ns` of work."""
        rate = self.rate_per_s
        if rate <= 0.0 or cpu_ns <= 0.0:
            return 0.0
        expected = rate * cpu_ns / NS_PER_S
        # One uniform number decides whether anything happens at all: most stretches are short.
        if float(rng.random()) < math.exp(-expected):
            return 0.0
        count = _at_least_one(expected, rng)
        return math.fsum(self._pick(rng).length_ns(rng) for _ in range(count))

    def sample_many_ns(self, cpu_ns: I64, rng: np.random.Generator) -> I64:
        """The same for an int64 array of stretches; another sequence of random numbers, the same distribution."""
        total = np.zeros(len(cpu_ns), np.float64)
        for source in self.sources:
            counts = rng.poisson(source.rate_per_s * cpu_ns / NS_PER_S)
            hit = np.repeat(np.arange(len(cpu_ns)), counts)
            np.add.at(total, hit, source.lengths_many_ns(len(hit), rng))
        return np.rint(total).astype(np.int64)

    def without(self, name: str) -> StallDistribution:
        """The other sources."""
        return StallDistribution(tuple(source for source in self.sources if source.name != name))

    def overlap_ns(self, rng: np.random.Generator) -> float:
        """What is left of the interruption in which a moment of a busy thread's life falls; 0 if it falls in none."""
        load = self.load
        at = float(rng.random()) * (1.0 + load)
        for source in self.sources:
            if at < source.load:
                return source.remaining_ns(rng)
            at -= source.load
        return 0.0

    def _pick(self, rng: np.random.Generator) -> StallSource:
        at = float(rng.random()) * self.rate_per_s
        for source in self.sources:
            at -= source.rate_per_s
            if at < 0.0:
                return source
        return self.sources[-1]


def _at_least_one(expected: float, rng: np.random.Generator) -> int:
    """A Poisson count, given that it is not 0: the first arrival is placed, the others follow independently."""
    first = -math.log1p(float(rng.random()) * math.expm1(-expected))
    return 1 + int(rng.poisson(max(0.0, expected - first)))
