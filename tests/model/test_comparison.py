"""What a comparison of systems has to show: Blink does not feel other jobs, the others do, mitigations as published.

The statements are tested, not the figures; short runs, in which the directions are plain.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from blink.common.config import load_scenario
from blink.plan.axes import Axes
from blink.plan.comparison import compare
from blink.plan.point import run_points
from blink.plan.variant import with_requests
from tests.shared import ROOT

HOST_DRIVEN = ("trtllm", "vllm", "sglang")
SYSTEMS = ("blink", *HOST_DRIVEN)
LATENCIES = ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "p99_itl_ms", "p99_e2el_ms")
BLINK_CHANGE_MAX = 0.04  # published
NOISE = 0.03  # between two levels of a sweep, each the mean of a few short runs

Cells = dict[tuple[Any, ...], dict[str, Any]]


def cells(name: str, axes: Axes, limit: int) -> Cells:
    """The cells of a comparison, by the values of their keys."""
    scenario = with_requests(load_scenario(ROOT / "scenarios" / name), limit)
    found = compare(scenario, axes, run_points(axes.points(scenario), workers=1))
    return {tuple(cell["key"].values()): cell for cell in found["cells"]}


@cache
def interfered() -> Cells:
    return cells("llama3-8b-h100.toml", Axes(SYSTEMS, seed_count=3), 150)


@cache
def swept() -> Cells:
    return cells("llama3-8b-h100.toml", Axes(SYSTEMS, threads=(0, 30, 60, 90), seed_count=2), 150)


@cache
def mitigated() -> Cells:
    tried = ("none", "huge_pages_victim", "huge_pages_interferer", "cat=1", "cat", "cat=12", "nice")
    return cells("mitigations-h100.toml", Axes(("vllm",), ("none", "colocated"), mitigations=tried, seed_count=5), 128)


def mean(cell: dict[str, Any], name: str) -> float:
    value: float = cell["figures"][name]["mean"]
    return value


@pytest.mark.slow
def test_blink_does_not_feel_other_jobs() -> None:
    found = interfered()["blink", "colocated"]["over_isolated"]
    for name in ("output_throughput", *LATENCIES):
        assert abs(found[name]["ratio"] - 1.0) <= BLINK_CHANGE_MAX, name
    assert 1.0 < found["energy_mj_per_token"]["ratio"] < 1.3  # of the other jobs' watts


@pytest.mark.slow
@pytest.mark.parametrize("system", HOST_DRIVEN)
def test_host_driven_engines_do(system: str) -> None:
    found = interfered()[system, "colocated"]["over_isolated"]
    for name, least in (("median_ttft_ms", 2.0), ("p99_ttft_ms", 2.0), ("p99_tpot_ms", 1.5), ("p99_itl_ms", 2.0)):
        assert found[name]["ratio"] > least, name
    assert found["median_ttft_ms"]["significant"] is True
    assert found["output_throughput"]["ratio"] < 0.95
    beside = interfered()[system, "colocated"]["over_first"]
    assert beside["median_ttft_ms"]["ratio"] > 2.0
    assert beside["output_throughput"]["ratio"] < 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", ["median_ttft_ms", "p99_ttft_ms"])
def test_undisturbed_the_nearest_to_blink_is_tensorrt_llm(name: str) -> None:
    """As published."""
    ratios = {system: interfered()[system, "none"]["over_first"][name]["ratio"] for system in HOST_DRIVEN}
    assert all(ratio > 1.0 for ratio in ratios.values())
    assert min(ratios, key=lambda system: ratios[system]) == "trtllm"


@pytest.mark.slow
@pytest.mark.parametrize("system", HOST_DRIVEN)
def test_more_threads_are_worse(system: str) -> None:
    levels = [swept()[system, threads] for threads in (0, 30, 60, 90)]
    for name, sign in (("output_throughput", -1.0), ("median_ttft_ms", 1.0), ("median_tpot_ms", 1.0)):
        values = [mean(cell, name) for cell in levels]
        for before, after in pairwise(values):
            assert sign * (after / before - 1.0) > -NOISE, (name, values)
        assert sign * (values[-1] / values[0] - 1.0) > NOISE, (name, values)


@pytest.mark.slow
def test_blinks_curve_is_flat() -> None:
    for name in ("output_throughput", *LATENCIES):
        values = [mean(swept()["blink", threads], name) for threads in (0, 30, 60, 90)]
        assert max(values) / min(values) - 1.0 <= BLINK_CHANGE_MAX, (name, values)


@pytest.mark.slow
def test_no_other_thread_is_no_interference() -> None:
    for system in SYSTEMS:
        alone = interfered()[system, "none"]["figures"]["p99_ttft_ms"]["values"][:2]
        assert swept()[system, 0]["figures"]["p99_ttft_ms"]["values"] == alone


@pytest.mark.slow
def test_huge_pages_for_the_engine_help_its_tlb_and_not_its_latency() -> None:
    plain, tried = mitigated()["vllm", "colocated", "none"], mitigated()["vllm", "colocated", "huge_pages_victim"]
    assert tried["counters"]["dtlb_misses_ratio"] / plain["counters"]["dtlb_misses_ratio"] == pytest.approx(
        0.84, abs=0.01
    )
    for name in ("output_throughput", "median_tpot_ms", "p99_tpot_ms"):
        assert tried["over_unmitigated"][name]["ratio"] == pytest.approx(1.0, abs=0.04), name
    assert tried["over_unmitigated"]["p99_itl_ms"]["ratio"] == pytest.approx(1.0, abs=0.06)


@pytest.mark.slow
def test_huge_pages_for_the_other_jobs_do_not_help() -> None:
    plain, tried = mitigated()["vllm", "colocated", "none"], mitigated()["vllm", "colocated", "huge_pages_interferer"]
    assert tried["counters"]["llc_miss_rate"] == pytest.approx(plain["counters"]["llc_miss_rate"], rel=0.01)
    tail = tried["over_unmitigated"]["p99_itl_ms"]
    assert tail["ratio"] > 1.0 - NOISE or tail["significant"] is False
    assert tried["over_unmitigated"]["output_throughput"]["ratio"] <= 1.005


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["cat=1", "cat", "cat=12"])
def test_cache_ways_end_the_misses_and_not_the_tail(ways: str) -> None:
    plain, tried = mitigated()["vllm", "colocated", "none"], mitigated()["vllm", "colocated", ways]
    assert plain["counters"]["llc_miss_rate"] > 5 * tried["counters"]["llc_miss_rate"]
    assert plain["counters"]["llc_stall_ratio"] > 5 * tried["counters"]["llc_stall_ratio"]
    assert tried["over_unmitigated"]["p99_itl_ms"]["ratio"] > 0.85
    assert tried["over_isolated"]["p99_itl_ms"]["ratio"] > 1.0


@pytest.mark.slow
def test_a_nice_level_changes_nothing_on_reserved_cores() -> None:
    plain, tried = mitigated()["vllm", "colocated", "none"], mitigated()["vllm", "colocated", "nice"]
    assert tried["figures"] == plain["figures"]
    assert tried["counters"] == plain["counters"]


@pytest.mark.slow
def test_without_other_jobs_a_mitigation_has_nothing_to_mend() -> None:
    plain = mitigated()["vllm", "none", "none"]
    for tried in ("huge_pages_interferer", "cat", "nice"):
        assert mitigated()["vllm", "none", tried]["figures"] == plain["figures"], tried
