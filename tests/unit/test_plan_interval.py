"""Intervals over seeds: Student's quantiles as they are printed, paired ratios, how often the truth is inside."""

from __future__ import annotations

import math

import numpy as np
import pytest

from blink.plan.interval import Interval, mean_interval, ratio_interval, student_t


@pytest.mark.parametrize(
    ("confidence", "degrees", "printed"),
    [(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 9, 2.262), (0.95, 30, 2.042), (0.99, 4, 4.604)],
)
def test_the_quantile_is_the_printed_one(confidence: float, degrees: int, printed: float) -> None:
    assert student_t(confidence, degrees) == pytest.approx(printed, abs=6e-4)


@pytest.mark.parametrize(("confidence", "degrees"), [(0.0, 3), (1.0, 3), (0.95, 0)])
def test_a_quantile_that_does_not_exist_is_refused(confidence: float, degrees: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        student_t(confidence, degrees)


def test_a_mean_has_its_interval() -> None:
    found = mean_interval([10.0, 12.0, 14.0])
    assert found is not None
    half = 4.302653 * 2.0 / math.sqrt(3)
    assert (found.estimate, found.low, found.high) == pytest.approx((12.0, 12.0 - half, 12.0 + half), rel=1e-6)


def test_one_seed_has_an_estimate_and_no_interval() -> None:
    assert mean_interval([7.0]) == Interval(7.0, None, None)
    one = ratio_interval([8.0], [4.0])
    assert one is not None
    assert (one.estimate, one.low, one.includes(1.0)) == (pytest.approx(2.0), None, None)


def test_seeds_without_a_value_are_left_out() -> None:
    assert mean_interval([None, 3.0]) == Interval(3.0, None, None)
    assert mean_interval([None, None]) is None
    assert ratio_interval([None, 1.0], [1.0, None]) is None
    assert ratio_interval([1.0, 2.0], [0.0, 0.0]) is None


def test_a_ratio_is_paired_and_turns_round() -> None:
    """Seeds differ ten-fold, the systems by 5 % in each: only the pairing sees it."""
    under = [1.0, 10.0, 4.0]
    over = [1.051, 10.49, 4.2]
    found, turned = ratio_interval(over, under), ratio_interval(under, over)
    assert found is not None
    assert turned is not None
    assert found.includes(1.0) is False
    assert found.low is not None
    assert turned.high is not None
    assert found.estimate * turned.estimate == pytest.approx(1.0)
    assert found.low * turned.high == pytest.approx(1.0)
    assert ratio_interval(under, under) == Interval(1.0, 1.0, 1.0)


def test_the_truth_is_inside_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    found = [mean_interval(row) for row in rng.normal(3.0, 2.0, (2000, 4)).tolist()]
    inside = sum(1 for interval in found if interval is not None and interval.includes(3.0))
    assert 0.93 < inside / len(found) < 0.97
