"""Distributions of samples, plain or weighted; mean, deviation and percentiles are the same on every machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common.results import WeightedValues

PERCENTILES = {"p50": 500, "p90": 900, "p99": 990, "p999": 999}
"""Names of the reported percentiles, in thousandths."""


@dataclass(frozen=True, eq=False)
class Distribution:
    """Sorted values, each with how often it occurred; int64 values are treated exactly, float64 values with math.fsum.

    No numpy reduction over floats takes part, whose order of summation depends on the machine's vector width.
    """

    values: NDArray[Any]
    weights: NDArray[np.int64]

    @classmethod
    def of(cls, samples: NDArray[Any]) -> Distribution:
        """Each sample once."""
        return cls(np.sort(samples), np.ones(len(samples), dtype=np.int64))

    @classmethod
    def of_weighted(cls, weighted: WeightedValues) -> Distribution:
        """The same as `of` on the expanded samples, without expanding them. Weights must not be negative."""
        if len(weighted.weights) and int(weighted.weights.min()) < 0:
            raise ValueError(f"a weight is {int(weighted.weights.min())}; weights must be 0 or more")
        order = np.argsort(weighted.values, kind="stable")
        values, weights = weighted.values[order], weighted.weights[order]
        kept = weights > 0
        return cls(values[kept], weights[kept])

    @cached_property
    def _cumulative(self) -> NDArray[np.int64]:
        return np.cumsum(self.weights, dtype=np.int64)

    @property
    def count(self) -> int:
        """Number of samples."""
        return int(self._cumulative[-1]) if len(self.weights) else 0

    @cached_property
    def total(self) -> int | float:
        """Sum of the samples: an exact int for integers, correctly rounded for floats."""
        products = map(mul, self.values.tolist(), self.weights.tolist())
        return sum(products) if self._exact else math.fsum(products)

    def mean(self) -> float | None:
        """Sum over count; None without samples."""
        return self.total / self.count if self.count else None

    def std(self) -> float | None:
        """Population standard deviation, numpy's default: sqrt(sum (x - mean)^2 / n). None without samples.

        For integers by n * sum x^2 - (sum x)^2 over n^2, in exact integers up to the last division.
        """
        if not self.count:
            return None
        values, weights, count = self.values.tolist(), self.weights.tolist(), self.count
        if self._exact:
            squares = sum(map(mul, map(mul, values, values), weights))
            return math.sqrt((count * squares - int(self.total) ** 2) / (count * count))
        mean = self.total / count
        return math.sqrt(
            math.fsum((value - mean) ** 2 * weight for value, weight in zip(values, weights, strict=True)) / count
        )

    def percentile(self, thousandths: int) -> float | None:
        """Linear interpolation between the two nearest ranks, numpy's default: rank (n - 1) * p, counted from 0.

        `thousandths` is p * 1000, so that the rank is exact. None without samples.
        """
        if not 0 <= thousandths <= 1000:
            raise ValueError(f"a percentile of {thousandths} thousandths; allowed: 0 to 1000")
        if not self.count:
            return None
        rank, rest = divmod((self.count - 1) * thousandths, 1000)
        low = self._at(rank)
        if rest == 0:
            return float(low)
        high = self._at(rank + 1)
        if self._exact:
            return float((low * (1000 - rest) + high * rest) / 1000)
        return float(low + (high - low) * (rest / 1000))

    def maximum(self) -> float | None:
        """Largest sample; None without samples."""
        return float(self._at(self.count - 1)) if self.count else None

    @property
    def _exact(self) -> bool:
        return self.values.dtype.kind in "iu"

    def _at(self, rank: int) -> Any:
        """The sample of that rank, as a Python number: no overflow in what follows."""
        return self.values[np.searchsorted(self._cumulative, rank, side="right")].item()
