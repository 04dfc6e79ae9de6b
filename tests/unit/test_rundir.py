"""The folder of a run: refused before work, whole or absent, the same bytes for the same run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blink.common.config import load_scenario
from blink.common.errors import InputError
from blink.common.results import REQUEST_COLUMNS
from blink.common.summary import summarize
from blink.report.rundir import RunDir, read_run, to_json
from tests.runs import made_up_run

NAMES = ["requests.parquet", "scenario.toml", "summary.json"]


def test_a_run_leaves_three_files_and_nothing_beside(tmp_path: Path) -> None:
    summary = RunDir.prepare(tmp_path / "a" / "run").write(made_up_run())
    folder = tmp_path / "a" / "run"
    assert sorted(path.name for path in folder.iterdir()) == NAMES
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8")) == summary
    assert summary == json.loads(to_json(summarize(made_up_run())))
    assert load_scenario(folder / "scenario.toml").resolved() == made_up_run().scenario


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        RunDir.prepare(tmp_path / name).write(made_up_run())
    for name in NAMES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_requests_have_names_and_nulls(tmp_path: Path) -> None:
    run = made_up_run()
    RunDir.prepare(tmp_path).write(run)
    table = pq.read_table(tmp_path / "requests.parquet")
    assert table.column_names == [*REQUEST_COLUMNS, "refusal"]
    outcomes = table["outcome"].to_pylist()
    assert set(outcomes) == {"completed", "cancelled", "failed", "refused", "unfinished"}
    assert {row["refusal"] for row in table.to_pylist() if row["outcome"] == "refused"} == {
        "prompt longer than the prompt area"
    }
    assert all(row["refusal"] is None for row in table.to_pylist() if row["outcome"] != "refused")
    assert {row["status"] for row in table.to_pylist() if row["outcome"] == "completed"} == {"length"}
    assert table["ttft_ns"].null_count == len(outcomes) - outcomes.count("completed")
    assert table["source_row"].null_count == len(outcomes)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    run = made_up_run()
    summary = RunDir.prepare(tmp_path).write(run)
    stored = read_run(tmp_path)
    assert stored.summary == summary
    for name in REQUEST_COLUMNS:
        assert np.array_equal(stored.requests[name], run.requests[name]), name


def test_a_stopped_run_is_marked(tmp_path: Path) -> None:
    run = made_up_run()
    run.partial = True
    assert RunDir.prepare(tmp_path).write(run)["blink"]["partial"] is True
    assert "stopped before its end" in (tmp_path / "PARTIAL").read_text(encoding="utf-8")


def test_a_folder_with_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match="is not empty; allowed: a new or an empty folder"):
        RunDir.prepare(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(InputError, match=r"cannot be written: (File exists|Not a directory)"):
            RunDir.prepare(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written: Permission denied"):
        RunDir.prepare(tmp_path / "run")
    tmp_path.chmod(0o700)


def test_a_discarded_folder_is_gone_unless_it_holds_something(tmp_path: Path) -> None:
    RunDir.prepare(tmp_path / "a" / "b").discard()
    assert not (tmp_path / "a").exists()
    (tmp_path / "c").mkdir()
    RunDir.prepare(tmp_path / "c").discard()
    assert (tmp_path / "c").exists()  # it was there before
    kept = RunDir.prepare(tmp_path / "d")
    (kept.path / "trace.ndjson").write_text("", encoding="utf-8")
    kept.discard()
    assert (tmp_path / "d" / "trace.ndjson").exists()


def test_where_the_trace_goes(tmp_path: Path) -> None:
    folder = RunDir.prepare(tmp_path)
    assert folder.trace_path("none") is None
    assert folder.trace_path("ndjson") == tmp_path / "trace.ndjson"


def test_a_write_that_fails_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunDir.prepare(tmp_path)

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match=r"requests\.parquet: cannot be written: No space left on device"):
        folder.write(made_up_run())
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder; allowed: the folder of a run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"summary\.json: no such file; allowed: the folder of a run"):
        read_run(tmp_path)
    RunDir.prepare(tmp_path / "run").write(made_up_run())
    requests = tmp_path / "run" / "requests.parquet"
    table = pq.read_table(requests)
    pq.write_table(table.set_column(2, "outcome", pa.array(["fine"] * len(table))), requests)
    with pytest.raises(InputError, match=r"row 0: outcome = 'fine': must be completed, cancelled"):
        read_run(tmp_path / "run")
    pq.write_table(table.drop_columns(["slot"]), requests)
    with pytest.raises(InputError, match="column slot is missing"):
        read_run(tmp_path / "run")
    requests.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="is not a Parquet file"):
        read_run(tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="is not the summary of a run"):
        read_run(tmp_path / "run")
