"""How far off a prediction is, what counts as met, and the figures of a run on made-up runs."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from blink.common.results import Outcome, RunResult
from blink.common.units import NS_PER_S
from blink.plan.reproduce import testbed, words
from blink.plan.reproduce.carry_out import predictions
from blink.plan.reproduce.disturbed import DISTURBED
from blink.plan.reproduce.evidence import Evidence, NoEvidenceError
from blink.plan.reproduce.facts import CALIBRATED, PREDICTED, Fact, Quantity, Reason, load_facts
from blink.plan.reproduce.loaded import LOADED
from blink.plan.reproduce.predict import Prediction, gathered, not_modelled, one
from blink.plan.reproduce.verdict import judge, relative_error, totals
from blink.plan.reproduce.window import Figures, figures
from tests.runs import made_up_run, request_columns

VALUE = Quantity("value", "ms", 100.0, 100.0)
RANGE = Quantity("value", "ratio", 2.0, 4.0)
BOUND = Quantity("value", "change", -math.inf, 0.04)


def fact(quantity: Quantity, use: str = PREDICTED) -> Fact:
    """A fact of one quantity."""
    return Fact("made.up", "made up", None, None, (quantity,), {quantity.name: use})


@pytest.mark.parametrize(
    ("quantity", "value", "error"),
    [
        (VALUE, 90.0, -0.1),
        (VALUE, 100.0, 0.0),
        (RANGE, 2.0, 0.0),
        (RANGE, 3.1, 0.0),
        (RANGE, 1.0, -0.5),
        (RANGE, 5.0, 0.25),
        (RANGE, 4.01, 0.0),  # 0.25 %: the published end is rounded
        (BOUND, -3.0, 0.0),
        (BOUND, 0.06, 0.5),
        (Quantity("value", "change", 0.0, 0.5), -0.1, -0.2),
    ],
)
def test_errors_are_relative_to_the_nearest_end(quantity: Quantity, value: float, error: float) -> None:
    assert relative_error(quantity, value) == pytest.approx(error)


def test_the_worst_value_decides() -> None:
    (verdict,) = judge(fact(RANGE), {"value": Prediction({"a": 3.0, "b": 6.0, "c": 1.8})}, ())
    assert verdict.error == pytest.approx(0.5)
    assert not verdict.meets
    assert words.predicted(verdict) == "1.8 to 6"


@pytest.mark.parametrize(("use", "value", "meets"), [(PREDICTED, 120.0, True), (CALIBRATED, 120.0, False)])
def test_calibrated_facts_are_held_to_less(use: str, value: float, meets: bool) -> None:
    (verdict,) = judge(fact(VALUE, use), {"value": one(value)}, ())
    assert verdict.meets is meets


def test_a_reason_is_given_for_a_miss_of_its_sign_alone() -> None:
    low = Reason("made.up", "value", "low", "too little")
    texts = [judge(fact(VALUE), {"value": one(value)}, [low])[0].reason for value in (10.0, 99.0, 1000.0)]
    assert texts == ["too little", "", ""]


def test_a_fact_is_met_if_each_of_its_quantities_is_and_what_is_not_modelled_is_counted_apart() -> None:
    pair = replace(RANGE, name="other")
    both = Fact("both", "", None, None, (VALUE, pair), {"value": PREDICTED, "other": PREDICTED})
    verdicts = judge(both, {"value": one(100.0), "other": one(9.0)}, ())
    verdicts += judge(fact(VALUE), {"value": not_modelled("no such part")}, ())
    verdicts += judge(fact(RANGE), {"value": Prediction(absent="not run")}, ())
    sums = totals(verdicts)
    assert (sums.predicted_facts.met, sums.predicted_facts.count) == (0, 2)
    assert (sums.predicted_quantities.met, sums.predicted_quantities.count) == (1, 3)
    assert sums.not_modelled == 1


def test_labels_without_evidence_are_named_once() -> None:
    def value(label: str) -> float:
        if label == "b":
            return 2.0
        raise NoEvidenceError("not run")

    found = gathered(("a", "b", "c"), value, "over all")
    assert found.values == {"b": 2.0}
    assert found.note == "over all; not run"


def timed_run(ends_s: list[tuple[float, float, float, int]]) -> RunResult:
    """A run of completed requests, each (sent, first token, last token, tokens)."""
    rows = request_columns(len(ends_s))
    for row, (sent, first, last, tokens) in enumerate(ends_s):
        for name, at in (("sent_ns", sent), ("first_token_ns", first), ("last_token_ns", last)):
            rows[name][row] = round(at * NS_PER_S)
        rows["output_tokens"][row], rows["prompt_tokens"][row] = tokens, 100
        rows["outcome"][row] = Outcome.COMPLETED
    return replace(made_up_run(), requests=rows, duration_ns=20 * NS_PER_S)


def test_only_requests_that_are_complete_in_time_count() -> None:
    result = timed_run([(0.0, 0.5, 4.5, 41), (1.0, 2.0, 12.0, 101)])
    found = figures(result, 10 * NS_PER_S, 2 * NS_PER_S, 142)
    assert found["completed"] == 1
    assert found["output_tokens"] == 41
    assert found["p99_ttft_ms"] == 500
    assert found["p50_tpot_ms"] == pytest.approx(100)
    assert found["p50_tpot_e2e_ms"] == pytest.approx(4500 / 41, abs=1e-3)
    # Between 2 s and 10 s: 25 of the first request's 41 tokens, 80 of the other's 101.
    assert found["delivered_tokens"] == 25 + 80
    assert found["steady_seconds"] == 8
    assert found["asked_tokens"] == 142


def test_percentiles_per_token_weigh_requests_by_their_tokens() -> None:
    short, long = (0.0, 1.0, 1.0, 1), (0.0, 1.0, 9.9, 99)
    found = figures(timed_run([short, long]), None)
    assert found["p50_tpot_e2e_ms"] == 100
    assert found["p90_tpot_e2e_ms"] == 100


def made_up_evidence(tokens_s: float = 1000.0) -> Evidence:
    """Every point of the load curves: a system delivers what is asked up to `tokens_s`, engines half of it disturbed.

    Requests ask for 100 tokens each. TTFT is 100 ms for Blink, 200 for the others and ten times that beside other jobs.
    """
    bed = testbed.Testbed.load(seeds=2)
    runs = {}
    for model, system, condition, rate in product(bed.models, bed.systems, testbed.LEVELS, bed.rates):
        slow = system != "blink" and condition == "interfered"
        given = min(100.0 * rate, tokens_s / 2 if slow else tokens_s)
        ttft = (100.0 if system == "blink" else 200.0) * (10.0 if slow else 1.0)
        one_seed: Figures = dict.fromkeys(("p99_ttft_ms", "mean_ttft_ms", "p50_ttft_ms"), ttft)
        one_seed |= dict.fromkeys(("p99_tpot_e2e_ms", "mean_tpot_e2e_ms", "p999_tpot_e2e_ms", "p999_ttft_ms"), ttft)
        one_seed |= {"seconds": 10.0, "output_tokens": 10 * given, "prompt_tokens": 20 * given, "wall_w": 1000.0}
        one_seed |= {"steady_seconds": 5.0, "delivered_tokens": 5 * given, "requests": 10 * rate}
        one_seed |= {"asked_tokens": 1000 * rate}
        runs["load", model, system, condition, f"{rate:g}"] = [one_seed, one_seed]
    return Evidence(bed, runs)


def test_saturation_is_where_95_percent_of_the_offered_load_is_no_longer_given() -> None:
    found = made_up_evidence()
    assert found.serviceable("phi-4", "blink", "isolated") == 10
    assert found.serviceable("phi-4", "vllm", "interfered") == 5
    assert found.before_saturation("phi-4", "isolated") == [1, 2, 3, 4, 5, 6, 7, 8, 10]
    assert found.plateau("phi-4", "vllm", "interfered") == 500
    with pytest.raises(NoEvidenceError, match="saturated at every rate"):
        made_up_evidence(50.0).before_saturation("phi-4", "isolated")


def test_ratios_are_over_blink_and_inflations_over_the_undisturbed_host() -> None:
    found = made_up_evidence()
    assert found.over_blink("phi-4", "p99_ttft_ms") == pytest.approx({"trtllm": 2.0, "vllm": 2.0, "sglang": 2.0})
    evaluated = DISTURBED["interfered.llama3_8b.baselines"].evaluate(found)
    assert evaluated["ttft"].values["vllm"] == pytest.approx(10.0)
    assert evaluated["serviceable_load_lost"].values["sglang"] == pytest.approx(0.5)
    # 1 to 5 requests/s are served, 6, 7, 8 and 10 are cut to 5.
    expected = np.prod([5 / 6, 5 / 7, 5 / 8, 5 / 10]) ** (1 / 9)
    assert evaluated["throughput_retained"].values["trtllm"] == pytest.approx(expected)


def test_blink_that_does_not_change_is_inside() -> None:
    evaluated = DISTURBED["interfered.blink"].evaluate(made_up_evidence())
    assert max(evaluated["ttft_tpot_throughput_change_max"].values.values()) == 0
    assert set(evaluated["energy_change_max"].values) == {"llama-3-8b", "phi-4", "qwen3-32b", "qwen3-30b-a3b"}


def test_energy_is_power_over_throughput_at_the_plateau() -> None:
    evaluated = LOADED["isolated.energy_mj_per_token.blink"].evaluate(made_up_evidence())
    assert evaluated["value"].values["phi-4"] == pytest.approx(1000.0)
    assert evaluated["below_best_engine"].values["phi-4"] == pytest.approx(0.0)


def test_a_point_that_was_not_run_is_no_evidence() -> None:
    with pytest.raises(NoEvidenceError, match="was not run"):
        Evidence(testbed.Testbed.load(), {}).figure(("makespan", "blink", "16"), "makespan_s")


def test_numbers_are_written_with_three_digits() -> None:
    assert [words.figure(value) for value in (0, 12.0, 7697, 0.0716, 1.3456, 1234.5)] == [
        "0",
        "12",
        "7,697",
        "0.0716",
        "1.35",
        "1,234",
    ]
    assert words.published(BOUND) == "at most 0.04"
    assert words.published(VALUE) == "100 ms"


def test_latencies_of_a_run_without_completed_requests_are_none() -> None:
    result = made_up_run()
    result.requests["outcome"][:] = Outcome.UNFINISHED
    found = figures(result, 5 * NS_PER_S)
    assert found["p99_ttft_ms"] is None
    assert found["output_tokens"] == 0


@pytest.mark.parametrize("kept", [0, 1, 2, 50, 200])
def test_a_stopped_run_is_evaluated_as_far_as_it_goes(kept: int) -> None:
    whole = made_up_evidence()
    found = Evidence(whole.bed, dict(list(whole.runs.items())[:kept]))
    for one_fact in load_facts():
        predicted = predictions(one_fact, found)
        assert set(predicted) == {quantity.name for quantity in one_fact.quantities}
        for prediction in predicted.values():
            assert prediction.values or prediction.absent
