"""What `blink bench hw` makes of its samples, and the processes that it starts: none of it needs a GPU."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import pytest

from blink.cli import main
from blink.commands.bench import _report_overhead
from blink.common.events import Event, GraphKind
from blink.common.request import Request
from blink.hw.cuda.bench.load import LoadPlan, figures
from blink.hw.cuda.bench.overhead import Round, row_of
from blink.hw.cuda.bench.samples import Row, without_trend
from blink.hw.cuda.bench.steps import step_times
from blink.hw.cuda.engine_run import Answers, admitted_by, drawn_prompts
from blink.hw.cuda.marks import GraphMarks
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


def _round(added_ns: int, inside_ns: int, steps: int = 130) -> Round:
    """A KV cache that makes each step 100 ns longer; the scheduler adds this much between and inside its graphs."""
    bare = np.full(60, 5_000_000, np.int64)
    graphs = 5_000_000 + inside_ns + 100 * (np.arange(steps) - steps + 1)
    none = np.zeros(steps, np.int64)
    return Round(graphs, np.full(steps - 1, 1_000 + added_ns), none, none, none, bare, np.full(59, 1_000))


def test_the_overhead_of_a_step_is_that_of_its_round(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = [_round(4_000, 200), _round(4_200, 400), _round(4_400, 600)]
    assert rounds[0].added_ns == pytest.approx((4_000, 200))
    assert np.ptp(rounds[0].period_ns) < 2_000  # of the 13,000 that the cache grew by
    row = row_of(rounds, "torch", batch=16, busy=32)
    assert row.more["added_gap_ns"] == pytest.approx([4_000, 4_200, 4_400])
    assert row.more["added_graph_ns"] == pytest.approx([200, 400, 600])
    assert (row.count, row.more["bare_graph_p50_ns"], row.more["gap_p50_ns"]) == (3 * 129, 5_000_000, 5_200)
    _report_overhead(argparse.Namespace(json=None), {"gpu": "none"}, [row])
    assert "+4.20 ±0.50" in capsys.readouterr().out  # Student's interval of three values 0.2 us apart


class _Memory:
    """Device memory in place of a copier."""

    stream = 0

    def __init__(self, words: list[int]) -> None:
        self._data = np.array(words, np.int64).tobytes()

    def put(self, target: int, data: bytes) -> None:
        """Nothing is written."""

    def get(self, source: int, size_bytes: int) -> bytes:
        """Bytes of it."""
        return self._data[source : source + size_bytes]


@pytest.mark.parametrize(
    ("count", "begun", "ended"), [(0, [], []), (2, [10, 20], [15, 25]), (3, [10, 20, 30], [15, 25, 35])]
)
def test_marks_are_read_in_their_order(count: int, begun: list[int], ended: list[int]) -> None:
    marks = GraphMarks.__new__(GraphMarks)
    marks._copier, marks._capacity, marks.address = _Memory([count, 3, 10, 15, 20, 25, 30, 35]), 3, 0
    assert [times.tolist() for times in marks.read()] == [begun, ended]


def test_the_oldest_marks_give_way() -> None:
    marks = GraphMarks.__new__(GraphMarks)
    marks._copier, marks._capacity, marks.address = _Memory([4, 3, 40, 45, 20, 25, 30, 35]), 3, 0
    assert [times.tolist() for times in marks.read()] == [[20, 30, 40], [25, 35, 45]]


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
