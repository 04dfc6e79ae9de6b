"""Traces on disk: one writer and one reader for both formats.

The suffix of the path chooses the format: `.ndjson` for reading by eye and by other tools, `.parquet` for size and
speed. Both hold the same rows; `read_trace` gives the same Trace for either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from blink.common.errors import InputError
from blink.common.trace_data import (
    COLUMN_BY_NAME,
    VIRTUAL_CLOCK,
    Columns,
    Ints,
    Trace,
    TraceFooter,
    TraceHeader,
)
from blink.common.trace_ndjson import NdjsonWriter, read_ndjson

__all__ = [
    "COLUMN_BY_NAME",
    "TRACE_FILE_NAMES",
    "VIRTUAL_CLOCK",
    "Columns",
    "Ints",
    "Trace",
    "TraceFooter",
    "TraceHeader",
    "TraceWriter",
    "open_writer",
    "read_trace",
    "replica_trace_path",
    "trace_path",
    "trace_paths",
]

TRACE_FILE_NAMES = ("trace.parquet", "trace.ndjson")
"""What a trace is called inside a run's directory, in the order of preference."""


class TraceWriter(Protocol):
    """Takes a trace in chunks. Nothing stands at the path until `close`."""

    def write(self, columns: Mapping[str, Ints], count: int) -> None:
        """Append the first `count` rows; a column of COLUMNS that is left out is -1 throughout."""

    def close(self, footer: TraceFooter | None) -> None:
        """Write the footer and rename the file into place. None leaves a trace that reads as truncated."""

    def abort(self) -> None:
        """Remove what was written."""


def open_writer(path: Path | str, header: TraceHeader) -> TraceWriter:
    """A writer for `path`, whose folder must exist. Raises InputError for a suffix other than .ndjson or .parquet."""
    path = Path(path)
    if path.suffix == ".ndjson":
        return NdjsonWriter(path, header)
    if path.suffix == ".parquet":
        # pyarrow takes a quarter of a second to import, so only those who write Parquet pay for it.
        from blink.common.trace_parquet import ParquetWriter

        return ParquetWriter(path, header)
    raise InputError(f"{path}: suffix is {path.suffix!r}; allowed: .ndjson, .parquet")


def trace_path(path: Path | str) -> Path:
    """The trace file that `path` means: itself, or the trace inside a run's directory. Raises InputError if none."""
    path = Path(path)
    if path.is_dir():
        for name in TRACE_FILE_NAMES:
            if (path / name).is_file():
                return path / name
        if found := _replica_traces(path):
            names = f"{found[0].name} to {found[-1].name}" if len(found) > 1 else found[0].name
            raise InputError(f"{path}: has a trace for each replica; allowed: one of them, {names}")
        raise InputError(f"{path}: no trace in this folder; allowed: a folder with {' or '.join(TRACE_FILE_NAMES)}")
    if not path.is_file():
        raise InputError(f"{path}: no such file; allowed: a trace or a run's folder")
    return path


def replica_trace_path(path: Path, number: int) -> Path:
    """Where a fleet whose trace belongs at `path` leaves that of one replica: trace-0.parquet for trace.parquet."""
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def trace_paths(path: Path | str) -> list[tuple[int | None, Path]]:
    """The trace files that `path` means, each with the number of its replica: None for a trace that is the only one.

    Raises InputError if there is none.
    """
    path = Path(path)
    alone = not path.is_dir() or any((path / name).is_file() for name in TRACE_FILE_NAMES)
    if not alone and (found := _replica_traces(path)):
        return [(_replica_number(one), one) for one in found]
    return [(None, trace_path(path))]


def _replica_traces(folder: Path) -> list[Path]:
    """Traces of replicas in a run's folder, by their numbers."""
    for name in TRACE_FILE_NAMES:
        stem, suffix = name.split(".")
        found = [one for one in folder.glob(f"{stem}-*.{suffix}") if _replica_number(one) is not None]
        if found:
            return sorted(found, key=lambda one: _replica_number(one) or 0)
    return []


def _replica_number(path: Path) -> int | None:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else None


def read_trace(path: Path | str, names: Sequence[str] | None = None) -> Trace:
    """Read a trace file or the trace of a run's directory; `names` restricts which columns are kept.

    A trace that was cut off has `footer` None. Raises InputError, naming file, row, column, value and what is allowed,
    for anything else that is wrong.
    """
    path = trace_path(path)
    if path.suffix == ".ndjson":
        trace = read_ndjson(path)
        if names is None:
            return trace
        kept = {name: values for name, values in trace.columns.items() if name in names}
        return Trace(trace.source, trace.header, trace.footer, kept)
    if path.suffix == ".parquet":
        from blink.common.trace_parquet import read_parquet

        return read_parquet(path, names)
    raise InputError(f"{path}: suffix is {path.suffix!r}; allowed: .ndjson, .parquet")
