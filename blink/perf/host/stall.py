"""StallDistribution: how often work on a core is interrupted, and for how long."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from blink.common.results import I64
from blink.common.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class StallSource:
    """Interruptions that arrive as a Poisson process over the CPU time of the interrupted work.

    `rate_per_s` counts per second of CPU time. A length is exponential with `mean_ns`, or, where `slice_ns` is not 0,
    `slice_ns` times the number of competitors that take their turn: the mean rounded down or up at random, so
    that the mean holds, and one more or one less each with probability `imbalance`. With `lengths_ns`: one of those.
    """

    name: str
    rate_per_s: float
    mean_ns: float
    slice_ns: int = 0
    imbalance: float = 0.0
    lengths_ns: tuple[float, ...] = ()

    @property
    def load(self) -> float:
        """Stall time per time of work."""
        return self.rate_per_s * self.mean_ns / NS_PER_S

    def length_ns(self, rng: np.random.Generator) -> float:
        """One interruption."""
        if self.lengths_ns:
            return self.lengths_ns[int(rng.integers(len(self.lengths_ns)))]
        if not self.slice_ns:
            return float(rng.exponential(self.mean_ns))
        return float(competitors(self.mean_ns / self.slice_ns, self.imbalance, rng) * self.slice_ns)


def competitors(mean: float, imbalance: float, rng: np.random.Generator) -> int:
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
            if source.slice_ns or source.lengths_ns:
                lengths = np.array([source.length_ns(rng) for _ in hit], np.float64)
            else:
                lengths = rng.exponential(source.mean_ns, len(hit))
            np.add.at(total, hit, lengths)
        return np.rint(total).astype(np.int64)

    def overlap_ns(self, rng: np.random.Generator) -> float:
        """What is left of the interruption in which a moment of a busy thread's life falls; 0 if it falls in none."""
        load = self.load
        at = float(rng.random()) * (1.0 + load)
        for source in self.sources:
            if at < source.load:
                # Long ones are found more often. What is left of an exponential length is exponential again.
                if not source.slice_ns and not source.lengths_ns:
                    return float(rng.exponential(source.mean_ns))
                return max(source.mean_ns, source.length_ns(rng)) * float(rng.random())
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
