"""Replicas that fail, warm up, come and go with the load; and prompts and tokens on separate replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blink.common.config import Scenario, parse_scenario
from blink.common.errors import InputError
from blink.common.results import Outcome, RunResult
from blink.common.units import NS_PER_S
from blink.sim.run import simulate
from blink.workload.build import build_load


def scenario(kind: str = "blink", **more: Any) -> Scenario:
    document: dict[str, Any] = {
        "name": "life",
        "seed": 3,
        "system": {"kind": kind},
        "model": {"profile": "llama-3-8b"},
        "gpu": {"profile": "h100-96gb"},
        "workload": {
            "requests": 120,
            "arrivals": {"kind": "poisson", "rate": 10.0},
            "lengths": {"kind": "uniform", "prompt_tokens": [100, 1500], "output_tokens": [1, 120]},
        },
    }
    return parse_scenario({**document, **more}, "test")


def run(of: Scenario) -> RunResult:
    return simulate(*build_load(of))


def fleet(kind: str = "blink", **table: Any) -> RunResult:
    return run(scenario(kind, fleet=table))


def outcomes(result: RunResult) -> dict[str, int]:
    counts = {one.label: int(np.count_nonzero(result.requests["outcome"] == one)) for one in Outcome}
    return {label: count for label, count in counts.items() if count}


# --- warm-up ---


def test_a_cold_fleet_serves_its_first_token_after_its_warm_up_and_not_before() -> None:
    cold = fleet(replicas=2, cold_start=True, warm_up_s=20.0)
    assert outcomes(cold) == {"completed": 120}
    assert cold.requests["first_token_ns"].min() > 20 * NS_PER_S
    warm = fleet(replicas=2, cold_start=True, warm_up_s=0.0)
    assert all(np.array_equal(column, fleet(replicas=2).requests[name]) for name, column in warm.requests.items())


def test_a_larger_model_takes_longer_to_warm_up() -> None:
    def first_s(model: str, ways: int) -> float:
        found = run(
            scenario(
                model={"profile": model},
                gpu={"profile": "h200", "tensor_parallel": ways},
                fleet={"replicas": 1, "cold_start": True},
            )
        )
        return float(found.requests["first_token_ns"].min() / NS_PER_S)

    small, large = first_s("llama-3-8b", 1), first_s("llama-3-70b", 4)
    assert 12 < small < large  # start and graphs are alike, a GPU's weights 16 and 35 GB at 2 GB/s
    assert large - small == pytest.approx((141.1 / 4 - 16.06) / 2, rel=0.3)


# --- failures ---


@pytest.mark.parametrize("kind", ["blink", "vllm"])
def test_what_a_failed_replica_had_is_served_again_by_another_one(kind: str) -> None:
    failures = {"outages": [{"replica": 0, "at_s": 5.0}], "detect_s": 1.0, "repair_s": 2.0}
    calm, struck = fleet(kind, replicas=2), fleet(kind, replicas=2, warm_up_s=3.0, failures=failures)
    assert outcomes(struck) == {"completed": 120}
    assert struck.fleet["failures"] == 1
    assert struck.fleet["retries"] > 0
    assert struck.requests["ttft_ns"].max() > NS_PER_S  # who was on it waits until it is noticed
    assert struck.requests["ttft_ns"].max() > calm.requests["ttft_ns"].max()
    states = [(one["index"], one["state"]) for one in struck.fleet["replicas"]]
    assert states == [(0, "lost"), (1, "ready"), (0, "ready")]
    assert np.array_equal(struck.requests["output_tokens"], calm.requests["output_tokens"])


def test_what_a_failed_replica_had_may_be_given_up_instead() -> None:
    failures = {"outages": [{"replica": 0, "at_s": 5.0}], "detect_s": 1.0, "lost": "fail"}
    struck = fleet(replicas=2, failures=failures)
    assert struck.fleet["given_up"] == outcomes(struck)["failed"] > 0
    assert struck.fleet["retries"] == 0


def test_the_only_replica_fails_and_all_wait_for_the_next() -> None:
    failures = {"outages": [{"replica": 0, "at_s": 2.0}], "detect_s": 0.5, "repair_s": 1.0}
    struck = fleet(replicas=1, warm_up_s=4.0, failures=failures)
    assert outcomes(struck) == {"completed": 120}
    first = struck.requests["first_token_ns"]
    dead = (first > 2.1 * NS_PER_S) & (first < 7.5 * NS_PER_S)
    assert not np.any(dead), "nobody gets a token between the failure and the end of the warm-up"


def test_failures_by_chance_are_the_same_every_time_and_rarer_with_a_longer_mean() -> None:
    def count(mtbf_s: float) -> int:
        failures = {"mtbf_s": mtbf_s, "detect_s": 0.1, "repair_s": 0.1}
        first, again = (fleet(replicas=3, warm_up_s=0.1, failures=failures) for _ in range(2))
        assert all(np.array_equal(column, again.requests[name]) for name, column in first.requests.items())
        assert outcomes(first) == {"completed": 120}
        return int(first.fleet["failures"])

    assert count(3.0) > count(30.0) >= count(1e9) == 0


# --- autoscaling ---


def test_replicas_come_with_the_load_after_their_lag_and_go_when_it_is_over() -> None:
    load = {
        "requests": 500,
        "arrivals": {"kind": "poisson", "rate": 25.0},
        "lengths": {"kind": "fixed", "prompt_tokens": 800, "output_tokens": 150},
    }
    scale = {"replicas_max": 4, "target": 16.0, "interval_s": 1.0, "lag_s": 2.0, "down_after_s": 3.0}
    found = run(scenario(workload=load, fleet={"replicas": 1, "warm_up_s": 1.0, "autoscale": scale}))
    fixed = run(scenario(workload=load, fleet={"replicas": 1}))
    many = run(scenario(workload=load, fleet={"replicas": 4}))
    assert outcomes(found) == {"completed": 500}
    assert 1 <= found.fleet["started"] <= 5
    p99 = [float(np.percentile(one.requests["e2e_ns"], 99)) for one in (many, found, fixed)]
    assert p99[0] < p99[1] < p99[2]
    # It is paid for what was there: more than one replica, less than four.
    mean = found.replica_ns / found.duration_ns
    assert 1.1 < mean < 4
    assert found.accounts["cost_usd"] < many.accounts["cost_usd"] * found.duration_ns / many.duration_ns
    late = sorted(one["paid_s"] for one in found.fleet["replicas"])[0]
    assert late <= found.duration_ns / NS_PER_S - 3.0  # an interval and the lag at least


def test_a_target_that_is_never_reached_leaves_the_fleet_as_it_is() -> None:
    scale = {"replicas_min": 2, "replicas_max": 5, "target": 1e6}
    scaled, plain = fleet(replicas=2, autoscale=scale), fleet(replicas=2)
    assert all(np.array_equal(column, scaled.requests[name]) for name, column in plain.requests.items())
    assert (scaled.fleet["started"], scaled.fleet["drained"]) == (0, 0)


# --- separate prefill and decode ---


@pytest.mark.parametrize("kind", ["blink", "cpu-resident", "vllm", "sglang", "trtllm"])
def test_prompts_and_tokens_on_separate_replicas_serve_everything(kind: str) -> None:
    both, apart = fleet(kind, replicas=2), fleet(kind, replicas=2, prefill_replicas=1)
    assert outcomes(apart) == {"completed": 120}
    assert np.array_equal(apart.requests["output_tokens"], both.requests["output_tokens"])
    more = int(np.count_nonzero(apart.requests["output_tokens"] > 1))
    assert apart.fleet["handovers"] == more
    # Prompts are computed once; the other replica computes one token of each that goes on.
    assert apart.scheduler.prefill_tokens == int(apart.requests["prompt_tokens"].sum()) + more
    # What decodes is no longer interrupted by whole prompts.
    assert np.all(apart.requests["last_token_ns"] >= apart.requests["first_token_ns"])


def test_keys_and_values_take_the_time_of_their_bytes_over_the_fabric() -> None:
    load = {
        "requests": 1,
        "arrivals": {"kind": "all-at-once"},
        "lengths": {"kind": "fixed", "prompt_tokens": 4000, "output_tokens": 2},
    }
    found = run(scenario(workload=load, fleet={"replicas": 2, "prefill_replicas": 1}))
    size = 4000 * 131_072
    assert found.fleet["handover_bytes"] == size
    assert found.fleet["handover_ns"] == pytest.approx(size / 4.8e10 * 1e9, abs=1)
    gap = found.requests["last_token_ns"][0] - found.requests["first_token_ns"][0]
    assert gap > found.fleet["handover_ns"] + 6_000_000  # and a step that reads the weights
    assert found.itl.values[0] == gap


def test_separate_replicas_spare_what_decodes_the_prompts() -> None:
    load = {
        "requests": 80,
        "arrivals": {"kind": "poisson", "rate": 8.0},
        "lengths": {"kind": "fixed", "prompt_tokens": 3000, "output_tokens": 60},
    }
    both = run(scenario(workload=load, fleet={"replicas": 2}))
    apart = run(scenario(workload=load, fleet={"replicas": 2, "prefill_replicas": 1}))

    def long_gaps(result: RunResult) -> int:
        return int(result.itl.weights[result.itl.values > 45_000_000].sum())

    assert long_gaps(both) > 20, "a prompt takes 70 ms, and what decodes beside it waits"
    assert long_gaps(apart) == 0


def test_clients_that_leave_on_the_way_are_nobodys_any_more() -> None:
    load = {**scenario().resolved()["workload"], "cancel": {"fraction": 0.6, "after_s": 0.2}}
    for table in (
        {"replicas": 2, "prefill_replicas": 1},
        {"replicas": 2, "warm_up_s": 1.0, "failures": {"mtbf_s": 9.0, "repair_s": 1.0}},
    ):
        found = run(scenario(workload=load, fleet=table))
        assert set(outcomes(found)) == {"completed", "cancelled"}
        assert sum(outcomes(found).values()) == 120


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"replicas": 2, "prefill_replicas": 2}, "others decode"),
        ({"replicas": 3, "autoscale": {"replicas_max": 2, "target": 1.0}}, "must lie within"),
        ({"replicas": 2, "prefill_replicas": 1, "autoscale": {"replicas_max": 2, "target": 1.0}}, "not allowed with"),
        ({"replicas": 2, "failures": {"outages": [{"replica": 2, "at_s": 1.0}]}}, "there are 2, from 0"),
    ],
)
def test_a_life_that_cannot_be_is_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        fleet(**table)
