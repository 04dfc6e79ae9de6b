"""Errors of one distribution against another, with bootstrap intervals, and the distance between both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STATISTICS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
"""Name -> percentile; the mean has none."""
RESAMPLES = 400
LEVEL = 0.95
SEED = 9


@dataclass(frozen=True, slots=True)
class Error:
    """One statistic, measured and predicted, in the unit of the samples; `low` and `high` bound the relative error."""

    statistic: str
    real: float
    sim: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        """Predicted over measured, less one; infinite where nothing was measured."""
        if self.real:
            return self.sim / self.real - 1.0
        return 0.0 if not self.sim else float("inf")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantity: the error of every statistic, and distances of the two distributions.

    `wasserstein` is the area between the distribution functions, in the unit of the samples, `wasserstein_relative`
    over the measured mean; `kolmogorov_smirnov` the largest difference of the distribution functions.
    """

    count: int
    errors: tuple[Error, ...]
    wasserstein: float
    wasserstein_relative: float
    kolmogorov_smirnov: float

    def error(self, statistic: str) -> Error:
        """That of one statistic."""
        return next(error for error in self.errors if error.statistic == statistic)


def compare(real: Floats, sim: Floats, *, paired: bool = True) -> Comparison:
    """Both samples, not empty. `paired`: entry by entry the same request, which the bootstrap draws together."""
    rng = np.random.default_rng(SEED)
    drawn_real = rng.integers(0, len(real), (RESAMPLES, len(real)))
    drawn_sim = drawn_real if paired else rng.integers(0, len(sim), (RESAMPLES, len(sim)))
    again_real, again_sim = real[drawn_real], sim[drawn_sim]
    errors = []
    for name, percentile in STATISTICS.items():
        one, other = _statistic(again_real, percentile), _statistic(again_sim, percentile)
        ratio = np.divide(other, one, out=np.ones_like(one), where=one > 0) - 1.0
        tail = 50.0 * (1.0 - LEVEL)
        low, high = np.percentile(ratio, [tail, 100.0 - tail])
        here, there = (float(_statistic(values[None, :], percentile)[0]) for values in (real, sim))
        errors.append(Error(name, here, there, float(low), float(high)))
    distance, largest = distances(real, sim)
    mean = float(real.mean())
    return Comparison(len(real), tuple(errors), distance, distance / mean if mean else 0.0, largest)


def distances(real: Floats, sim: Floats) -> tuple[float, float]:
    """Wasserstein-1 and Kolmogorov-Smirnov distance of two samples."""
    one, other = np.sort(real), np.sort(sim)
    every = np.concatenate([one, other])
    every.sort()
    below_one = np.searchsorted(one, every, side="right") / len(one)
    below_other = np.searchsorted(other, every, side="right") / len(other)
    apart = np.abs(below_one - below_other)
    return float(np.sum(apart[:-1] * np.diff(every))), float(apart.max())


def quantiles(samples: Floats, count: int = 199) -> Floats:
    """Evenly spaced quantiles for a Q-Q figure, the extremes left out."""
    return np.asarray(np.percentile(samples, np.linspace(0.5, 99.5, count)), np.float64)


def _statistic(rows: Floats, percentile: float | None) -> Floats:
    found = rows.mean(axis=1) if percentile is None else np.percentile(rows, percentile, axis=1)
    return np.asarray(found, np.float64)
