"""Arrival processes: when requests are sent, in integer nanoseconds from the first one, which is sent at 0.

Every function takes (rng, count, ...) and returns `count` sorted times. Gaps are rounded to whole nanoseconds one by
one and then added as integers, so that the sum has no floating-point drift and a longer run begins with the arrivals
of a shorter one. Times on a curve of rates are rounded each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from blink.common.errors import InputError
from blink.common.units import NS_PER_S
from blink.workload.requests import Column

SPAN_NS_MAX = 1 << 62


def poisson(rng: np.random.Generator, count: int, rate: float) -> Column:
    """Poisson process of `rate` requests/s: exponential gaps of mean 1/rate."""
    return gamma(rng, count, rate, burstiness=1.0)


def gamma(rng: np.random.Generator, count: int, rate: float, burstiness: float) -> Column:
    """Gamma-distributed gaps of mean 1/rate with shape `burstiness`, as vLLM's serving benchmark uses the word.

    gap ~ Gamma(shape = burstiness, scale = 1 / (rate * burstiness)), so the coefficient of variation of the gaps is
    1/sqrt(burstiness): 1 is a Poisson process, below 1 is burstier, above 1 is more regular.
    """
    _check(count, rate)
    if not (math.isfinite(burstiness) and burstiness > 0):
        raise InputError(f"burstiness: {burstiness} is not allowed; it must be finite and greater than 0")
    gaps_count = max(count - 1, 0)
    draws = rng.standard_exponential(gaps_count) if burstiness == 1.0 else rng.standard_gamma(burstiness, gaps_count)
    gaps_ns = np.rint(draws * (NS_PER_S / (rate * burstiness)))
    if math.fsum(gaps_ns) >= SPAN_NS_MAX:
        raise _too_long(count, rate)
    return _from_gaps(count, gaps_ns.astype(np.int64))


def curve(rng: np.random.Generator, count: int, points: Sequence[tuple[float, float]]) -> Column:
    """Poisson process whose rate follows `points` of (s, requests/s): straight lines between them, then the last rate.

    A unit process, whose gaps are exponential with mean 1, is stretched by the inverse of the integral of the rate.
    """
    _check_count(count)
    times, rates = np.array(points, dtype=np.float64).T
    spans = np.diff(times)
    sent = np.concatenate(([0.0], np.cumsum(spans * (rates[:-1] + rates[1:]) / 2)))  # until each point, on average
    unit = np.concatenate(([0.0], np.cumsum(rng.standard_exponential(max(count - 1, 0)))))[:count]
    place = np.searchsorted(sent, unit, side="right") - 1
    slopes = np.concatenate((np.diff(rates) / spans, [0.0]))
    rest, rate, slope = unit - sent[place], rates[place], slopes[place]
    # Of rate x t + slope x t^2 / 2 = rest the root that also holds where the slope is 0.
    after = 2 * rest / (rate + np.sqrt(np.maximum(rate**2 + 2 * slope * rest, 0.0)))
    arrival_ns = (times[place] + after) * NS_PER_S
    if count and arrival_ns[-1] >= SPAN_NS_MAX:
        raise InputError(f"points: {count} requests are spread over more than {SPAN_NS_MAX} ns")
    found: Column = np.rint(arrival_ns).astype(np.int64)
    return found


def constant(rng: np.random.Generator, count: int, rate: float) -> Column:
    """Evenly spaced: request k is sent at floor(k * 1e9 / rate) ns, computed exactly; draws nothing from `rng`."""
    _check(count, rate)
    gap_ns = NS_PER_S / Fraction(repr(float(rate)))
    return np.array([k * gap_ns.numerator // gap_ns.denominator for k in range(count)], dtype=np.int64)


def all_at_once(rng: np.random.Generator, count: int) -> Column:
    """Every request at 0; draws nothing from `rng`."""
    _check_count(count)
    return np.zeros(count, dtype=np.int64)


def closed_loop(rng: np.random.Generator, count: int, concurrency: int) -> Column:
    """A closed loop of `concurrency` clients: all are ready at 0 and the simulator admits one as another completes."""
    if concurrency < 1:
        raise InputError(f"concurrency: {concurrency} is not allowed; it must be at least 1")
    return all_at_once(rng, count)


def _from_gaps(count: int, gaps_ns: Column) -> Column:
    arrival_ns = np.zeros(count, dtype=np.int64)
    np.cumsum(gaps_ns, out=arrival_ns[1:])
    return arrival_ns


def _check(count: int, rate: float) -> None:
    _check_count(count)
    if not (math.isfinite(rate) and rate > 0):
        raise InputError(f"rate: {rate} requests/s is not allowed; it must be finite and greater than 0")
    if count * NS_PER_S / rate >= SPAN_NS_MAX:
        raise _too_long(count, rate)


def _too_long(count: int, rate: float) -> InputError:
    return InputError(f"rate: {rate} requests/s spreads {count} requests over more than {SPAN_NS_MAX} ns")


def _check_count(count: int) -> None:
    if count < 0:
        raise InputError(f"count: {count} requests are not allowed; it must be 0 or more")
