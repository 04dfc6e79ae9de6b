"""Length distributions: the bounds and means asked for, after truncation; the fit behind sharegpt-like."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common.errors import InputError
from blink.workload.lengths import fixed, in_order, lognormal, resampled, sharegpt_like, uniform
from blink.workload.lengths_profile import LengthsProfile
from blink.workload.lognormal import TruncatedLogNormal, sigma_from_cv, truncated_mean
from blink.workload.reader import read_trace
from blink.workload.requests import synthetic
from tests.shared import shared_path

SAMPLE = "traces/measured/sharegpt-llama-3.1-8b-300-sps10.lengths.csv"


def test_fixed() -> None:
    prompt, output = fixed(np.random.default_rng(0), 3, 10, 2)
    assert prompt.tolist() == [10, 10, 10] and output.tolist() == [2, 2, 2]
    with pytest.raises(InputError, match=r"output_tokens: 0\.\.0"):
        fixed(np.random.default_rng(0), 3, 10, 0)


def test_uniform_reaches_both_bounds_evenly() -> None:
    prompt, output = uniform(np.random.default_rng(0), 30_000, (3, 5), (1, 1))
    values, counts = np.unique(prompt, return_counts=True)
    assert values.tolist() == [3, 4, 5] and np.all(np.abs(counts - 10_000) < 400)
    assert set(output.tolist()) == {1}
    with pytest.raises(InputError, match=r"prompt_tokens: 6\.\.5"):
        uniform(np.random.default_rng(0), 1, (6, 5), (1, 1))


def test_sharegpt_like_has_the_published_means_after_truncation() -> None:
    prompt, output = sharegpt_like(np.random.default_rng(11), 50_000)
    assert prompt.mean() == pytest.approx(1019, rel=0.02)
    assert output.mean() == pytest.approx(463, rel=0.02)
    assert prompt.min() >= 4 and prompt.max() <= 8192
    assert output.min() >= 4 and output.max() <= 2048
    assert abs(np.corrcoef(prompt, output)[0, 1]) < 0.02


def test_lengths_repeat_and_a_longer_run_begins_with_the_shorter_one() -> None:
    short, again, long = (sharegpt_like(np.random.default_rng(5), n) for n in (50, 50, 100))
    for side in (0, 1):
        assert np.array_equal(short[side], again[side])
        assert np.array_equal(short[side], long[side][:50])


@given(st.floats(0.1, 1.5), st.integers(1, 50), st.integers(500, 20_000), st.floats(0.05, 0.4))
def test_the_solved_mean_is_the_mean_of_the_whole_distribution(
    sigma: float, minimum: int, maximum: int, place: float
) -> None:
    mean = minimum + place * (maximum - minimum)
    try:
        shape = TruncatedLogNormal(mean, sigma, minimum, maximum)
    except InputError as refusal:
        assert "reach" in str(refusal)
        return
    assert truncated_mean(shape.mu, sigma, minimum, maximum) == pytest.approx(mean, rel=1e-9)
    # The midpoints of 20,000 equal shares stand for the distribution itself, drawn by another route than the formula.
    lengths = shape.quantile((np.arange(20_000) + 0.5) / 20_000)
    assert np.all(np.diff(lengths) >= 0)
    assert minimum <= lengths[0] and lengths[-1] <= maximum
    assert lengths.mean() == pytest.approx(mean, rel=0.005, abs=0.05)


def test_quantile_keeps_the_extremes_inside_the_bounds() -> None:
    shape = TruncatedLogNormal(100.0, 0.2, 1, 100_000)
    extremes = shape.quantile(np.array([0.0, np.nextafter(1.0, 0.0)]))
    assert 1 <= extremes[0] < 100 < extremes[1] <= 100_000


@pytest.mark.parametrize(
    ("mean", "sigma", "minimum", "maximum", "says"),
    [
        (100.0, 0.5, 0, 10, "bounds 0..10"),
        (100.0, 0.5, 10, 10, "bounds 10..10"),
        (100.0, 0.0, 1, 1000, "sigma 0.0"),
        (100.0, math.nan, 1, 1000, "sigma nan"),
        (1000.0, 0.5, 1, 1000, "mean 1000.0 is not between"),
        (math.nan, 0.5, 1, 1000, "mean nan is not between"),
        (999.0, 0.5, 1, 1000, "mean 999.0 cannot be reached .* reachable: "),
        (11.0, 1000.0, 10, 12, "sigma 1000.0 is too wide"),
    ],
)
def test_impossible_shapes_are_refused(mean: float, sigma: float, minimum: int, maximum: int, says: str) -> None:
    with pytest.raises(InputError, match=says):
        TruncatedLogNormal(mean, sigma, minimum, maximum)


def test_sigma_from_cv_is_that_of_a_log_normal() -> None:
    sigma = sigma_from_cv(0.8)
    drawn = np.random.default_rng(0).lognormal(0, sigma, 400_000)
    assert drawn.std() / drawn.mean() == pytest.approx(0.8, rel=0.02)
    with pytest.raises(InputError, match="cv -1"):
        sigma_from_cv(-1)


def test_lengths_of_a_file_in_order_and_resampled() -> None:
    source = synthetic(np.zeros(3, np.int64), np.array([10, 20, 30]), np.array([1, 2, 3]))
    rng = np.random.default_rng(0)
    assert [side.tolist() for side in in_order(rng, 2, source)] == [[10, 20], [1, 2]]
    prompt, output = resampled(rng, 500, source)
    assert np.array_equal(prompt, output * 10) and set(output.tolist()) == {1, 2, 3}
    with pytest.raises(InputError, match="4 lengths asked of 3"):
        in_order(rng, 4, source)
    with pytest.raises(InputError, match="no lengths to sample from"):
        resampled(rng, 1, synthetic(*(np.zeros(0, np.int64),) * 3))


def test_the_prompt_sigma_is_the_likeliest_for_the_sample_it_was_fitted_to() -> None:
    logs = np.log(read_trace(shared_path(SAMPLE)).prompt_tokens)
    cut = math.log(255.5)

    def log_likelihood(mu: float, sigma: float) -> float:
        inside = math.erfc((cut - mu) / sigma / math.sqrt(2)) / 2
        return -float(((logs - mu) ** 2).sum()) / (2 * sigma**2) - len(logs) * math.log(sigma * inside)

    fits = {
        round(sigma, 2): max(log_likelihood(mu, sigma) for mu in np.arange(5.5, 7.0, 0.005))
        for sigma in np.arange(0.4, 1.0, 0.01)
    }
    stated = LengthsProfile.load("sharegpt-like").prompt_tokens.sigma
    best = max(fits, key=lambda sigma: fits[sigma])
    assert stated == pytest.approx(best, abs=0.011)
    likely = [sigma for sigma, value in fits.items() if value > fits[best] - 1.92]
    assert (min(likely), max(likely)) == (0.56, 0.69)


def test_the_output_sigma_is_that_of_the_trace_it_was_borrowed_from() -> None:
    outputs = read_trace(shared_path("traces/AzureLLMInferenceTrace_conv.csv")).output_tokens
    stated = LengthsProfile.load("sharegpt-like").output_tokens.sigma
    assert stated == pytest.approx(sigma_from_cv(outputs.std() / outputs.mean()), abs=0.005)


def test_lognormal_takes_the_two_sides_from_separate_numbers() -> None:
    shape = TruncatedLogNormal(100.0, 0.5, 1, 1000)
    prompt, output = lognormal(np.random.default_rng(0), 2_000, shape, shape)
    assert abs(np.corrcoef(prompt, output)[0, 1]) < 0.08
    assert prompt.mean() == pytest.approx(output.mean(), rel=0.1)
