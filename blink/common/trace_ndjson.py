"""Traces as NDJSON: the header line, one line an event with the columns that apply, the footer line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from blink.common.errors import InputError
from blink.common.events import COLUMNS, CONSTANT_COLUMNS, NOTHING, Column
from blink.common.states import Actor
from blink.common.trace_data import (
    COLUMN_BY_NAME,
    Columns,
    Ints,
    Trace,
    TraceFooter,
    TraceHeader,
    check_chunk,
    nothing_column,
    shorten,
)

_ROWS_AT_ONCE = 1 << 16
_CUT = object()
"""What stands for the cut end of a file."""


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class NdjsonWriter:
    """Writes a trace line by line into `path` + ".part" and renames it on close."""

    def __init__(self, path: Path, header: TraceHeader) -> None:
        self._path = path
        self._evidence = header.evidence
        self._part = path.with_name(path.name + ".part")
        self._file = self._part.open("w", encoding="utf-8", newline="\n")
        self._file.write(_dump(header.to_json()) + "\n")
        self._prefixes = [
            _dump({"run": header.run, "backend": header.backend, "clock": clock})[:-1] + ","
            for clock in header.clock_names()
        ]

    def write(self, columns: Mapping[str, Ints], count: int) -> None:
        """Append the first `count` rows of the columns; a column that is left out applies to none of them."""
        check_chunk(columns, count, self._evidence)
        prefixes = np.asarray(columns["actor"][:count]).tolist() if count else []
        lines: list[list[str]] = [[] for _ in range(count)]
        for column in COLUMNS:
            if column.name in columns:
                _append_column(lines, column, columns[column.name][:count])
        self._file.writelines(
            f"{self._prefixes[actor]}{','.join(parts)}}}\n" for actor, parts in zip(prefixes, lines, strict=True)
        )

    def close(self, footer: TraceFooter | None) -> None:
        """Write the footer line and put the file in its place; without a footer the trace reads as truncated."""
        if footer is not None:
            self._file.write(_dump(footer.to_json()) + "\n")
        self._file.close()
        self._part.replace(self._path)

    def abort(self) -> None:
        """Throw away what was written."""
        self._file.close()
        self._part.unlink(missing_ok=True)


def _append_column(lines: list[list[str]], column: Column, values: Ints) -> None:
    """Add `"name":value` to the lines that the column applies to."""
    rows = np.flatnonzero(values != NOTHING).tolist()
    chosen = values[rows].tolist()
    key = f'"{column.name}":'
    if column.labels is None:
        for row, value in zip(rows, chosen, strict=True):
            lines[row].append(f"{key}{value}")
        return
    texts = {member.value: f'{key}"{member.name.lower()}"' for member in column.labels}
    for row, value in zip(rows, chosen, strict=True):
        lines[row].append(texts[value])


def read_ndjson(path: Path) -> Trace:
    """Read a trace. A cut last line or a missing footer line gives `footer` None; anything else wrong an InputError."""
    with path.open("rb") as file:
        lines = enumerate(file, start=1)
        header = _read_header(path, next(lines, (1, b"")))
        chunks: list[Columns] = []
        footer: TraceFooter | None = None
        counted = _event_rows(path, lines)
        while rows := list(islice(counted, _ROWS_AT_ONCE)):
            if "kind" in rows[-1][1]:
                number, found = rows.pop()
                footer = TraceFooter.from_json(found, f"{path}: line {number}")
            chunks.append(_chunk(path, header, rows))
    return Trace(str(path), header, footer, _join(chunks))


def _read_header(path: Path, first: tuple[int, bytes]) -> TraceHeader:
    found = _parse(path, *first)
    if found is _CUT:
        raise InputError(f"{path}: line 1 is {shorten(first[1][:40])}; allowed: a trace's header line")
    if not isinstance(found, dict) or found.get("kind") != "header":
        raise InputError(f"{path}: line 1 is {shorten(found)}; allowed: a trace's header line (kind = header)")
    return TraceHeader.from_json(found, f"{path}: line 1")


def _parse(path: Path, number: int, line: bytes) -> Any:
    """The JSON value of a line; _CUT if the line is the cut end of the file."""
    try:
        return json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        if not line.endswith(b"\n"):
            return _CUT
        raise InputError(
            f"{path}: line {number} is {shorten(line.decode('utf-8', 'replace'))}; allowed: one JSON object"
        ) from None


def _event_rows(path: Path, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Numbered rows up to and with the footer; nothing may follow the footer."""
    for number, line in lines:
        found = _parse(path, number, line)
        if found is _CUT:
            return
        if not isinstance(found, dict):
            raise InputError(f"{path}: line {number} is {shorten(found)}; allowed: one JSON object")
        yield number, found
        if "kind" in found:
            if found["kind"] != "footer":
                raise InputError(f"{path}: line {number}: kind is {shorten(found['kind'])}; allowed: footer")
            after = next(lines, None)
            if after is not None:
                raise InputError(
                    f"{path}: line {after[0]} is {shorten(after[1])}; allowed: nothing after the footer line"
                )
            return


def _chunk(path: Path, header: TraceHeader, rows: list[tuple[int, dict[str, Any]]]) -> Columns:
    clocks = header.clock_names()
    converters = {column.name: _converter(column) for column in COLUMNS}
    lists: dict[str, list[int]] = {}
    for index, (number, row) in enumerate(rows):
        for name, value in row.items():
            convert = converters.get(name)
            if convert is None:
                _check_constant(path, number, name, value, header, clocks[row.get("actor") == Actor.GPU.label])
                continue
            code = convert(value)
            if code is None:
                raise InputError(
                    f"{path}: line {number}, column {name}: {shorten(value)}; "
                    f"allowed: {allowed_values(COLUMN_BY_NAME[name])}"
                )
            values = lists.get(name)
            if values is None:
                values = lists[name] = [NOTHING] * len(rows)
            values[index] = code
        for name in ("seq", "actor", "event"):
            if name not in row:
                raise InputError(f"{path}: line {number}, column {name}: missing; every event has it")
    return {
        column.name: np.array(lists[column.name], dtype=column.dtype)
        if column.name in lists
        else nothing_column(column, len(rows))
        for column in COLUMNS
    }


def _check_constant(path: Path, number: int, name: str, value: Any, header: TraceHeader, clock: str) -> None:
    expected = {"run": header.run, "backend": header.backend, "clock": clock}
    if name not in expected:
        names = ", ".join((*CONSTANT_COLUMNS, *COLUMN_BY_NAME))
        raise InputError(f"{path}: line {number}, column {name}: unknown; allowed: {names}")
    if value != expected[name]:
        raise InputError(f"{path}: line {number}, column {name}: {shorten(value)}; allowed: {expected[name]!r}")


def _converter(column: Column) -> Callable[[Any], int | None]:
    """A function from a JSON value to the column's integer; None if the value is not allowed."""
    if column.labels is not None:
        codes: dict[str, int] = {member.name.lower(): member.value for member in column.labels}
        return lambda value: codes.get(value) if isinstance(value, str) else None
    high = int(np.iinfo(column.dtype).max)
    return lambda value: value if type(value) is int and 0 <= value <= high else None


def allowed_values(column: Column) -> str:
    """What may stand in a column, for messages."""
    if column.labels is not None:
        return ", ".join(member.name.lower() for member in column.labels)
    return f"an integer from 0 to {np.iinfo(column.dtype).max}"


def _join(chunks: list[Columns]) -> Columns:
    if not chunks:
        return {column.name: np.empty(0, column.dtype) for column in COLUMNS}
    return {column.name: np.concatenate([chunk[column.name] for chunk in chunks]) for column in COLUMNS}
