"""Traces of a fleet: one a replica, which conforms; a lost replica's ends where it was lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.cli import main
from blink.common.checker import check_trace
from blink.common.lifecycle import COLUMNS, is_lifecycle, read_lifecycle
from blink.common.lifecycle_check import check_lifecycle
from blink.common.results import Outcome, RunResult
from blink.common.trace import read_trace, trace_path, trace_paths
from blink.common.units import NS_PER_S
from blink.common.verdict import CONFORMS, INCONCLUSIVE, VIOLATES, Verdict, of_all
from blink.sim.run import simulate
from blink.workload.build import build_load
from tests.model.test_fleet import FREE, KINDS, fleet, scenario
from tests.shared import ROOT

TINY = str(ROOT / "scenarios" / "ci-tiny.toml")


def traced(folder: Path, kind: str = "blink", suffix: str = "ndjson", **table: Any) -> RunResult:
    of = scenario(kind, **({"fleet": table} if table else {}))
    return simulate(*build_load(of), trace_path=folder / f"trace.{suffix}")


def verdicts(folder: Path) -> list[Verdict]:
    return [check_lifecycle(one) if is_lifecycle(one) else check_trace(one) for _, one in trace_paths(folder)]


def events(path: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()[1:-1]]
    return [{key: value for key, value in row.items() if key != "run"} for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_every_replica_leaves_a_trace_that_conforms_and_all_requests_are_in_them(kind: str, tmp_path: Path) -> None:
    result, plain = traced(tmp_path, kind, replicas=3), simulate(*build_load(scenario(kind, **fleet(3))))
    assert [number for number, _ in trace_paths(tmp_path)] == [0, 1, 2]
    assert [verdict.code for verdict in verdicts(tmp_path)] == [CONFORMS] * 3
    found = [row["request_id"] for _, path in trace_paths(tmp_path) for row in events(path) if "request_id" in row]
    sent = result.requests["request_id"][result.requests["outcome"] != Outcome.CANCELLED]
    assert set(sent.tolist()) <= set(found)
    assert all(np.array_equal(column, plain.requests[name]) for name, column in result.requests.items())


@pytest.mark.parametrize("kind", ["blink", "vllm"])
def test_the_trace_of_one_replica_is_that_of_the_twin_as_it_stands(kind: str, tmp_path: Path) -> None:
    (tmp_path / "free.toml").write_text(FREE)
    traced(tmp_path, kind)
    traced(tmp_path, kind, replicas=1, profile=str(tmp_path / "free.toml"))
    assert events(tmp_path / "trace-0.ndjson") == events(tmp_path / "trace.ndjson")


@pytest.mark.parametrize("kind", ["blink", "vllm"])
def test_the_trace_of_a_lost_replica_ends_where_it_was_lost(kind: str, tmp_path: Path) -> None:
    failures = {"outages": [{"replica": 0, "at_s": 2.0}], "detect_s": 0.5, "repair_s": 0.5}
    result = traced(tmp_path, kind, replicas=2, warm_up_s=0.5, failures=failures)
    assert result.fleet["failures"] == 1
    assert len(trace_paths(tmp_path)) == len(result.fleet["replicas"]) == 3
    lost = INCONCLUSIVE if kind == "vllm" else CONFORMS  # as far as it went
    assert [verdict.code for verdict in verdicts(tmp_path)] == [lost, CONFORMS, CONFORMS]
    times = [[row["t_ns"] for row in events(path)] for _, path in trace_paths(tmp_path)]
    assert times[0][-1] < 2 * NS_PER_S < times[1][-1]
    assert max(times[0]) < 2 * NS_PER_S
    assert min(times[2]) > 2 * NS_PER_S + NS_PER_S // 2


@pytest.mark.parametrize("kind", ["blink", "sglang"])
@pytest.mark.parametrize(
    "table",
    [
        {"replicas": 2, "prefill_replicas": 1},
        {"replicas": 1, "warm_up_s": 0.2, "autoscale": {"replicas_max": 3, "target": 6.0, "interval_s": 0.3,
         "lag_s": 0.2, "down_after_s": 0.5}},
    ],
    ids=["separate", "autoscale"],
)  # fmt: skip
def test_replicas_with_parts_of_requests_and_those_that_come_and_go_conform(
    kind: str, table: dict[str, Any], tmp_path: Path
) -> None:
    result = traced(tmp_path, kind, "parquet", **table)
    assert len(result.fleet["replicas"]) > 1
    assert {verdict.code for verdict in verdicts(tmp_path)} == {CONFORMS}


def test_the_same_fleet_leaves_the_same_bytes_and_what_is_flushed_early_is_the_same_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c", "d")]
    for folder in folders:
        folder.mkdir()
    for kind in ("blink", "vllm"):
        traced(folders[0], kind, "parquet", replicas=2)
        traced(folders[1], kind, "parquet", replicas=2)
        for number in (0, 1):
            one, other = (folder / f"trace-{number}.parquet" for folder in folders[:2])
            assert one.read_bytes() == other.read_bytes()
    traced(folders[2], replicas=2)
    monkeypatch.setattr("blink.sim.fleet.engine.FLUSH_ROWS_ALL", 64)
    monkeypatch.setattr("blink.sim.fleet.engine.FLUSH_ROWS_MIN", 64)
    traced(folders[3], replicas=2)
    assert (folders[2] / "trace-1.ndjson").read_bytes() == (folders[3] / "trace-1.ndjson").read_bytes()


def test_a_stopped_fleet_leaves_traces_that_say_so_and_a_failed_one_leaves_none(tmp_path: Path) -> None:
    of = scenario(**fleet(2))
    result = simulate(*build_load(of), trace_path=tmp_path / "trace.parquet", stop=lambda: True)
    assert result.partial
    assert not read_trace(tmp_path / "trace-0.parquet").footer.complete  # type: ignore[union-attr]

    def fail(*_: int) -> None:
        raise RuntimeError("here")

    (tmp_path / "b").mkdir()
    with pytest.raises(RuntimeError, match="here"):
        simulate(*build_load(of), trace_path=tmp_path / "b" / "trace.parquet", progress=fail)
    assert not list((tmp_path / "b").iterdir())


def test_a_fleet_of_many_has_traces_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blink.sim.fleet.engine.TRACED_MAX", 2)
    monkeypatch.setattr("blink.sim.fleet.run.TRACED_MAX", 2)
    result = traced(tmp_path, replicas=3)
    assert [path.name for _, path in trace_paths(tmp_path)] == ["trace-0.ndjson", "trace-1.ndjson"]
    assert "of 3 replicas the first 2 leave a trace" in result.notes


def test_check_and_export_take_a_kept_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    more = ("--set", "fleet.replicas=2", "--set", 'system={kind="vllm"}')
    assert main(["run", TINY, *more, "--out", str(folder)]) == 0
    capsys.readouterr()
    assert main(["check", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("replica 0 conforms: ")
    assert lines[-1] == "conforms: all 2 traces"
    assert main(["check", str(folder), "--json"]) == 0
    assert [one["replica"] for one in json.loads(capsys.readouterr().out)["replicas"]] == [0, 1]
    assert main(["trace", "export", str(folder), "--format", "chrome"]) == 0
    shown = json.loads((folder / "run.trace.json").read_text(encoding="utf-8"))["traceEvents"]
    groups = [event["args"]["name"] for event in shown if event["name"] == "process_name"]
    assert groups == ["frontend", *(f"replica {n}, {name}" for n in (0, 1) for name in ("scheduler", "sequences"))]
    # One of them at a time, too; a folder of several is no single trace.
    assert main(["check", str(folder / "trace-1.parquet")]) == 0
    with pytest.raises(Exception, match=r"has a trace for each replica; allowed: one of them, trace-0\.parquet to"):
        trace_path(folder)
    # A trace that is broken decides.
    one = read_lifecycle(folder / "trace-1.parquet")
    assert set(one.columns) == set(COLUMNS)
    (folder / "trace-1.parquet").write_bytes(b"")
    assert main(["check", str(folder)]) == 2


def test_the_worst_of_several_verdicts_is_the_fleets() -> None:
    good, cut, bad = Verdict(CONFORMS, "a"), Verdict(INCONCLUSIVE, "b"), Verdict(VIOLATES, "c")
    assert of_all([good, cut]).code == INCONCLUSIVE
    assert of_all([good, cut, bad]).code == VIOLATES
    assert of_all([good, cut, bad]).reason == "1 of 3 traces"
