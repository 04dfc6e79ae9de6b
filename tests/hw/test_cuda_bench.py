"""What `blink bench hw` makes of its samples, and the processes that it starts: none of it needs a GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from blink.cli import main
from blink.common.events import Event, GraphKind
from blink.common.request import Request
from blink.hw.cuda.bench.load import LoadPlan, figures
from blink.hw.cuda.bench.samples import Row, without_trend
from blink.hw.cuda.bench.steps import step_times
from blink.hw.cuda.engine_run import Answers, admitted_by, drawn_prompts
from blink.hw.measure.busy import busy_processes
from blink.hw.native.library import load_library
from blink.workload.build import build_load
from tests.hw.native_help import needs_compiler, scenario_of, serve_scenario, small_settings
from tests.shared import ROOT

SCENARIO = str(ROOT / "scenarios" / "ci-tiny.toml")


def test_a_trend_is_taken_out_and_an_outlier_stays() -> None:
    times = np.linspace(5_000_000, 6_000_000, 400).astype(np.int64)
    times[200] += 300_000
    plain = without_trend(times)
    assert plain.max() - np.median(plain) == pytest.approx(300_000, rel=0.02)
    assert np.percentile(plain, 99) - plain.min() < 30_000  # of the million that the trend had
    assert without_trend(times[:5]).tolist() == times[:5].tolist()


def test_percentiles_are_samples() -> None:
    row = Row.of("steps", "cuda", 32, np.arange(1, 1001, dtype=np.int64), bare_ns=7)
    assert (row.p50_ns, row.p99_ns, row.p999_ns, row.max_ns, row.count) == (501, 991, 1000, 1000, 1000)
    assert row.to_json()["bare_ns"] == 7
    assert Row.of("none", "cuda", 0, np.zeros(0, np.int64)).count == 0


@needs_compiler
def test_periods_keep_apart_what_lies_between_two_launches() -> None:
    rows: list[tuple[int, Event, GraphKind, int]] = [(0, Event.CLAIM, GraphKind.PREFILL, 0)]
    rows += [(3, Event.GRAPH_LAUNCHED, GraphKind.PREFILL, 1), (9, Event.GRAPH_DONE, GraphKind.PREFILL, 1)]
    for step in range(14):
        start = 100 + 10 * step + (50 if step > 11 else 0)
        if step == 12:
            rows.append((start - 30, Event.RELAUNCHED, GraphKind.PREFILL, 0))
        rows += [(start, Event.GRAPH_LAUNCHED, GraphKind.DECODE, 2), (start + 6, Event.GRAPH_DONE, GraphKind.DECODE, 2)]
    records = np.zeros(len(rows), load_library().dtypes["record"])
    records["t_ns"] = [row[0] for row in rows]
    records["what"] = [row[1] | row[2] << 8 for row in rows]
    records["detail"] = [row[3] for row in rows]
    times = step_times(records, 2)
    assert times.period_ns.tolist() == [10, 10]  # ten are left out, one crosses the relaunch
    assert times.relaunch_ns.tolist() == [60]
    assert times.graph_ns.tolist() == [6] * 4
    assert times.claim_ns.tolist() == [3]
    assert step_times(records, 1).period_ns.size == 0  # no step of one sequence


@needs_compiler
def test_figures_of_a_run(tmp_path: Path) -> None:
    result = serve_scenario(scenario_of(), tmp_path / "trace.ndjson")
    found = figures(result)
    assert (found["requests"], found["completed"]) == (40, 40)
    assert 0 < found["ttft_ns_p50"] <= found["ttft_ns_p99"] <= found["makespan_ns"]
    assert found["output_tokens_per_s"] * found["makespan_ns"] / 1e9 == pytest.approx(
        int(result.requests["output_tokens"].sum()), rel=0.01
    )
    assert json.dumps(found)


def test_a_model_ends_texts_where_the_load_says() -> None:
    settings = small_settings()
    scenario, load = build_load(
        scenario_of(workload={"lengths": {"kind": "fixed", "prompt_tokens": 60, "output_tokens": 9}})
    )
    admitted = admitted_by(settings, scenario, load)
    assert {row.output_tokens_max for row in admitted.rows} == {4}  # a context of 64
    assert admitted.notes == ["the output of 40 requests was cut to what the engine was built for"]
    assert not admitted.refusals


def test_drawn_prompts_stay_in_the_vocabulary_and_answers_keep_their_order() -> None:
    request = Request(3, -1, 50, 9, 9, 0)
    prompt = drawn_prompts(100)(request)
    assert prompt.size == 50
    assert prompt.max() < 100
    answers = Answers()
    answers.take(request, 0, np.array([5, 6], np.uint32))
    answers.take(request, 2, np.array([7], np.uint32))
    assert answers.tokens == {3: [5, 6, 7]}
    with pytest.raises(AssertionError):
        answers.take(request, 2, np.array([7], np.uint32))


def test_busy_processes_are_gone_afterwards() -> None:
    with busy_processes(2) as pids:
        assert len(pids) == 2
        for pid in pids:
            os.kill(pid, 0)  # it is there
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_plan_of_a_load_fits_what_the_engine_is_built_for() -> None:
    plan = LoadPlan()
    assert max(plan.output_tokens) <= plan.output_tokens_max
    assert plan.prompt_tokens <= plan.prompt_tokens_max


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["run", "--engine", "torch", SCENARIO], "--engine: says what runs on a GPU; allowed: with --backend cuda"),
        (
            ["run", "--backend", "cuda", "--prompt", "Hello", SCENARIO],
            "--prompt: needs a model; allowed:",
        ),
        (
            ["run", "--backend", "cuda", "--model", "llama-3-8b", SCENARIO],
            "--model: needs a model; allowed:",
        ),
        (["bench", "hw", "--busy", "many"], "--busy: 'many' is not allowed; allowed: whole numbers"),
        (["bench", "hw", "--load"], "--load: needs a model; allowed: with --engine torch"),
    ],
)
def test_options_that_do_not_fit_are_one_line(
    command: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"blink: error: {says}")
    assert error.count("\n") == 1
