"""Traces on disk: both formats hold the same rows, the same input gives the same bytes, broken files are refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from blink.common.errors import InputError
from blink.common.events import COLUMNS, EVIDENCE_OF
from blink.common.ring_model import FIELD_OF_COLUMN, Record
from blink.common.trace import Trace, TraceFooter, TraceHeader, open_writer, read_trace
from blink.common.trace_parquet import ROW_GROUP_ROWS
from tests.unit.trace_builder import TraceBuilder, random_run

SUFFIXES = (".ndjson", ".parquet")
FOOTER = TraceFooter(
    {"frontend": 5, "gpu": 7}, {"frontend": 0, "gpu": 2}, {"free": 4096, "in_use": 0, "recovering": 0}, False, 12
)


def write(trace: Trace, path: Path, chunk: int = 1000, footer: TraceFooter | None = FOOTER) -> Path:
    writer = open_writer(path, trace.header)
    for start in range(0, len(trace), chunk):
        rows = {name: values[start : start + chunk] for name, values in trace.columns.items()}
        writer.write(rows, min(chunk, len(trace) - start))
    writer.close(footer)
    return path


@pytest.fixture(scope="module")
def trace() -> Trace:
    return random_run(np.random.default_rng(7)).trace()


def test_a_record_has_the_columns_of_a_trace_in_order() -> None:
    assert Record._fields[1:] == tuple(FIELD_OF_COLUMN.get(column.name, column.name) for column in COLUMNS)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("chunk", [1, 7, 100_000])
def test_round_trip(trace: Trace, tmp_path: Path, suffix: str, chunk: int) -> None:
    found = read_trace(write(trace, tmp_path / f"t{suffix}", chunk))
    assert found.header == trace.header
    assert found.footer == FOOTER
    assert len(found) == len(trace) > 100
    for column in COLUMNS:
        values = found.columns[column.name]
        assert values.dtype == column.dtype, column.name
        np.testing.assert_array_equal(values, trace.columns[column.name], err_msg=column.name)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_rows_give_the_same_bytes_however_they_are_cut(trace: Trace, tmp_path: Path, suffix: str) -> None:
    first = write(trace, tmp_path / f"a{suffix}", 13).read_bytes()
    assert write(trace, tmp_path / f"b{suffix}", 100_000).read_bytes() == first


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_evidence_stands_in_a_file_whose_header_names_it(tmp_path: Path, suffix: str) -> None:
    found = random_run(np.random.default_rng(3), evidence=("wrong_count",)).trace()
    read = read_trace(write(found, tmp_path / f"t{suffix}"))
    assert read.header.evidence == ("wrong_count",)
    assert (read.columns["wrong_count"] == 0).any()
    np.testing.assert_array_equal(read.columns["wrong_count"], found.columns["wrong_count"])
    assert (read.columns["stored_count"] == -1).all()
    unnamed = Trace(found.source, replace(found.header, evidence=()), found.footer, found.columns)
    with pytest.raises(ValueError, match="wrong_count"):
        write(unnamed, tmp_path / f"u{suffix}")


def test_a_trace_without_evidence_has_the_bytes_that_it_had_before_there_was_any(trace: Trace, tmp_path: Path) -> None:
    first = write(trace, tmp_path / "t.ndjson").read_text().splitlines()
    assert "evidence" not in json.loads(first[0])
    assert not any(name in line for line in first for name in EVIDENCE_OF)
    with pq.ParquetFile(write(trace, tmp_path / "t.parquet")) as file:
        assert not set(file.schema_arrow.names) & set(EVIDENCE_OF)


def test_evidence_that_does_not_exist_is_refused(trace: Trace, tmp_path: Path) -> None:
    path = write(trace, tmp_path / "t.ndjson")
    header, *rest = path.read_text().splitlines(keepends=True)
    for wrong in (["prompt_hash"], "prompt_tag", [1]):
        path.write_text(json.dumps({**json.loads(header), "evidence": wrong}) + "\n" + "".join(rest))
        with pytest.raises(InputError, match=r"line 1: header\.evidence is .*; allowed: a list of prompt_tag"):
            read_trace(path)


def test_row_groups_are_cut_by_rows_alone(tmp_path: Path) -> None:
    count = ROW_GROUP_ROWS + 5
    columns = {
        "seq": np.arange(count),
        "actor": np.ones(count, np.int8),
        "event": np.full(count, 5, np.int8),
        "kv_block_count": np.where(np.arange(count) == count - 1, 9, -1).astype(np.int32),
    }
    writer = open_writer(tmp_path / "t.parquet", TraceHeader("r", "b", 0, 1))
    writer.write(columns, count)
    writer.close(None)
    with pq.ParquetFile(tmp_path / "t.parquet") as file:
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [ROW_GROUP_ROWS, 5]
    found = read_trace(tmp_path / "t.parquet")
    np.testing.assert_array_equal(found.columns["kv_block_count"], columns["kv_block_count"])
    assert (found.columns["slot"] == -1).all()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_empty_trace(tmp_path: Path, suffix: str) -> None:
    found = read_trace(write(TraceBuilder().trace(), tmp_path / f"t{suffix}"))
    assert len(found) == 0
    assert found.footer == FOOTER


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_no_footer_reads_as_truncated(trace: Trace, tmp_path: Path, suffix: str) -> None:
    assert read_trace(write(trace, tmp_path / f"t{suffix}", footer=None)).footer is None


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nothing_stands_at_the_path_until_close(trace: Trace, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    writer = open_writer(path, trace.header)
    writer.write(trace.columns, len(trace))
    assert not path.exists()
    assert (tmp_path / f"t{suffix}.part").exists()
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_each_line_holds_only_what_applies(trace: Trace, tmp_path: Path) -> None:
    lines = write(trace, tmp_path / "t.ndjson").read_text().splitlines()
    events = [json.loads(line) for line in lines[1:-1]]
    assert len(events) == len(trace)
    for event in events:
        assert (event["run"], event["backend"], event["clock"]) == ("test", "builder", "virtual")
        assert None not in event.values()
        assert -1 not in event.values()
    read = next(event for event in events if event["event"] == "status_read")
    assert set(read) == {"run", "backend", "clock", "seq", "actor", "instance", "t_ns", "event", "phase"}


def test_parquet_holds_names_and_nulls_for_other_tools(trace: Trace, tmp_path: Path) -> None:
    table = pq.read_table(write(trace, tmp_path / "t.parquet"))
    assert set(table.column("run").to_pylist()) == {"test"}
    assert set(table.column("clock").to_pylist()) == {"virtual"}
    by_event = dict(zip(table.column("event").to_pylist(), table.column("to").to_pylist(), strict=True))
    assert by_event["claim"] == "prefill_processing"
    assert by_event["status_read"] is None
    assert table.column("kv_block_count").null_count > 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_clocks_that_are_not_shared_are_named_by_row(trace: Trace, tmp_path: Path, suffix: str) -> None:
    clock = {"frontend": {"name": "arm", "unit": "ns"}, "gpu": {"name": "globaltimer", "unit": "ns"}, "shared": False}
    header = TraceHeader("r", "b", 0, 1, clock=clock)
    path = write(Trace("", header, None, trace.columns), tmp_path / f"t{suffix}")
    assert read_trace(path).header.clock == clock
    if suffix == ".parquet":
        table = pq.read_table(path)
        rows = set(zip(table.column("actor").to_pylist(), table.column("clock").to_pylist(), strict=True))
        assert rows == {("frontend", "arm"), ("gpu", "globaltimer")}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_run_directory_and_chosen_columns(trace: Trace, tmp_path: Path, suffix: str) -> None:
    write(trace, tmp_path / f"trace{suffix}")
    found = read_trace(tmp_path, names=["slot", "seq"])
    assert set(found.columns) == {"slot", "seq"}
    np.testing.assert_array_equal(found.columns["slot"], trace.columns["slot"])


def test_paths_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no trace in this folder; allowed: .*trace\.parquet"):
        read_trace(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "absent.ndjson")
    (tmp_path / "t.csv").write_text("")
    with pytest.raises(InputError, match=r"suffix is '\.csv'; allowed: \.ndjson, \.parquet"):
        read_trace(tmp_path / "t.csv")
    with pytest.raises(InputError, match="suffix"):
        open_writer(tmp_path / "t.csv", TraceHeader("r", "b", 0, 1))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_writer_refuses_chunks_that_are_no_chunks(tmp_path: Path, suffix: str) -> None:
    writer = open_writer(tmp_path / f"t{suffix}", TraceHeader("r", "b", 0, 1))
    with pytest.raises(ValueError, match="'sloth' does not exist"):
        writer.write({"sloth": np.zeros(1, np.int32)}, 1)
    with pytest.raises(ValueError, match="'slot' has 1 values, the chunk has 2"):
        writer.write({"slot": np.zeros(1, np.int32)}, 2)
    writer.abort()


@pytest.fixture
def lines(trace: Trace, tmp_path: Path) -> list[str]:
    return write(trace, tmp_path / "good.ndjson").read_text().splitlines(keepends=True)


def read_lines(tmp_path: Path, lines: list[str]) -> Trace:
    path = tmp_path / "t.ndjson"
    path.write_text("".join(lines))
    return read_trace(path)


def test_a_file_cut_anywhere_in_a_line_is_truncated_not_broken(tmp_path: Path, lines: list[str]) -> None:
    text = "".join(lines)
    start = len(lines[0])
    for end in range(start, len(text) - 1, 997):
        found = read_lines(tmp_path, [text[:end]])
        assert found.footer is None
        assert len(found) == max(text[:end].count("\n") - 1, 0) + (text[:end].endswith("}"))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("event", "tokn", r"line 2, column event: 'tokn'; allowed: submit, claim, .*restarted"),
        ("event", 5, r"line 2, column event: 5; allowed: submit"),
        ("slot", -1, r"line 2, column slot: -1; allowed: an integer from 0 to 2147483647"),
        ("slot", True, r"column slot: True"),
        ("slot", 1.5, r"column slot: 1\.5"),
        ("slot", 2**31, r"column slot: 2147483648"),
        ("slot", None, r"column slot: None"),
        ("seq", [], r"column seq: \[\]"),
        ("to", "finished", r"column to: 'finished'; allowed: empty, prefill_pending"),
        ("colour", 1, r"column colour: unknown; allowed: run, backend, clock, seq"),
        ("run", "other", r"column run: 'other'; allowed: 'test'"),
        ("clock", "wall", r"column clock: 'wall'; allowed: 'virtual'"),
        ("kind", "event", r"line 2: kind is 'event'; allowed: footer"),
    ],
)
def test_ndjson_with_a_wrong_value_is_refused(
    tmp_path: Path, lines: list[str], column: str, value: Any, message: str
) -> None:
    lines[1] = json.dumps({**json.loads(lines[1]), column: value}) + "\n"
    with pytest.raises(InputError, match=message) as refusal:
        read_lines(tmp_path, lines)
    assert "\n" not in str(refusal.value)
    assert "t.ndjson" in str(refusal.value)


@pytest.mark.parametrize("name", ["seq", "actor", "event"])
def test_every_event_has_seq_actor_and_event(tmp_path: Path, lines: list[str], name: str) -> None:
    event = json.loads(lines[1])
    del event[name]
    lines[1] = json.dumps(event) + "\n"
    with pytest.raises(InputError, match=f"line 2, column {name}: missing"):
        read_lines(tmp_path, lines)


@pytest.mark.parametrize("line", ["null\n", "17\n", "[]\n", "{,}\n", "\n", "\x00\n", "[" * 100_000 + "\n"])
def test_lines_that_are_no_object_are_refused(tmp_path: Path, lines: list[str], line: str) -> None:
    with pytest.raises(InputError, match=r"line 3 is .*; allowed: one JSON object"):
        read_lines(tmp_path, [*lines[:2], line, *lines[2:]])
    with pytest.raises(InputError, match="line 1 is"):
        read_lines(tmp_path, [line])


def test_nothing_may_follow_the_footer(tmp_path: Path, lines: list[str]) -> None:
    with pytest.raises(InputError, match="allowed: nothing after the footer line"):
        read_lines(tmp_path, [*lines, lines[1]])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("version", 2, r"header\.version is 2; allowed: an integer from 1 to 1"),
        ("slot_count", 0, r"header\.slot_count is 0; allowed: an integer from 1 to 4096"),
        ("layout_hash", "xyz", r"header\.layout_hash is 'xyz'; allowed: hex digits"),
        ("layout_hash", 5, r"header\.layout_hash is 5; allowed: a string"),
        ("token_reads", "some", r"header\.token_reads is 'some'; allowed: ranges, each"),
        ("clock", {}, r"header\.clock\.frontend is None"),
        ("epoch", 256, r"header\.epoch is 256"),
        ("run", None, r"header\.run is None; allowed: a string"),
    ],
)
def test_a_wrong_header_is_refused(tmp_path: Path, lines: list[str], field: str, value: Any, message: str) -> None:
    lines[0] = json.dumps({**json.loads(lines[0]), field: value}) + "\n"
    with pytest.raises(InputError, match=f"line 1: {message}"):
        read_lines(tmp_path, lines)


def test_a_wrong_footer_is_refused(tmp_path: Path, lines: list[str]) -> None:
    lines[-1] = json.dumps({**json.loads(lines[-1]), "dropped": {"frontend": 0, "gpu": -1}}) + "\n"
    with pytest.raises(InputError, match=r"footer\.dropped\.gpu is -1; allowed: an integer from 0"):
        read_lines(tmp_path, lines)


def rewrite(path: Path, **changed: pa.Array | None) -> Path:
    """The Parquet file with columns replaced, or removed where None."""
    table = pq.read_table(path)
    metadata = pq.read_metadata(path).metadata
    for name, values in changed.items():
        at = table.schema.get_field_index(name)
        if values is None:
            table = table.remove_column(at)
        elif at < 0:
            table = table.append_column(name, values)
        else:
            table = table.set_column(at, name, values)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def test_parquet_from_another_writer_reads_the_same(trace: Trace, tmp_path: Path) -> None:
    path = write(trace, tmp_path / "t.parquet")
    table = pq.read_table(path)
    plain = {name: table.column(name).cast(pa.string()).combine_chunks() for name in ("event", "actor", "to")}
    found = read_trace(rewrite(path, **plain, kv_block_count=table.column("kv_block_count").cast(pa.int64())))
    for column in COLUMNS:
        np.testing.assert_array_equal(found.columns[column.name], trace.columns[column.name])


def test_broken_parquet_is_refused_by_row_and_column(trace: Trace, tmp_path: Path) -> None:
    path, count = tmp_path / "t.parquet", len(trace)
    cases: list[tuple[dict[str, pa.Array | None], str]] = [
        (
            {"event": pa.array(["token", "tokn"] * (count // 2) + ["token"] * (count % 2))},
            r"row 1, column event: 'tokn'",
        ),
        ({"slot": pa.array([0, 0, -7] + [0] * (count - 3))}, r"row 2, column slot: -7; allowed: an integer"),
        ({"slot": pa.array(["a"] * count)}, r"column slot: type string"),
        ({"event": pa.array([5] * count)}, r"column event: type int64"),
        ({"seq": None}, r"column seq: missing"),
        ({"seq": pa.array([None, *range(count - 1)])}, r"row 0, column seq: missing"),
        ({"seq": pa.nulls(count, pa.int64())}, r"row 0, column seq: missing"),
        ({"colour": pa.array([1] * count)}, r"column colour: unknown"),
        ({"run": pa.array(["other"] * count)}, r"column run: 'other'; allowed: test"),
    ]
    for changed, message in cases:
        write(trace, path)
        with pytest.raises(InputError, match=message) as refusal:
            read_trace(rewrite(path, **changed))
        assert "t.parquet" in str(refusal.value)
        assert "\n" not in str(refusal.value)


def test_parquet_that_is_no_trace_or_no_parquet(trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(InputError, match=r"metadata blink\.header is missing"):
        read_trace(path)
    good = write(trace, path).read_bytes()
    for content in (b"", b"PAR1", good[: len(good) // 2], good[:-1], b"{}"):
        path.write_bytes(content)
        with pytest.raises(InputError, match="not a readable Parquet file"):
            read_trace(path)
