"""Arrival processes: sorted, of the rate asked for, exact where they are not random, the same for the same seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common.errors import InputError
from blink.workload.arrivals import all_at_once, closed_loop, constant, curve, gamma, poisson

rates = st.floats(1e-3, 1e5)
counts = st.integers(0, 300)
seeds = st.integers(0, 2**32)


@given(seeds, counts, rates, st.floats(0.05, 20))
def test_gamma_is_sorted_starts_at_zero_and_repeats(seed: int, count: int, rate: float, burstiness: float) -> None:
    first, again = (gamma(np.random.default_rng(seed), count, rate, burstiness) for _ in range(2))
    assert first.dtype == np.int64 and len(first) == count
    assert np.array_equal(first, again)
    assert np.all(np.diff(first) >= 0) and (count == 0 or first[0] == 0)


@given(seeds, st.integers(1, 100), rates)
def test_a_longer_run_begins_with_the_shorter_one(seed: int, count: int, rate: float) -> None:
    short, long = (poisson(np.random.default_rng(seed), n, rate) for n in (count, 2 * count))
    assert np.array_equal(short, long[:count])


@pytest.mark.parametrize("rate", [0.1, 4.0, 32.0, 900.0])
@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_rate_and_variation_are_those_asked_for(rate: float, burstiness: float) -> None:
    count = 40_001
    gaps_s = np.diff(gamma(np.random.default_rng(7), count, rate, burstiness)) / 1e9
    variation = 1 / math.sqrt(burstiness)
    # Five standard errors of the mean of n gaps: cv / sqrt(n).
    assert gaps_s.mean() * rate == pytest.approx(1, abs=5 * variation / math.sqrt(count - 1))
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(variation, rel=0.05)


def test_poisson_is_gamma_of_burstiness_one_and_exponential() -> None:
    a = poisson(np.random.default_rng(3), 20_001, 10.0)
    assert np.array_equal(a, gamma(np.random.default_rng(3), 20_001, 10.0, 1.0))
    # P(gap > mean) = 1/e for an exponential.
    assert np.mean(np.diff(a) > 1e8) == pytest.approx(math.exp(-1), abs=0.015)


@given(st.integers(1, 500), rates)
def test_constant_is_exact_to_the_nanosecond(count: int, rate: float) -> None:
    arrival_ns = constant(np.random.default_rng(0), count, rate)
    k = count - 1
    assert abs(int(arrival_ns[k]) - k * 1e9 / rate) <= max(1, k * 1e9 / rate * 1e-15)
    assert len(set(np.diff(arrival_ns).tolist())) <= 2


def test_constant_at_three_a_second_has_no_drift() -> None:
    assert constant(np.random.default_rng(0), 7, 3.0).tolist() == [
        0, 333333333, 666666666, 1000000000, 1333333333, 1666666666, 2000000000,
    ]  # fmt: skip


@pytest.mark.parametrize("draw", [lambda rng: constant(rng, 5, 2.0), lambda rng: closed_loop(rng, 5, 2)])
def test_what_is_not_random_draws_nothing(draw: Callable[[np.random.Generator], object]) -> None:
    rng = np.random.default_rng(1)
    draw(rng)
    assert rng.random() == np.random.default_rng(1).random()


def test_all_at_once_and_closed_loop_are_zero() -> None:
    rng = np.random.default_rng(0)
    assert all_at_once(rng, 3).tolist() == closed_loop(rng, 3, concurrency=2).tolist() == [0, 0, 0]
    with pytest.raises(InputError, match="concurrency: 0"):
        closed_loop(rng, 3, concurrency=0)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    for process in (poisson, constant):
        with pytest.raises(InputError, match=r"rate: .* is not allowed"):
            process(np.random.default_rng(0), 3, rate)


def test_other_refusals_name_the_value() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InputError, match=r"burstiness: 0"):
        gamma(rng, 3, 1.0, 0.0)
    with pytest.raises(InputError, match=r"count: -1"):
        poisson(rng, -1, 1.0)
    with pytest.raises(InputError, match=r"1e-12 requests/s spreads 100 requests"):
        poisson(rng, 100, 1e-12)


POINTS = [(0.0, 2.0), (100.0, 2.0), (200.0, 12.0), (260.0, 4.0)]


def test_a_curve_has_as_many_requests_in_each_part_as_its_rate_says() -> None:
    sent = curve(np.random.default_rng(1), 10_000, POINTS) / 1e9
    assert sent[0] == 0 and np.all(np.diff(sent) >= 0)
    means = {(0, 100): 200, (100, 200): 700, (150, 200): 475, (200, 260): 480, (260, 1000): 4 * 740}
    for (begin, end), mean in means.items():
        found = np.count_nonzero((sent >= begin) & (sent < end))
        assert abs(found - mean) < 4 * mean**0.5, (begin, end)


def test_a_flat_curve_is_the_poisson_process() -> None:
    flat = curve(np.random.default_rng(2), 5000, [(0.0, 3.0), (50.0, 3.0)])
    assert np.abs(flat - poisson(np.random.default_rng(2), 5000, 3.0)).max() <= 5000


def test_a_longer_draw_of_a_curve_begins_with_the_shorter() -> None:
    short, long = (curve(np.random.default_rng(3), count, POINTS) for count in (500, 2000))
    assert short.tolist() == long[:500].tolist()
    assert curve(np.random.default_rng(3), 0, POINTS).tolist() == []
    assert curve(np.random.default_rng(3), 1, POINTS).tolist() == [0]
