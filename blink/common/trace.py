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
    "trace_path",
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
        raise InputError(f"{path}: no trace in this folder; allowed: a folder with {' or '.join(TRACE_FILE_NAMES)}")
    if not path.is_file():
        raise InputError(f"{path}: no such file; allowed: a trace or a run's folder")
    return path


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
