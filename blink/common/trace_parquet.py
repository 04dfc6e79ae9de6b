"""Traces as Parquet: labels as dictionary strings, nulls where a column does not apply, header and footer as metadata.

The rows are gathered into row groups of a fixed size, so that the bytes do not depend on how a caller cut its chunks.
Integers are DELTA_BINARY_PACKED: sequence numbers, times and steps rise slowly, and it measures faster here than a
dictionary or plain pages. A column that applies to no row of a group is written as a null array at no cost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from blink.common.errors import InputError
from blink.common.events import COLUMNS, CONSTANT_COLUMNS, NOTHING, Column, written_columns
from blink.common.trace_data import (
    Columns,
    Ints,
    Trace,
    TraceFooter,
    TraceHeader,
    check_chunk,
    nothing_column,
    shorten,
)
from blink.common.trace_ndjson import allowed_values

HEADER_KEY = "blink.header"
FOOTER_KEY = "blink.footer"
ROW_GROUP_ROWS = 1 << 18
_LABEL_TYPE = pa.dictionary(pa.int8(), pa.string())
_MANDATORY = ("seq", "actor", "event")


def _labels(column: Column) -> list[str]:
    assert column.labels is not None
    return [member.name.lower() for member in column.labels]


def _arrow_type(column: Column) -> pa.DataType:
    return _LABEL_TYPE if column.labels is not None else pa.from_numpy_dtype(column.dtype)


class ParquetWriter:
    """Writes a trace into `path` + ".part", a row group at a time, and renames it on close."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._header = header
        self._columns = written_columns(header.evidence)
        self._held: Columns = {column.name: np.empty(ROW_GROUP_ROWS, column.dtype) for column in self._columns}
        self._applies: dict[str, bool] = {}
        self._held_rows = 0
        self._start_group()
        integers = [column.name for column in self._columns if column.labels is None]
        names = [column.name for column in self._columns if column.labels is not None]
        self._schema = pa.schema(
            [(name, _LABEL_TYPE) for name in CONSTANT_COLUMNS]
            + [(column.name, _arrow_type(column)) for column in self._columns]
        )
        self._writer = pq.ParquetWriter(
            str(self._part),
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[*CONSTANT_COLUMNS, *names],
            column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"),
            write_statistics=False,
        )

    def write(self, columns: Mapping[str, Ints], count: int) -> None:
        """Append the first `count` rows of the columns; a column that is left out applies to none of them."""
        check_chunk(columns, count, self._header.evidence)
        start = 0
        while start < count:
            taken = min(count - start, ROW_GROUP_ROWS - self._held_rows)
            self._hold(columns, start, taken)
            start += taken
            if self._held_rows == ROW_GROUP_ROWS:
                self._flush()

    def close(self, footer: TraceFooter | None) -> None:
        """Write what is held, then header and footer, and put the file in its place; no footer reads as truncated."""
        self._flush()
        metadata = {HEADER_KEY: json.dumps(self._header.to_json())}
        if footer is not None:
            metadata[FOOTER_KEY] = json.dumps(footer.to_json())
        self._writer.add_key_value_metadata(metadata)
        self._writer.close()
        self._part.replace(self._path)

    def abort(self) -> None:
        """Throw away what was written."""
        self._writer.close()
        self._part.unlink(missing_ok=True)

    def _start_group(self) -> None:
        self._held_rows = 0
        self._applies = {column.name: False for column in self._columns}

    def _hold(self, columns: Mapping[str, Ints], start: int, count: int) -> None:
        begin, end = self._held_rows, self._held_rows + count
        for column in self._columns:
            held = self._held[column.name]
            if column.name in columns:
                if not self._applies[column.name]:
                    held[:begin] = NOTHING
                    self._applies[column.name] = True
                held[begin:end] = columns[column.name][start : start + count]
            elif self._applies[column.name]:
                held[begin:end] = NOTHING
        self._held_rows = end

    def _flush(self) -> None:
        count = self._held_rows
        if count == 0:
            return
        actors = self._held["actor"][:count]
        zeros = np.zeros(count, np.int8)
        arrays = [
            _dictionary(zeros, [self._header.run]),
            _dictionary(zeros, [self._header.backend]),
            _clock_array(actors, zeros, self._header.clock_names()),
        ]
        arrays += [
            _to_arrow(column, self._held[column.name][:count]) if self._applies[column.name] else _nulls(column, count)
            for column in self._columns
        ]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema), row_group_size=ROW_GROUP_ROWS)
        self._start_group()


def _clock_array(actors: Ints, zeros: Ints, names: list[str]) -> pa.Array:
    shared = names[0] == names[1]
    return _dictionary(zeros, names[:1]) if shared else _dictionary(actors, names)


def _dictionary(codes: Any, labels: list[str]) -> pa.Array:
    if not isinstance(codes, pa.Array):
        codes = pa.array(codes, type=pa.int8())
    return pa.DictionaryArray.from_arrays(codes, pa.array(labels, type=pa.string()))


def _nulls(column: Column, count: int) -> pa.Array:
    if column.labels is None:
        return pa.nulls(count, _arrow_type(column))
    return _dictionary(pa.nulls(count, pa.int8()), _labels(column))


def _to_arrow(column: Column, values: Ints) -> pa.Array:
    mask = values == NOTHING
    if mask.all():
        return _nulls(column, len(values))
    array = pa.array(values, mask=mask) if mask.any() else pa.array(values)
    return array if column.labels is None else _dictionary(array, _labels(column))


def read_parquet(path: Path, names: Sequence[str] | None = None) -> Trace:
    """Read a trace, or only the named columns of it. Raises InputError for a file that is broken or is no trace."""
    try:
        with pq.ParquetFile(str(path)) as file:
            header, footer = _read_metadata(path, file)
            columns = _read_columns(path, file, header, names)
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{path}: not a readable Parquet file ({shorten(reason)})") from None
    return Trace(str(path), header, footer, columns)


def _read_metadata(path: Path, file: Any) -> tuple[TraceHeader, TraceFooter | None]:
    metadata = file.metadata.metadata or {}
    where = f"{path}: metadata"
    if HEADER_KEY.encode() not in metadata:
        raise InputError(f"{where} {HEADER_KEY} is missing; allowed: a Parquet file written as a trace")
    header = TraceHeader.from_json(_json_of(where, metadata, HEADER_KEY), f"{where} {HEADER_KEY}")
    if FOOTER_KEY.encode() not in metadata:
        return header, None
    return header, TraceFooter.from_json(_json_of(where, metadata, FOOTER_KEY), f"{where} {FOOTER_KEY}")


def _json_of(where: str, metadata: Mapping[bytes, bytes], key: str) -> Any:
    text = metadata[key.encode()]
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise InputError(f"{where} {key} is {shorten(text)}; allowed: a JSON object") from None


def _read_columns(path: Path, file: Any, header: TraceHeader, names: Sequence[str] | None) -> Columns:
    known = {column.name for column in COLUMNS} | set(CONSTANT_COLUMNS)
    for name in file.schema_arrow.names:
        if name not in known:
            raise InputError(f"{path}: column {name}: unknown; allowed: {', '.join(sorted(known))}")
    for name in _MANDATORY:
        if name not in file.schema_arrow.names:
            raise InputError(f"{path}: column {name}: missing; every trace has it")
    if names is None or set(_MANDATORY) <= set(names):  # who reads further columns one at a time has been here before
        _check_constants(path, file, header)
    wanted = [column for column in COLUMNS if names is None or column.name in names]
    return {column.name: _read_column(path, file, column) for column in wanted}


def _check_constants(path: Path, file: Any, header: TraceHeader) -> None:
    allowed = {"run": {header.run}, "backend": {header.backend}, "clock": set(header.clock_names())}
    for name in CONSTANT_COLUMNS:
        if name not in file.schema_arrow.names:
            continue
        for group in range(file.num_row_groups):
            found = file.read_row_group(group, columns=[name], use_threads=False).column(0)
            for value in found.unique().to_pylist():
                if value not in allowed[name]:
                    raise InputError(
                        f"{path}: column {name}: {shorten(value)}; allowed: {', '.join(sorted(allowed[name]))}"
                    )


def _read_column(path: Path, file: Any, column: Column) -> Ints:
    """One column of all row groups as numpy; a column without a value costs no memory."""
    total = file.metadata.num_rows
    if column.name not in file.schema_arrow.names:
        return nothing_column(column, total)
    values: Ints | None = None
    start = 0
    for group in range(file.num_row_groups):
        found = file.read_row_group(group, columns=[column.name], use_threads=False).column(0)
        count = len(found)
        if found.null_count < count:
            if values is None:
                values = np.full(total, NOTHING, column.dtype)
            for chunk in found.chunks:
                values[start : start + len(chunk)] = _from_arrow(path, column, chunk, start)
                start += len(chunk)
        else:
            start += count
    if values is None:
        values = nothing_column(column, total)
    if column.name in _MANDATORY and (values == NOTHING).any():
        row = int(np.flatnonzero(values == NOTHING)[0])
        raise InputError(f"{path}: row {row}, column {column.name}: missing; every event has it")
    return values


def _from_arrow(path: Path, column: Column, chunk: pa.Array, first_row: int) -> Ints:
    if column.labels is not None:
        return _codes_of_labels(path, column, chunk, first_row)
    if not pa.types.is_integer(chunk.type):
        raise InputError(f"{path}: column {column.name}: type {chunk.type}; allowed: {allowed_values(column)}")
    values = np.asarray(chunk.fill_null(NOTHING) if chunk.null_count else chunk)
    valid = np.asarray(chunk.is_valid()) if chunk.null_count else True
    wrong = ((values < 0) | (values > np.iinfo(column.dtype).max)) & valid
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"{path}: row {first_row + row}, column {column.name}: {values[row]}; allowed: {allowed_values(column)}"
        )
    return values.astype(column.dtype, copy=False)


def _codes_of_labels(path: Path, column: Column, chunk: pa.Array, first_row: int) -> Ints:
    if pa.types.is_string(chunk.type) or pa.types.is_large_string(chunk.type):
        chunk = chunk.dictionary_encode()
    if not pa.types.is_dictionary(chunk.type):
        raise InputError(f"{path}: column {column.name}: type {chunk.type}; allowed: {allowed_values(column)}")
    codes = {label: code for code, label in enumerate(_labels(column))}
    labels = chunk.dictionary.to_pylist()
    lookup = np.array([codes.get(label, -2) for label in labels] + [NOTHING], dtype=np.int8)
    indices = np.asarray(chunk.indices.fill_null(len(labels)) if chunk.null_count else chunk.indices)
    values: Ints = lookup[indices]
    if (values == -2).any():
        row = int(np.flatnonzero(values == -2)[0])
        raise InputError(
            f"{path}: row {first_row + row}, column {column.name}: {shorten(labels[indices[row]])}; "
            f"allowed: {allowed_values(column)}"
        )
    return values
