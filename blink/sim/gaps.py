"""InterTokenGaps: the distribution of ITL while it is being gathered."""

from __future__ import annotations

import numpy as np

from blink.common.results import I64, WeightedValues


class InterTokenGaps:
    """The distribution of ITL, as values with weights."""

    def __init__(self) -> None:
        self._values: list[int] = []
        self._weights: list[int] = []
        self._arrays: list[I64] = []

    def add(self, gap_ns: int, weight: int) -> None:
        """The same gap for `weight` tokens."""
        self._values.append(gap_ns)
        self._weights.append(weight)

    def add_all(self, gaps_ns: I64) -> None:
        """One token each."""
        self._arrays.append(gaps_ns)

    def total(self) -> WeightedValues:
        """Ascending distinct values with their weights."""
        values = np.concatenate([np.array(self._values, np.int64), *self._arrays])
        ones = sum(array.size for array in self._arrays)
        weights = np.concatenate([np.array(self._weights, np.int64), np.ones(ones, np.int64)])
        distinct, inverse = np.unique(values, return_inverse=True)
        counts = np.zeros(distinct.size, np.int64)
        np.add.at(counts, inverse, weights)
        return WeightedValues(distinct[counts > 0], counts[counts > 0])
