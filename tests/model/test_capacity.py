"""Capacity: the answer meets its objectives, one replica less does not; what cannot be done is said in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.common.errors import InputError
from blink.plan.capacity.answer import frontier
from blink.plan.capacity.bound import bound_of, load_of
from blink.plan.capacity.candidate import candidates_of
from blink.plan.capacity.question import Question, Traffic, load_question, parse_question
from blink.plan.capacity.run import plan
from blink.plan.capacity.search import CapacitySearch, label
from blink.plan.variant import with_rate
from blink.sim.run import simulate
from blink.workload.build import build_load
from tests.shared import ROOT

PLANS = sorted((ROOT / "scenarios" / "plans").glob("*.toml"))


def question(**more: Any) -> Question:
    """Llama 3 8B on an H100 for a load that takes a few of them, in a short window."""
    document: dict[str, Any] = {
        "name": "test",
        "scenario": str(ROOT / "scenarios" / "llama3-8b-h100.toml"),
        "traffic": {"rate": 30.0, "window_s": 20.0},
        "slo": {"p99_ttft_ms": 400.0, "p99_tpot_ms": 20.0},
        "limits": {"gpus_max": 16},
        "search": {"seeds": 2},
    }
    return parse_question({**document, **more}, "test")


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_one_gpu_less_than_the_answer_of_a_shipped_question_misses_its_objectives(path: Path) -> None:
    """The questions as they are shipped, but in a short window, with two seeds and their first system alone.

    At their busiest time: test_capacity_day.py has the rest of the day.
    """
    asked = load_question(path)
    assert asked.candidates.systems and asked.traffic.peak_rate
    asked = asked.model_copy(
        update={
            "traffic": Traffic(rate=asked.traffic.peak_rate, window_s=20.0),
            "autoscale": None,
            "candidates": asked.candidates.model_copy(update={"systems": asked.candidates.systems[:1]}),
            "search": asked.search.model_copy(update={"seeds": 2}),
        }
    )
    answer = plan(asked, workers=1)
    best = answer["best"]
    assert best["runs"] == best["runs_met"] == 2
    assert answer["runner_up"]["sentence"]
    # One GPU less is one replica less: of a group that shares each layer none can be left out.
    if best["replicas"] > 1:
        assert answer["binds"]["runs"] == 2
        assert answer["binds"]["runs_met"] < 2
        assert f"With {best['replicas'] - 1} replica" in answer["binds"]["sentence"]
    for place in answer["frontier"]:
        assert answer["fleets"][place]["runs_met"] == 2


def test_the_answer_is_the_same_for_any_number_of_workers() -> None:
    asked = question(candidates={"systems": ["blink", "vllm"]})
    one, two = plan(asked, workers=1), plan(asked, workers=2)
    assert one == two
    assert one["best"]["replicas"] >= 2
    assert one["best"]["usd_per_month"] <= one["runner_up"]["usd_per_month"]


def test_no_fleet_below_the_bound_meets_the_objectives() -> None:
    """The bound is proven, and here it is also tried: with one replica less than it says, every seed misses."""
    asked = question(traffic={"rate": 60.0, "window_s": 20.0})
    candidate = candidates_of(asked)[0]
    bound = bound_of(candidate, asked.slo, (1, 2))
    assert bound.replicas >= 2
    search = CapacitySearch(asked, [candidate], None)
    for seed in (1, 2):
        figures = search.run_all([search.point(candidate, bound.replicas - 1, seed)])[0]
        assert not search.meets(figures)


VARIED: dict[str, dict[str, Any]] = {
    "plain": {},
    "stages": {"pipeline_parallel": [2], "models": ["llama-3-8b"]},
    "fp8": {"dtypes": ["fp8"]},
    "chunks": {"chunk_tokens": [256]},
    "prefixes": {"prefix_caching": [True]},
    "drafts": {"draft_tokens": [4], "draft_acceptance": 0.7, "draft_cost": 0.05},
}


@pytest.mark.parametrize("varied", VARIED)
@pytest.mark.parametrize("kind", ["blink", "cpu-resident", "vllm", "sglang", "trtllm"])
def test_every_request_takes_at_least_its_floor(kind: str, varied: str) -> None:
    """A light load: TTFT and TPOT come near the floors, and never below them."""
    from blink.plan.capacity.bound import floors, least_times

    shared = ["workload.shared_prefix={groups=3, tokens=64}"] if varied == "prefixes" else []
    asked = question(candidates={"systems": [kind], **VARIED[varied]}, set=shared)
    scenario = with_rate(candidates_of(asked)[0].fleet(1, 3), 2.0)
    times, load = least_times(scenario), load_of(scenario)
    ttft, tpot = floors(times, load)
    result = simulate(*build_load(scenario))
    rows = {name: column[-len(ttft) :] for name, column in result.requests.items()}
    assert np.array_equal(rows["prompt_tokens"], load.prompts)
    assert np.all(rows["ttft_ns"] >= ttft)
    more = rows["output_tokens"] > 1
    found = (rows["last_token_ns"] - rows["first_token_ns"])[more] / (rows["output_tokens"][more] - 1)
    # Reading and delivery move a token by at most a poll.
    assert np.all(found >= tpot[more] * 0.999 - 50_000)
    far = 5.0 if varied == "chunks" else 2.5  # what decodes has a step between two pieces of a prompt
    assert float(np.median(rows["ttft_ns"] / ttft)) < far / times.prefill_share


@pytest.mark.parametrize("varied", list(VARIED)[1:])
@pytest.mark.parametrize("kind", ["blink", "vllm"])
def test_no_fleet_below_the_bound_of_a_serving_option_meets_the_objectives(kind: str, varied: str) -> None:
    shared = ["workload.shared_prefix={groups=3, tokens=256}"] if varied == "prefixes" else []
    more = {"candidates": {"systems": [kind], **VARIED[varied]}, "set": shared}
    asked = question(traffic={"rate": 200.0, "window_s": 10.0}, limits={"gpus_max": 64}, **more)
    candidate = candidates_of(asked)[0]
    bound = bound_of(candidate, asked.slo, (1,))
    assert bound.replicas >= 2
    search = CapacitySearch(asked, [candidate], None)
    assert not search.meets(search.run_all([search.point(candidate, bound.replicas - 1, 1)])[0])


def test_candidates_vary_stages_and_serving_options_and_the_answer_names_them() -> None:
    varied = {
        "pipeline_parallel": [1, 2],
        "dtypes": ["bf16", "fp8"],
        "chunk_tokens": [0, 512],
        "prefix_caching": [False, True],
        "draft_tokens": [0, 3],
        "draft_acceptance": 0.8,
    }
    asked = question(candidates=varied, set=["workload.shared_prefix={groups=4, tokens=128}"])
    found = candidates_of(asked)
    assert len(found) == 2**5
    keys = [dict(one.key) for one in found]
    assert len({tuple(one.key) for one in found}) == len(found)
    first, last = found[0].scenario, found[-1].scenario
    assert (first.gpu.stages, first.model.dtype) == (1, "bf16")
    assert first.serving is not None and not first.serving.prefix_caching and first.serving.speculation is None
    assert (last.gpu.stages, last.model.dtype, found[-1].gpus) == (2, "fp8", 2)
    assert last.serving is not None and last.serving.chunk_tokens == 512 and last.serving.prefix_caching
    assert last.serving.speculation is not None and last.serving.speculation.draft_tokens == 3
    assert keys[-1]["interference"] == "none"
    says = label(found[-1])
    assert says == "blink, llama-3-8b on h100-96gb, 2 stages, fp8, chunks of 512, prefix caching, 3 drafts"
    assert label(found[0]) == "blink, llama-3-8b on h100-96gb, bf16"


def test_an_option_that_halves_the_work_needs_fewer_gpus_and_is_the_answer() -> None:
    one, two = (plan(question(candidates={"dtypes": ["bf16", "fp8"]}), workers=workers) for workers in (1, 2))
    assert one == two
    assert one["best"]["key"]["dtype"] == "fp8"
    replicas = {fleet["key"]["dtype"]: fleet["replicas"] for fleet in reversed(one["fleets"])}
    assert replicas.get("fp8", 99) < replicas.get("bf16", 99)


def test_prefixes_that_a_trace_carries_are_an_option_too(tmp_path: Path) -> None:
    file = trace_file(tmp_path / "trace.jsonl")
    asked = question(traffic={"trace": file}, candidates={"prefix_caching": [False, True]})
    plain, caching = candidates_of(asked)
    without, load = load_of(plain.fleet(1, 1)), load_of(caching.fleet(1, 1))
    assert np.array_equal(without.computed, without.prompts)
    assert np.array_equal(load.computed, load.prompts - 512), "the first block of five is everybody's, no other is"
    search = CapacitySearch(asked, [plain, caching], None)
    slow, fast = search.run_all([search.point(one, 2, 1) for one in (plain, caching)])
    assert fast["median_ttft_ms"] < slow["median_ttft_ms"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"traffic": {"rate": 4000.0, "window_s": 10.0}},
            r"at least \d+ replicas.*bound mostly by memory bandwidth.*limits.gpus_max leaves 16",
        ),
        ({"slo": {"p99_ttft_ms": 5.0}}, "P99 TTFT of 5 ms is below the physical floor of .* bound by compute"),
        ({"slo": {"p99_tpot_ms": 2.0}}, "P99 TPOT of 2 ms is below the physical floor of .* bound by memory bandwidth"),
        (
            {"slo": {"goodput": {"share": 0.99, "ttft_ms": 20.0}}},
            "goodput of 99.0% is above what is physically possible, .*prefill alone .* bound by compute",
        ),
        (
            {"slo": {"goodput": {"share": 0.99, "e2e_ms": 300.0}}},
            "goodput of 99.0% is above what is physically possible, .*decode steps alone .* bound by memory bandwidth",
        ),
        ({"candidates": {"models": ["llama-3-70b"]}}, "does not fit by .* GiB.*the largest part is weights"),
        ({"limits": {"power_kw_max": 0.5}}, "draws .* kW even idle: the cap is 0.5 kW"),
        ({"limits": {"usd_per_month_max": 100.0}}, "USD a month: the cap is 100"),
    ],
)
def test_what_cannot_be_done_is_a_sentence_with_what_binds(more: dict[str, Any], says: str) -> None:
    import re

    answer = plan(question(**more), workers=1)
    assert answer["best"] is None
    assert answer["run_count"] == 0, "bounds alone say so"
    assert answer["answer"].startswith("test cannot be done: blink, ")
    assert answer["answer"].count(". ") == 0, "one sentence"
    assert re.search(says, answer["answer"]), answer["answer"]


def test_a_rate_that_only_simulation_refuses_is_refused_too() -> None:
    answer = plan(question(limits={"gpus_max": 2}), workers=1)
    assert answer["best"] is None
    assert "misses the objectives with 2 GPUs, all that limits.gpus_max leaves: P99 TTFT is" in answer["answer"]
    assert "its GPUs' work is bound mostly by" in answer["answer"]
    assert answer["run_count"] > 0


@pytest.mark.parametrize(
    ("more", "nearest"),
    [
        ({"traffic": {"rate": 4000.0, "window_s": 10.0}, "candidates": {"gpus": ["l40s", "h200"]}}, "h200"),
        ({"slo": {"p99_ttft_ms": 5.0}, "candidates": {"gpus": ["l40s", "h100-96gb"]}}, "h100-96gb"),
        ({"slo": {"p99_tpot_ms": 1.0}, "candidates": {"gpus": ["h100-96gb", "h200"]}}, "h200"),
        (
            {"candidates": {"models": ["bloom-176b", "llama-3-70b"], "gpus": ["l40s", "h100-96gb"]}},
            "llama-3-70b on h100",
        ),
    ],
)
def test_of_several_that_cannot_do_it_the_one_that_lacks_least_is_named(more: dict[str, Any], nearest: str) -> None:
    answer = plan(question(**more), workers=1)
    assert f"of {len(answer['candidates'])} candidates does it. The nearest, blink, " in answer["answer"]
    assert nearest in answer["answer"].split(":")[1], answer["answer"]


def test_of_the_frontier_no_fleet_is_beaten_in_everything() -> None:
    def fleet(usd: float, kw: float, ttft: float) -> dict[str, Any]:
        return {
            "usd_per_month": usd,
            "wall_kw": kw,
            "objectives": [{"name": "p99_ttft_ms", "value": {"mean": ttft}}],
        }

    fleets = [fleet(3, 1, 9), fleet(1, 2, 5), fleet(2, 2, 6), fleet(2, 1, 5)]
    assert frontier(fleets) == [1, 3]


def test_a_curve_over_the_day_is_carried_at_its_grown_peak() -> None:
    asked = question(traffic={"curve": [[2, 4.0], [14, 10.0]], "growth_per_month": 0.1, "months": 12, "window_s": 10.0})
    assert asked.traffic.peak_rate == pytest.approx(10 * 1.1**12)
    assert candidates_of(asked)[0].scenario.workload.arrivals.rate == asked.traffic.peak_rate  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"traffic": {}}, "traffic.rate: is missing: give rate, curve or trace"),
        ({"traffic": {"rate": 1.0, "trace": "x"}}, "rate is given too"),
        ({"traffic": {"curve": [[5, 1.0], [3, 1.0]]}}, "the hours must rise"),
        ({"slo": {}}, "slo.p99_ttft_ms: is missing"),
        ({"slo": {"p99_ttft": 5}}, "did you mean p99_ttft_ms"),
        ({"candidates": {"systems": ["llama.cpp"]}}, "'llama.cpp' is not known; allowed: blink"),
        ({"candidates": {"gpus": ["h100"]}}, "'h100' is not allowed; allowed: a100-80gb"),
        ({"candidates": {"prices": {"h200": "x"}}}, "not among candidates.gpus"),
        ({"candidates": {"chunk_tokens": [8]}}, "chunk_tokens: 8 is not allowed; allowed: 0, or from 16 on"),
        ({"candidates": {"draft_tokens": [0, 2]}}, "draft_acceptance: is missing"),
        ({"candidates": {"dtypes": ["int4"]}}, "candidates.dtypes.*fp8"),
        ({"candidates": {"dtypes": ["fp8", "fp8"]}}, "a value is given twice"),
        ({"candidates": {"prefix_caching": [True]}}, "no prompts begin alike"),
        ({"candidates": {"chunk_tokens": list(range(16, 1100))}}, "more than 1000 combinations"),
        ({"limits": {"gpus_max": 0}}, "limits.gpus_max = 0: must be a whole number between 1"),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_in_a_line(table: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        candidates_of(question(**table))


# --- a trace ---


def trace_file(path: Path, count: int = 240, rate: float = 25.0) -> str:
    """A small trace of this project's own, in the form of mooncake's, with hashes of the prompts' blocks."""
    rng = np.random.default_rng(4)
    times = np.cumsum(rng.exponential(1000 / rate, count)).astype(int).tolist()
    with path.open("w", encoding="utf-8") as file:
        for index, at_ms in enumerate(times):
            prompt, output = int(rng.integers(600, 1500)), int(rng.integers(20, 200))
            hashes = [index % 5, *(1000 + 10 * index + block for block in range(prompt // 512))]
            row = {"timestamp": at_ms, "input_length": prompt, "output_length": output, "hash_ids": hashes}
            file.write(json.dumps(row) + "\n")
    return str(path)


def test_a_trace_is_carried_as_it_stands_and_the_answer_says_what_the_seeds_vary(tmp_path: Path) -> None:
    file = trace_file(tmp_path / "trace.jsonl")
    traffic = {"trace": file, "growth_per_month": 0.5, "months": 2}
    asked = question(traffic=traffic)
    sent = build_load(candidates_of(asked)[0].fleet(1, 1))[1].arrival_ns
    assert len(sent) == 240
    assert sent[-1] / 1e9 == pytest.approx(240 / 25 / 1.5**2, rel=0.2)  # 2.25 times as often
    one, two = plan(asked, workers=1), plan(asked, workers=2)
    assert one == two
    best = one["best"]
    assert best["runs"] == best["runs_met"] == 2
    assert best["replicas"] > 1
    assert one["binds"]["runs_met"] < 2, "one replica less misses"
    assert one["peak_rate"] is None and one["day"] is None
    assert "the whole trace, 2.25 times as often as it was recorded: 240 requests" in one["simulated"]
    assert "the same with each of the 2 seeds" in one["simulated"]
    calm = plan(question(traffic={"trace": file}), workers=1)
    assert calm["best"]["replicas"] < best["replicas"]


def test_the_path_of_a_trace_is_taken_from_the_questions_folder(tmp_path: Path) -> None:
    trace_file(tmp_path / "trace.jsonl", count=60)
    (tmp_path / "ask.toml").write_text(
        f'name = "t"\nscenario = "{ROOT / "scenarios" / "llama3-8b-h100.toml"}"\n[traffic]\ntrace = "trace.jsonl"\n'
        "[slo]\np99_ttft_ms = 400\n",
        encoding="utf-8",
    )
    asked = load_question(tmp_path / "ask.toml")
    assert len(build_load(candidates_of(asked)[0].scenario)[1]) == 60


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "no such file"),
        ("x\n", "not a trace of a known dialect"),
        ('[{"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}]', "arrival times"),
        ('{"timestamp": 5, "input_length": 9, "output_length": 2}\n' * 3, "sends everything at one moment"),
    ],
)
def test_a_trace_that_cannot_be_carried_is_bad_input(content: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=says):
        plan(question(traffic={"trace": str(path)}), workers=1)
