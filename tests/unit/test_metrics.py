"""Every measure against a second, slower way to compute it."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common import metrics
from blink.common.distribution import PERCENTILES, Distribution
from blink.common.results import Outcome, SchedulerCounters, WeightedValues
from blink.common.summary import limited_by, refusal_reasons, summarize
from blink.common.units import NS_PER_MS, NS_PER_S
from tests.runs import made_up_run, request_columns

TIMES = st.integers(0, 10**15)
WEIGHTED = st.lists(st.tuples(TIMES, st.integers(0, 50)), min_size=1, max_size=40).filter(
    lambda pairs: any(weight for _, weight in pairs)
)


def weighted(pairs: list[tuple[int, int]]) -> WeightedValues:
    values, weights = zip(*pairs, strict=True)
    return WeightedValues(np.array(values, dtype=np.int64), np.array(weights, dtype=np.int64))


@given(st.lists(TIMES, min_size=1, max_size=60), st.integers(0, 1000))
def test_percentiles_interpolate_as_numpy_does(samples: list[int], thousandths: int) -> None:
    got = Distribution.of(np.array(samples, dtype=np.int64)).percentile(thousandths)
    assert got == pytest.approx(np.percentile(samples, thousandths / 10), rel=1e-12, abs=1e-9)


@given(WEIGHTED, st.integers(0, 1000))
def test_weights_give_exactly_what_the_expanded_samples_give(pairs: list[tuple[int, int]], thousandths: int) -> None:
    values = weighted(pairs)
    expanded = Distribution.of(np.repeat(values.values, values.weights))
    compact = Distribution.of_weighted(values)
    assert compact.count == expanded.count
    assert compact.percentile(thousandths) == expanded.percentile(thousandths)
    assert (compact.mean(), compact.std(), compact.maximum()) == (expanded.mean(), expanded.std(), expanded.maximum())


@given(WEIGHTED)
def test_mean_and_deviation_are_the_exact_ones_rounded_once(pairs: list[tuple[int, int]]) -> None:
    samples = [value for value, weight in pairs for _ in range(weight)]
    mean = Fraction(sum(samples), len(samples))
    variance = sum((sample - mean) ** 2 for sample in samples) / len(samples)
    distribution = Distribution.of_weighted(weighted(pairs))
    assert distribution.mean() == float(mean)
    assert distribution.std() == math.sqrt(float(variance))


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=60), st.randoms())
def test_floats_do_not_depend_on_their_order(samples: list[float], random: object) -> None:
    shuffled = list(samples)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    one, other = Distribution.of(np.array(samples)), Distribution.of(np.array(shuffled))
    assert (one.mean(), one.std(), one.percentile(990)) == (other.mean(), other.std(), other.percentile(990))
    assert one.mean() == pytest.approx(np.mean(samples))
    assert one.std() == pytest.approx(np.std(samples), abs=1e-3)
    assert one.percentile(990) == pytest.approx(np.percentile(samples, 99))


def test_without_samples_nothing_is_claimed() -> None:
    empty = Distribution.of(np.array([], dtype=np.int64))
    assert (empty.count, empty.mean(), empty.std(), empty.percentile(500), empty.maximum()) == (
        0,
        None,
        None,
        None,
        None,
    )


def test_negative_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="a weight is -1"):
        Distribution.of_weighted(weighted([(5, -1)]))


def two_requests() -> dict[str, np.ndarray]:
    rows = request_columns(3)
    rows["outcome"][:] = [Outcome.COMPLETED, Outcome.COMPLETED, Outcome.CANCELLED]
    rows["sent_ns"][:] = [0, 10, 20]
    rows["first_token_ns"][:] = [100, 60, 90]
    rows["last_token_ns"][:] = [400, 60, 500]
    rows["output_tokens"][:] = [4, 1, 7]
    return rows


def test_latencies_of_a_request_by_hand() -> None:
    done = metrics.completed(two_requests())
    assert metrics.ttft_ns(done).tolist() == [100, 50]
    assert metrics.tpot_ns(done).tolist() == [100.0]  # the request of one token has no TPOT
    assert metrics.e2e_ns(done).tolist() == [400, 50]


def test_throughput_needs_a_duration() -> None:
    assert metrics.per_second(3, 2 * NS_PER_S) == 1.5
    assert metrics.per_second(3, 0) is None


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (metrics.Slo(ttft_ms=100 / NS_PER_MS), 2),
        (metrics.Slo(ttft_ms=99 / NS_PER_MS), 1),
        (metrics.Slo(tpot_ms=100 / NS_PER_MS), 2),
        (metrics.Slo(tpot_ms=99 / NS_PER_MS), 1),
        (metrics.Slo(e2e_ms=49 / NS_PER_MS), 0),
        (metrics.Slo(ttft_ms=100 / NS_PER_MS, e2e_ms=399 / NS_PER_MS), 1),
    ],
)
def test_goodput_counts_completed_requests_that_keep_every_bound(slo: metrics.Slo, good: int) -> None:
    assert metrics.goodput(two_requests(), slo, NS_PER_S) == good


def test_without_an_objective_there_is_no_goodput() -> None:
    assert metrics.goodput(two_requests(), metrics.Slo(), NS_PER_S) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=20))
def test_concurrency_is_the_deepest_overlap(spans: list[tuple[int, int]]) -> None:
    rows = request_columns(len(spans))
    rows["outcome"][:] = Outcome.COMPLETED
    rows["sent_ns"][:] = [start for start, _ in spans]
    rows["last_token_ns"][:] = [start + length for start, length in spans]
    deepest = max(sum(start <= moment < start + length for start, length in spans) for moment in range(101))
    assert metrics.concurrent_max(rows) == deepest


def test_unfinished_requests_stay_under_way_and_refused_ones_never_were() -> None:
    rows = two_requests()
    rows["outcome"][:] = [Outcome.UNFINISHED, Outcome.REFUSED, Outcome.COMPLETED]
    rows["sent_ns"][:] = [0, 10, 450]
    assert metrics.concurrent_max(rows) == 2


def test_parts_of_ttft_add_up() -> None:
    metrics.assert_ttft_parts(made_up_run())


def test_a_missing_nanosecond_of_ttft_is_found() -> None:
    run = made_up_run()
    run.requests["prefill_ns"][0] += 1
    with pytest.raises(AssertionError, match="request 0: parts sum to"):
        metrics.assert_ttft_parts(run)


def test_a_negative_part_of_ttft_is_found() -> None:
    run = made_up_run()
    run.requests["read_ns"][0] = -5
    with pytest.raises(AssertionError, match="request 0: read_ns is -5, below 0"):
        metrics.assert_ttft_parts(run)


def test_the_summary_has_the_benchmark_names_and_no_clock() -> None:
    run = made_up_run()
    summary = summarize(run)
    done = metrics.completed(run.requests)
    assert summary["num_prompts"] == 200
    assert summary["request_rate"] == 8.0
    assert summary["burstiness"] == 1.0
    assert summary["completed"] == len(done["sent_ns"])
    assert summary["completed"] + summary["failed"] == 200
    assert summary["total_output_tokens"] == int(done["output_tokens"].sum())
    assert summary["request_throughput"] == pytest.approx(summary["completed"] / summary["duration"])
    assert summary["total_token_throughput"] == pytest.approx(
        (summary["total_input_tokens"] + summary["total_output_tokens"]) / summary["duration"]
    )
    assert 0 < summary["request_goodput"] < summary["request_throughput"]
    for name in ("ttft", "tpot", "itl", "e2el"):
        for figure in ("mean", "median", "std", *PERCENTILES):
            assert isinstance(summary[f"{figure}_{name}_ms"], float)
        assert summary[f"median_{name}_ms"] == summary[f"p50_{name}_ms"]
    assert summary["p999_itl_ms"] == 40.0
    assert "date" not in summary
    assert json.dumps(summary) == json.dumps(summarize(made_up_run()))


def test_the_summary_says_what_became_of_every_request() -> None:
    run = made_up_run()
    blink = summarize(run)["blink"]
    assert sum(blink["outcomes"].values()) == 200
    assert sum(blink["refusals"].values()) == blink["outcomes"]["refused"] == len(run.refusals) > 0
    assert sum(blink["ttft_parts_mean_ms"].values()) == pytest.approx(summarize(run)["mean_ttft_ms"])
    assert blink["batch"] == {"mean": 16.0, "max": 29, "limit": 128, "share": 0.125}
    assert blink["kv_blocks"]["mean"] == 900.0
    assert blink["padding_share"] == {"decode_rows": 5000 / 65_000, "prefill_tokens": 30_000 / 230_000}
    assert blink["limited_by"]["name"] == "kv"
    assert blink["limited_by"]["sentence"] == "Requests waited for KV blocks during 20% of the run."


def test_reasons_that_differ_in_a_number_are_one() -> None:
    reasons = ["prompt of 9000 tokens, 8192 fit", "prompt of 8200 tokens, 8192 fit", "queue full"]
    assert refusal_reasons(reasons) == {"prompt of 8200 to 9000 tokens, 8192 fit": 2, "queue full": 1}
    assert refusal_reasons(["a 1", "a 1"]) == {"a 1": 2}


def test_an_empty_run_has_a_summary() -> None:
    run = made_up_run(0)
    summary = summarize(run)
    assert summary["completed"] == summary["max_concurrent_requests"] == 0
    assert summary["mean_ttft_ms"] is summary["request_throughput"] is summary["blink"]["batch"]["mean"] is None
    json.dumps(summary, allow_nan=False)


def test_waits_below_one_percent_limit_nothing() -> None:
    found = limited_by(SchedulerCounters(wait_slot_ns=9), 1000)
    assert found["name"] is None
    assert limited_by(SchedulerCounters(wait_slot_ns=10), 1000)["name"] == "slot"
