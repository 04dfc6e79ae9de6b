"""What the levels say of runs that were tampered with: each difference is found where it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.common.config import parse_scenario
from blink.common.events import Event
from blink.common.lockstep import NO_EOS, Arrival, Cancel
from blink.common.results import RunResult
from blink.common.states import SlotStatus
from blink.common.trace import Trace, read_trace
from blink.conform.compare import side_by_side
from blink.conform.equivalent import compare_lives
from blink.conform.levels import Campaign, Patience, machine_of
from blink.conform.lockstep import Compared, compare_script, random_scripts
from blink.conform.replay import Rows, compare_rows, record, replay
from blink.conform.script import Script
from blink.sim.lockstep import LockStep
from blink.sim.run import simulate
from blink.workload.build import build_load
from tests.conformance.bodies import CANCELS, backend_of

NAMES = ("one", "other")
LIMITED: dict[str, Any] = {**CANCELS, "limits": {**CANCELS["limits"], "time_limit_s": 0.02}}


def run(document: dict[str, Any], folder: Path) -> tuple[RunResult, Trace]:
    """A simulated run and its trace."""
    scenario, requests = build_load(parse_scenario(document, "test"))
    path = folder / "trace.parquet"
    return simulate(scenario, requests, trace_path=path), read_trace(path)


def with_value(trace: Trace, name: str, row: int, value: int) -> Trace:
    """The trace with one value changed."""
    columns = {key: np.array(values) for key, values in trace.columns.items()}
    columns[name][row] = value
    return replace(trace, columns=columns)


# --- replay ---


@pytest.mark.parametrize("document", [CANCELS, LIMITED])
def test_a_replay_gives_the_same_rows_at_the_same_times(document: dict[str, Any], tmp_path: Path) -> None:
    _, trace = run(document, tmp_path)
    recording = record(trace)
    again = replay(recording, machine_of(parse_scenario(document, "test")))
    assert compare_rows(NAMES, recording.rows, again) is None
    assert {SlotStatus.CANCELLED, SlotStatus.STOP} <= set(recording.rows["status"].tolist())
    ended = recording.rows["event"] == Event.TOKEN
    np.testing.assert_array_equal(recording.rows["t_ns"][ended], again["t_ns"][ended])


def test_a_recording_names_what_the_scheduler_saw_and_when(tmp_path: Path) -> None:
    result, trace = run(CANCELS, tmp_path)
    operations = record(trace).operations
    arrived = [op.request_id for op in operations if isinstance(op, Arrival)]
    cancelled = {op.request_id for op in operations if isinstance(op, Cancel)}
    assert sorted(arrived) == result.requests["request_id"].tolist()
    struck = result.requests["status"] == SlotStatus.CANCELLED
    assert cancelled == set(result.requests["request_id"][struck].tolist())
    assert [op.at_step for op in operations] == sorted(op.at_step for op in operations)


@pytest.mark.parametrize(
    ("name", "event", "value"),
    [("kv_block_count", Event.CLAIM, 99), ("batch", Event.GRAPH_LAUNCHED, 63), ("t_ns", Event.GRAPH_DONE, 1)],
)
def test_a_replay_that_differs_names_the_step(name: str, event: Event, value: int, tmp_path: Path) -> None:
    _, trace = run(CANCELS, tmp_path)
    recording = record(trace)
    row = int(np.flatnonzero(recording.rows["event"] == event)[7])
    tampered: Rows = {key: values.copy() for key, values in recording.rows.items()}
    tampered[name][row] = value
    difference = compare_rows(NAMES, tampered, recording.rows)
    assert difference is not None
    assert difference.what.startswith(f"step {recording.rows['step'][row]}: one has {event.label}")
    assert any(line.startswith("> ") for line in difference.context) or name == "kv_block_count"


def test_a_replay_that_ends_early_says_who_is_over(tmp_path: Path) -> None:
    _, trace = run(CANCELS, tmp_path)
    rows = record(trace).rows
    difference = compare_rows(NAMES, rows, {key: values[:-1] for key, values in rows.items()})
    assert difference is not None
    assert difference.what.endswith("other is over")


# --- equivalent ---


def test_another_status_is_the_transition_that_differs(tmp_path: Path) -> None:
    document = {**CANCELS, "workload": {**CANCELS["workload"], "cancel": {"fraction": 0.0, "after_s": 1.0}}}
    result, trace = run(document, tmp_path)
    row = int(np.flatnonzero(trace.columns["event"] == Event.FINISH)[5])
    request_id = int(trace.columns["request_id"][row])
    other = SlotStatus.LENGTH if trace.columns["status"][row] == SlotStatus.STOP else SlotStatus.STOP
    assert compare_lives(NAMES, (trace, trace), (result, result))[1] is None
    compared, difference = compare_lives(
        NAMES, (trace, with_value(trace, "status", row, other)), (result, result)
    )  # fmt: skip
    assert compared["requests"] == 40
    assert difference is not None
    assert difference.what.startswith(f"r{request_id}: transition ")
    assert other.label in difference.what


def test_requests_that_a_clock_ended_are_left_out_and_counted(tmp_path: Path) -> None:
    result, trace = run(CANCELS, tmp_path)
    struck = int((result.requests["status"] == SlotStatus.CANCELLED).sum())
    compared, difference = compare_lives(NAMES, (trace, trace), (result, result))
    assert difference is None
    assert compared["ended by a clock"] >= struck > 0
    assert compared["requests"] + compared["ended by a clock"] == 40


def test_a_request_that_only_one_refuses_is_a_difference(tmp_path: Path) -> None:
    result, trace = run(CANCELS, tmp_path)
    refusing = replace(result, refusals={3: "no room"})
    _, difference = compare_lives(NAMES, (trace, trace), (result, refusing))
    assert difference is not None
    assert difference.what == "r3: only other refuses it"


# --- scripts and words ---


def test_a_script_reads_as_what_happens() -> None:
    script = next(random_scripts(seed=2, count=1))
    operations = (Arrival(3, 4, 40, 6, 4), Arrival(3, 5, 1, 2, NO_EOS), Cancel(7, 4))
    lines = list(replace(script, operations=operations).lines())
    assert lines[2:] == [
        "step 3: submit r4 (prompt 40, max 6, eos 4)",
        "step 3: submit r5 (prompt 1, max 2)",
        "step 7: cancel r4",
    ]
    assert lines[0].startswith(f"batch {script.machine.limits.batch_max}, prefill ")


def test_the_same_seed_draws_the_same_scripts() -> None:
    assert list(random_scripts(5, 20)) == list(random_scripts(5, 20))
    assert list(random_scripts(5, 20)) != list(random_scripts(6, 20))


def test_columns_fold_long_lines_and_mark_what_differs() -> None:
    long = "  r0 in slot 0, blocks " + " ".join(map(str, range(30)))
    lines = list(side_by_side(NAMES, [["step 1", long]], [["step 1", long + " 30"]]))
    assert [line[0] for line in lines[:2]] == [" ", " "]
    assert lines[-1].startswith("> ")
    assert all(line.index("|") == 48 for line in lines)


def test_one_backend_that_stops_before_the_other_is_a_difference() -> None:
    class Short(LockStep):
        """Believes after three steps that its ring is empty."""

        @property
        def in_ring_count(self) -> int:
            return 0 if self.step_number == 3 else super().in_ring_count

    script = Script(next(random_scripts(seed=2, count=1)).machine, (Arrival(0, 0, 1, 9, NO_EOS),))
    script = replace(script, machine=replace(script.machine, output_capacity_tokens=9, time_limit_ns=0))
    difference = compare_script(NAMES, (LockStep, Short), script, Compared())
    assert difference is not None
    assert difference.what == "step 3: other is done where one goes on"
    assert any(line.endswith("| (over)") for line in difference.context)


def test_patience_ends_when_no_request_does() -> None:
    patience = Patience(stall_s=0.0)
    patience.saw(1)
    assert patience.is_over()
    assert not Patience(stall_s=60.0).is_over()


def test_a_run_that_gets_nowhere_is_a_difference() -> None:
    """The native mutant that never resumes is stopped; here a simulated run is, whose result says so."""
    scenario, requests = build_load(parse_scenario(CANCELS, "cancels"))
    backend = backend_of("sim")
    campaign = Campaign([backend], scenario, requests)
    run = campaign.run(backend)
    campaign._runs["sim"] = replace(run, result=replace(run.result, partial=True))
    found = campaign.legal(backend)
    assert found.code == 2
    assert found.difference is not None
    assert found.difference.what.startswith("L2: sim:")
