"""The folder of a run: summary.json, requests.parquet, scenario.toml, the trace, and PARTIAL if the run was stopped;
answers.json if a model was asked something.

Every file is written beside its place and renamed, summary.json last: where it stands, the rest is whole. The bytes
depend on the run alone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from blink.common.config import relocated, to_toml
from blink.common.errors import InputError
from blink.common.results import I64, REQUEST_COLUMNS, Outcome, RunResult
from blink.common.states import SlotStatus
from blink.common.summary import summarize

SUMMARY_NAME = "summary.json"
REQUESTS_NAME = "requests.parquet"
SCENARIO_NAME = "scenario.toml"
ANSWERS_NAME = "answers.json"
PARTIAL_NAME = "PARTIAL"
PARTIAL_TEXT = "The run was stopped before its end: its figures cover what had happened by then.\n"

LABELLED: dict[str, type[IntEnum]] = {"outcome": Outcome, "status": SlotStatus}
"""Columns of requests.parquet that hold names."""
NOTHING = -1


class RunDir:
    """A folder that stands ready for a run, and holds nothing yet."""

    def __init__(self, path: Path, created: list[Path]) -> None:
        self.path = path
        self._created = created

    @classmethod
    def prepare(cls, path: Path | str) -> RunDir:
        """Make the folder, or take an empty one. Raises InputError if it holds files or cannot be written."""
        path = Path(path)
        created = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            if any(path.iterdir()):
                raise InputError(f"--out {path}: is not empty; allowed: a new or an empty folder")
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            raise InputError(f"--out {path}: cannot be written: {error.strerror}") from None
        return cls(path, created)

    def trace_path(self, format_name: str) -> Path | None:
        """Where the trace of the run belongs, None for format `none`."""
        return None if format_name == "none" else self.path / f"trace.{format_name}"

    def write(self, result: RunResult) -> dict[str, Any]:
        """Write the run; returns what went into summary.json."""
        summary = summarize(result)
        if result.partial:
            put(self.path / PARTIAL_NAME, lambda part: part.write_text(PARTIAL_TEXT, encoding="utf-8"))
        put(self.path / REQUESTS_NAME, lambda part: _write_requests(result, part))
        scenario = to_toml(relocated(result.scenario, self.path))
        put(self.path / SCENARIO_NAME, lambda part: part.write_text(scenario, encoding="utf-8"))
        text = to_json(summary)
        put(self.path / SUMMARY_NAME, lambda part: part.write_text(text, encoding="utf-8"))
        return summary

    def write_answers(self, answers: Sequence[tuple[str, str]]) -> None:
        """Write prompts with what a model answered."""
        rows = [{"prompt": prompt, "answer": answer} for prompt, answer in answers]
        text = json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
        put(self.path / ANSWERS_NAME, lambda part: part.write_text(text, encoding="utf-8"))

    def remove_trace(self) -> None:
        """Take back the trace of a run that is refused after all."""
        for pattern in ("trace.*", "trace-*.*"):
            for path in self.path.glob(pattern):
                path.unlink()

    def discard(self) -> None:
        """Remove the folders that `prepare` made, if the run left nothing in them."""
        for folder in self._created:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def to_json(data: dict[str, Any]) -> str:
    """Plain data as it is printed and stored: two spaces, keys in their order, no NaN, a newline at the end."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


@dataclass(frozen=True, slots=True)
class StoredRun:
    """What a run's folder says: the summary, and REQUEST_COLUMNS as int64 arrays with -1 where nothing applies."""

    path: Path
    summary: dict[str, Any]
    requests: dict[str, I64]


def read_run(path: Path | str) -> StoredRun:
    """Read a run's folder. Raises InputError naming the file that is absent or not of this form."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path}: no such folder; allowed: the folder of a run, made by blink run --out")
    for name in (SUMMARY_NAME, REQUESTS_NAME):
        if not (path / name).is_file():
            raise InputError(f"{path / name}: no such file; allowed: the folder of a run, made by blink run --out")
    try:
        summary = json.loads((path / SUMMARY_NAME).read_text(encoding="utf-8"))
        summary["blink"]["outcomes"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{path / SUMMARY_NAME}: is not the summary of a run") from None
    return StoredRun(path, summary, _read_requests(path / REQUESTS_NAME))


def requests_table(result: RunResult) -> Any:
    """The requests of a run as a pyarrow Table: REQUEST_COLUMNS, labels as words, null where nothing applies."""
    # pyarrow takes a quarter of a second to import, so only those who write pay for it.
    import pyarrow as pa

    arrays = {name: _to_arrow(name, result.requests[name]) for name in REQUEST_COLUMNS}
    request_ids = result.requests["request_id"].tolist()
    arrays["refusal"] = pa.array([result.refusals.get(request_id) for request_id in request_ids], pa.string())
    return pa.table(arrays)


def _write_requests(result: RunResult, path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(requests_table(result), path, compression="zstd")


def _to_arrow(name: str, values: I64) -> Any:
    import pyarrow as pa

    absent = values == NOTHING
    if name not in LABELLED:
        return pa.array(values, pa.int64(), mask=absent)
    labels = {member.value: member.name.lower() for member in LABELLED[name]}
    return pa.array([labels.get(value) for value in values.tolist()], pa.string())


def _read_requests(path: Path) -> dict[str, I64]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError):
        raise InputError(f"{path}: is not a Parquet file") from None
    missing = [name for name in REQUEST_COLUMNS if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: column {missing[0]} is missing; needed: {', '.join(REQUEST_COLUMNS)}")
    return {name: _from_arrow(path, name, table[name]) for name in REQUEST_COLUMNS}


def _from_arrow(path: Path, name: str, column: Any) -> I64:
    import pyarrow as pa
    import pyarrow.compute as pc

    if name not in LABELLED:
        if column.type != pa.int64():
            raise InputError(f"{path}: column {name} is {column.type}: must be int64")
        return np.asarray(pc.fill_null(column, NOTHING).to_numpy(), dtype=np.int64)
    codes: dict[str | None, int] = {member.name.lower(): member.value for member in LABELLED[name]}
    allowed = ", ".join(str(label) for label in codes)
    codes[None] = NOTHING
    values = column.to_pylist()
    for row, value in enumerate(values):
        if value not in codes:
            raise InputError(f"{path}: row {row}: {name} = {value!r}: must be {allowed}")
    return np.array([codes[value] for value in values], dtype=np.int64)


def put(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make the file beside its place, and rename it. Raises InputError if it cannot be written."""
    part = path.with_name(f".{path.name}.part")
    try:
        write(part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None
