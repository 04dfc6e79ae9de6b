"""The fast mode is the step-by-step model, event for event, on random scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blink.common.checker import check_trace
from blink.common.config import parse_scenario
from blink.common.results import RunResult
from blink.common.trace import Trace, read_trace
from blink.sim.run import simulate
from blink.workload.build import build_load

CLOCK_FALLS = Path(__file__).resolve().parents[1] / "data" / "h200-twin" / "profile" / "gpu.toml"
"""A GPU whose clock falls under load."""

arrivals = st.one_of(
    st.builds(lambda rate: {"kind": "poisson", "rate": rate}, st.sampled_from([2.0, 40.0, 400.0, 20000.0])),
    st.builds(lambda rate: {"kind": "gamma", "rate": rate, "burstiness": 0.2}, st.sampled_from([20.0, 2000.0])),
    st.builds(lambda n: {"kind": "closed-loop", "concurrency": n}, st.integers(1, 12)),
    st.just({"kind": "all-at-once"}),
)


@st.composite
def scenarios(draw: st.DrawFn, systems: Sequence[str] = ("blink", "blink", "cpu-resident")) -> dict[str, Any]:
    """Small loads that reach every branch: pauses, windows, tight KV, cancels, time limits, bounded polls."""
    batch_max = draw(st.integers(1, 12))
    return {
        "name": "random",
        "seed": draw(st.integers(0, 2**31)),
        "model": {"profile": "smollm2-135m"},
        "gpu": {
            "profile": draw(st.sampled_from(["h200", "rtx4090", str(CLOCK_FALLS)])),
            "memory_utilization": draw(st.sampled_from([0.9, 0.2])),
        },
        "system": {"kind": draw(st.sampled_from(systems))},
        "host": {"profile": "h200-node", "reserved_cores": 0},
        "interference": {"jobs": [{"profile": "bz2-fault", "threads": draw(st.sampled_from([0, 40]))}]},
        "dpu": {"token_cores": draw(st.integers(2, 6))},
        "workload": {
            "requests": draw(st.integers(1, 40)),
            "arrivals": draw(arrivals),
            "lengths": {
                "kind": "uniform",
                "prompt_tokens": [1, draw(st.sampled_from([8, 300, 2000]))],
                "output_tokens": [1, draw(st.sampled_from([1, 5, 80]))],
            },
            "output_tokens_max": draw(
                st.sampled_from([{"kind": "traced"}, {"kind": "cap", "value": 6}, {"kind": "multiple", "value": 1.5}])
            ),
            "cancel": {
                "fraction": draw(st.sampled_from([0.0, 0.3, 1.0])),
                "after_s": draw(st.sampled_from([0.0001, 0.003, 0.05])),
            },
        },
        "limits": {
            "batch_max": batch_max,
            "prefill_batch_max": draw(st.integers(1, 4)),
            "prefill_padding_tokens_max": draw(st.sampled_from([None, 0, 64, 2000])),
            "resume_after_tokens": draw(st.sampled_from([1, 300, 8192])),
            "context_tokens": 2100,
            "prompt_capacity_tokens": 2000,
            "output_capacity_tokens": draw(st.sampled_from([7, 100])),
            "window": draw(st.sampled_from([3, 4, 120])),
            "time_limit_s": draw(st.sampled_from([0.0, 0.0, 0.02])),
        },
        "frontend": {
            "poll_min_ns": draw(st.sampled_from([1, 1000, 50000])),
            "poll_max_ns": 50000,
            "token_reads_per_poll_max": draw(st.sampled_from([1, 3, 512])),
            "submissions_per_burst_max": draw(st.sampled_from([1, 64])),
        },
        "trace": {"token_reads": draw(st.sampled_from(["ranges", "each"]))},
    }


def run(document: dict[str, Any], mode: str, folder: Path) -> tuple[RunResult, Trace]:
    """One run and its trace."""
    scenario, load = build_load(parse_scenario({**document, "run": {"mode": mode}}, "test"))
    path = folder / f"{mode}.parquet"
    result = simulate(scenario, load, trace_path=path)
    return result, read_trace(path)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(scenarios())
def test_fast_mode_equals_the_stepwise_model_event_for_event(document: dict[str, Any]) -> None:
    """Every row of the trace, every column of the requests, the ITL distribution and every counter."""
    with TemporaryDirectory() as folder:
        fast, fast_trace = run(document, "fast", Path(folder))
        step, step_trace = run(document, "step", Path(folder))
    for name, column in step_trace.columns.items():
        np.testing.assert_array_equal(fast_trace.columns[name], column, err_msg=name)
    for name, column in step.requests.items():
        np.testing.assert_array_equal(fast.requests[name], column, err_msg=name)
    np.testing.assert_array_equal(fast.itl.values, step.itl.values)
    np.testing.assert_array_equal(fast.itl.weights, step.itl.weights)
    assert fast.scheduler == step.scheduler
    assert fast.counters == step.counters
    assert fast.duration_ns == step.duration_ns
    assert fast_trace.footer == step_trace.footer
    verdict = check_trace(fast_trace)
    assert verdict.code == 0, verdict
