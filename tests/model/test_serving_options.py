"""What-if switches of serving: each at its limits, where the result is known without the mechanism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blink.common.checker import check_trace
from blink.common.config import Scenario, parse_scenario
from blink.common.errors import InputError
from blink.common.results import Outcome, RunResult
from blink.common.trace import read_trace
from blink.perf.plant import step_model
from blink.perf.serving import tokens_a_step
from blink.sim.run import simulate
from blink.workload.build import build_load
from tests.shared import shared_path

KINDS = ("blink", "vllm", "sglang", "trtllm")


def scenario(kind: str = "blink", **more: Any) -> Scenario:
    document: dict[str, Any] = {
        "name": "options",
        "seed": 7,
        "system": {"kind": kind},
        "model": {"profile": "llama-3-8b"},
        "gpu": {"profile": "h200"},
        "workload": {
            "requests": 60,
            "arrivals": {"kind": "poisson", "rate": 6.0},
            "lengths": {"kind": "uniform", "prompt_tokens": [600, 3000], "output_tokens": [1, 60]},
        },
    }
    return parse_scenario({**document, **more}, "test")


def load(**more: Any) -> dict[str, Any]:
    return {"workload": {**scenario().resolved()["workload"], **more}}


def run(of: Scenario, **options: Any) -> RunResult:
    return simulate(*build_load(of), **options)


def same(one: RunResult, other: RunResult) -> bool:
    return all(np.array_equal(column, other.requests[name]) for name, column in one.requests.items())


def mean_tpot(result: RunResult) -> float:
    rows = result.requests
    more = rows["output_tokens"] > 1
    return float(((rows["last_token_ns"] - rows["first_token_ns"])[more] / (rows["output_tokens"][more] - 1)).mean())


# --- chunked prefill ---


@pytest.mark.parametrize("kind", ["blink", "cpu-resident"])
def test_chunks_that_hold_any_prompt_change_nothing(kind: str) -> None:
    assert same(run(scenario(kind)), run(scenario(kind, serving={"chunk_tokens": 8192})))


def test_chunks_let_decode_go_on_and_cost_the_prompt_time() -> None:
    """Between two pieces what decodes has a step: the longest gap is a piece, no longer a whole prompt."""
    whole, pieces = run(scenario()), run(scenario(serving={"chunk_tokens": 512}))
    assert pieces.itl.values.max() < 0.7 * whole.itl.values.max()
    assert pieces.requests["prefill_ns"].mean() > whole.requests["prefill_ns"].mean()
    assert pieces.scheduler.prefill_tokens == whole.scheduler.prefill_tokens
    assert pieces.scheduler.prefill_launches > 2 * whole.scheduler.prefill_launches


def test_chunked_runs_keep_the_protocol_and_both_modes_agree(tmp_path: Any) -> None:
    """Cancels and time limits fall between the pieces of a prompt, too."""
    more = {
        **load(cancel={"fraction": 0.5, "after_s": 0.05}),
        "serving": {"chunk_tokens": 128},
        "limits": {"time_limit_s": 0.3, "window": 5},
    }
    results = []
    for mode in ("fast", "step"):
        path = tmp_path / f"{mode}.ndjson"
        results.append(run(scenario(**more, run={"mode": mode}), trace_path=path))
        assert check_trace(read_trace(path)).code == 0
    assert same(*results)
    outcomes = set(results[0].requests["outcome"].tolist())
    assert {Outcome.COMPLETED, Outcome.CANCELLED} <= outcomes


@pytest.mark.parametrize("kind", ["vllm", "sglang", "trtllm"])
def test_chunks_of_a_host_driven_engine_are_its_tokens_a_step(kind: str) -> None:
    system = {"kind": kind, "max_num_seqs": 64}
    small = run(scenario(system=system, serving={"chunk_tokens": 256}))
    same_budget = run(scenario(system={**system, "chunked_prefill": True, "max_num_batched_tokens": 256}))
    assert same(small, same_budget)


# --- prefix caching and offload ---


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_that_share_nothing_find_nothing(kind: str) -> None:
    """A beginning longer than any prompt is nobody's: the cache is on, and the run is the plain one."""
    alone = load(shared_prefix={"groups": 1, "tokens": 8000})
    assert same(run(scenario(kind)), run(scenario(kind, **alone, serving={"prefix_caching": True})))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_prompt_again_is_computed_but_for_its_last_token(kind: str) -> None:
    equal = {
        "workload": {
            "requests": 6,
            "arrivals": {"kind": "constant", "rate": 1.0},
            "lengths": {"kind": "fixed", "prompt_tokens": 3000, "output_tokens": 4},
            "shared_prefix": {"groups": 1, "tokens": 3000},
        }
    }
    found = run(scenario(kind, **equal, serving={"prefix_caching": True}))
    assert found.scheduler.prefill_tokens == 3000 + 5
    assert found.counters["prefix_found_tokens"] == 5 * 2999
    ttft = found.requests["ttft_ns"]
    assert np.all(ttft[1:] < 0.35 * ttft[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_without_room_finds_nothing_and_host_memory_takes_its_place(kind: str) -> None:
    """More beginnings than free blocks hold: the last that left is never there, unless the host keeps all of them."""
    document = load(requests=48, shared_prefix={"groups": 16, "tokens": 512})
    document["limits"] = {"prompt_capacity_tokens": 3072, "output_capacity_tokens": 64}
    if kind in ("blink", "cpu-resident"):
        document["gpu"] = {"profile": "h200", "memory_utilization": 0.133}
    else:
        document["system"] = {"kind": kind, "num_gpu_blocks": 430}

    def share(**serving: Any) -> tuple[float, float]:
        result = run(scenario(kind, **document, serving={"prefix_caching": True, **serving}))
        asked = result.counters["prefix_asked_tokens"]
        return result.counters["prefix_found_tokens"] / asked, result.counters["prefix_loaded_tokens"] / asked

    tight, loaded = share()
    assert loaded == 0.0
    with_host, from_host = share(kv_offload_gib=64.0)
    assert with_host > tight
    assert from_host > 0.0
    assert share(kv_offload_gib=1e-9) == (tight, 0.0)


def test_the_hashes_of_a_trace_are_read_and_found() -> None:
    for name in ("mooncake", "bailian"):
        trace = {"trace": {"file": str(shared_path(f"traces/dialects/{name}.jsonl"))}}
        plain = run(scenario(workload=trace, limits={"prompt_capacity_tokens": 8000}))
        cached = run(scenario(workload=trace, serving={"prefix_caching": True}))
        assert any("prefix hashes are not read" in note for note in plain.notes)
        assert not any("prefix hashes are not read" in note for note in cached.notes)
        assert cached.scheduler.prefill_tokens <= plain.scheduler.prefill_tokens
        assert "prefix_found_tokens" in cached.counters


# --- speculation ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_that_is_never_right_costs_time_and_one_that_always_is_saves_nearly_all_of_its_tokens(
    kind: str,
) -> None:
    def tpot(**speculation: Any) -> float:
        more = {"serving": {"speculation": speculation}} if speculation else {}
        return mean_tpot(run(scenario(kind, **load(arrivals={"kind": "poisson", "rate": 1.0}), **more)))

    plain = tpot()
    wrong = tpot(draft_tokens=3, acceptance=0.0, draft_cost=0.1)
    right = tpot(draft_tokens=3, acceptance=1.0, draft_cost=0.0)
    assert 1.25 * plain < wrong < 1.6 * plain  # three drafts of a tenth each, and a slightly larger step
    assert plain / 4 < right < plain / 3.3
    assert right < tpot(draft_tokens=3, acceptance=0.7, draft_cost=0.1) < plain


def test_tokens_of_a_verified_step_are_the_geometric_sum() -> None:
    from blink.common.config.options import Speculation

    for acceptance, expected in ((0.0, 1.0), (0.5, 1.9375), (1.0, 5.0)):
        assert tokens_a_step(Speculation(draft_tokens=4, acceptance=acceptance)) == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_speculation_serves_every_engine(kind: str) -> None:
    speculation = {"draft_tokens": 4, "acceptance": 0.8}
    assert mean_tpot(run(scenario(kind, serving={"speculation": speculation}))) < 0.75 * mean_tpot(run(scenario(kind)))


def test_a_draft_model_takes_memory() -> None:
    plain = step_model(scenario())
    drafted = step_model(scenario(serving={"speculation": {"draft_tokens": 1, "acceptance": 0.5, "draft_cost": 0.25}}))
    assert drafted.weights_bytes == pytest.approx(1.25 * plain.weights_bytes)


# --- fp8 ---


@pytest.mark.parametrize("kind", KINDS)
def test_fp8_halves_bytes_and_about_halves_a_memory_bound_step(kind: str) -> None:
    wide, narrow = (
        step_model(scenario(kind)),
        step_model(scenario(kind, model={"profile": "llama-3-8b", "dtype": "fp8"})),
    )
    assert narrow.weights_bytes * 2 == pytest.approx(wide.weights_bytes, rel=1e-6)
    assert narrow.kv_bytes(16) * 2 == wide.kv_bytes(16)
    parts = [step.decode_breakdown(1, 1000) for step in (wide, narrow)]
    assert parts[1].gemm_bytes_ns == pytest.approx(parts[0].gemm_bytes_ns / 2)
    assert parts[1].floor_ns == parts[0].floor_ns
    result = run(scenario(kind, model={"profile": "llama-3-8b", "dtype": "fp8"}))
    assert result.scheduler.kv_blocks_total > 1.9 * run(scenario(kind)).scheduler.kv_blocks_total


# --- wrong options ---


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"serving": {"prefix_caching": True}}, "no prompts begin alike"),
        ({"serving": {"kv_offload_gib": 1.0}}, "needs serving.prefix_caching"),
        ({"serving": {"chunk_tokens": 4}}, "serving.chunk_tokens = 4"),
        ({"serving": {"speculation": {"draft_tokens": 2, "acceptance": 1.5}}}, "acceptance = 1.5"),
        ({"gpu": {"profile": "h200", "pipeline_parallel": 33}}, "llama-3-8b has 32 layers"),
        ({"gpu": {"profile": "h200", "fabric": "none"}}, "allowed: nvlink-8, pcie-8"),
    ],
)
def test_options_that_cannot_be_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        run(scenario(**more))
