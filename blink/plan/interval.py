"""What repeated runs say: a mean over seeds with its confidence interval, and the ratio of two such series.

Seeds are the sample: each gives a whole run, and runs of different seeds are independent. The interval is Student's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its confidence interval; `low` and `high` are None where a single run gives no interval."""

    estimate: float
    low: float | None
    high: float | None

    def includes(self, value: float) -> bool | None:
        """Whether the value lies within the interval; None if there is none."""
        return None if self.low is None or self.high is None else self.low <= value <= self.high


def mean_interval(values: Sequence[float | None], confidence: float = CONFIDENCE) -> Interval | None:
    """Mean of the seeds' values: mean +- t s / sqrt(n), with n - 1 degrees of freedom.

    Values that are None (a run in which nothing was served) are left out; None if nothing is left. One value has no
    interval.
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Interval(mean, None, None)
    half = _half_width(known, mean, confidence)
    return Interval(mean, mean - half, mean + half)


def ratio_interval(
    over: Sequence[float | None], under: Sequence[float | None], confidence: float = CONFIDENCE
) -> Interval | None:
    """Ratio of two series, paired by position: the same seed sends both the same requests.

    Geometric mean of the seeds' ratios with Student's interval of their logarithms, so that a over b is exactly the
    inverse of b over a. Pairs in which a value is None or not positive are left out; None if no pair is left.
    """
    pairs = zip(over, under, strict=True)
    logs = [math.log(a / b) for a, b in pairs if a is not None and b is not None and a > 0 and b > 0]
    found = mean_interval(logs, confidence)
    if found is None:
        return None
    if found.low is None or found.high is None:
        return Interval(math.exp(found.estimate), None, None)
    return Interval(math.exp(found.estimate), math.exp(found.low), math.exp(found.high))


def student_t(confidence: float, degrees: int) -> float:
    """The two-sided quantile: a variable of Student's t law with so many degrees lies within +- it so often.

    Raises ValueError for a confidence that is not between 0 and 1, or less than one degree of freedom.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence {confidence}: must be between 0 and 1")
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom: must be at least 1")
    return _quantile(confidence, degrees)


@cache
def _quantile(confidence: float, degrees: int) -> float:
    low, high = 0.0, 1.0
    while _within(high, degrees) < confidence:
        high *= 2.0
    while True:
        middle = (low + high) / 2.0
        if not low < middle < high:
            return high
        if _within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle


def _within(t: float, degrees: int) -> float:
    """P(|T| <= t), by the finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term, terms = 1.0, []
    for power in range(odd + 2, degrees + 1, 2):
        terms.append(term)
        term *= (power - 1) / power * cosine * cosine
    if not odd:
        return sine * math.fsum(terms)
    return 2.0 / math.pi * (angle + sine * cosine * math.fsum(terms))


def _half_width(values: Sequence[float], mean: float, confidence: float) -> float:
    count = len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return student_t(confidence, count - 1) * math.sqrt(variance / count)
