"""Errors of one distribution against another, with bootstrap intervals, and the distance between both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blink.common.results import I64

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


def compare(real: Floats, sim: Floats) -> Comparison:
    """Both samples, not empty, entry by entry the same request, which the bootstrap draws together."""
    drawn = np.random.default_rng(SEED).integers(0, len(real), (RESAMPLES, len(real)))
    again = {
        name: (_statistic(real[drawn], percentile), _statistic(sim[drawn], percentile))
        for name, percentile in STATISTICS.items()
    }
    return _comparison(real, sim, again)


def compare_owned(real: Floats, sim: Floats, owner_real: I64, owner_sim: I64) -> Comparison:
    """Samples that belong to requests, the same ones on both sides: the bootstrap draws requests, all samples of each.

    Both samples are not empty; `owner_real` and `owner_sim` number the request of each sample.
    """
    count = int(max(owner_real.max(), owner_sim.max())) + 1
    drawn = np.random.default_rng(SEED).integers(0, count, (RESAMPLES, count))
    sides = []
    for values, owner in ((real, owner_real), (sim, owner_sim)):
        order = np.argsort(values, kind="stable")
        sides.append((values[order], owner[order]))
    again = {name: (np.empty(RESAMPLES), np.empty(RESAMPLES)) for name in STATISTICS}
    for row in range(RESAMPLES):
        of_owner = np.bincount(drawn[row], minlength=count)
        for side, (values, owner) in enumerate(sides):
            times = of_owner[owner]
            below = np.cumsum(times)
            for name, percentile in STATISTICS.items():
                again[name][side][row] = _weighted(values, times, below, percentile)
    return _comparison(real, sim, again)


def _weighted(values: Floats, times: I64, below: I64, percentile: float | None) -> float:
    """Of sorted values of which each counts `times` times, `below` in all up to it."""
    whole = int(below[-1])
    if percentile is None:
        return float(values @ times) / whole if whole else 0.0
    return float(values[min(int(np.searchsorted(below, whole * percentile / 100.0)), len(values) - 1)])


def _comparison(real: Floats, sim: Floats, again: Mapping[str, tuple[Floats, Floats]]) -> Comparison:
    """`again`: by statistic, its values in what the bootstrap drew, measured and predicted."""
    errors = []
    for name, percentile in STATISTICS.items():
        one, other = again[name]
        ratio = np.divide(other, one, out=np.ones_like(one), where=one > 0) - 1.0
        tail = 50.0 * (1.0 - LEVEL)
        low, high = np.percentile(ratio, [tail, 100.0 - tail])
        here, there = (float(_statistic(values[None, :], percentile)[0]) for values in (real, sim))
        errors.append(Error(name, here, there, float(low), float(high)))
    distance, largest = distances(real, sim)
    mean = float(real.mean())
    return Comparison(len(real), tuple(errors), distance, distance / mean if mean else 0.0, largest)


def ratio_interval(reals: Sequence[float], sims: Sequence[float]) -> tuple[float, float]:
    """Bounds of the relative error of a sum, of which there is a part for each run: the bootstrap draws runs."""
    drawn = np.random.default_rng(SEED).integers(0, len(reals), (RESAMPLES, len(reals)))
    one, other = (np.asarray(values, np.float64)[drawn].sum(axis=1) for values in (reals, sims))
    tail = 50.0 * (1.0 - LEVEL)
    low, high = np.percentile(np.divide(other, one, out=np.ones_like(one), where=one > 0) - 1.0, [tail, 100.0 - tail])
    return float(low), float(high)


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
