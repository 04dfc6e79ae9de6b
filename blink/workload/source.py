"""The trace file on disk: opened as text whatever its marks and line ends, and cut into records."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from blink.common.errors import InputError
from blink.workload.numbers import shown

if TYPE_CHECKING:
    from _csv import Reader

_HEAD_BYTES = 1 << 16
Record = tuple[int, dict[str, object]]


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The file as UTF-8 text without its byte-order mark, line ends untouched.

    Raises InputError for a missing, unreadable, compressed, binary or non-UTF-8 file, a directory, and bytes that turn
    out not to be UTF-8 while the caller reads.
    """
    if "\0" in str(path):
        raise InputError(f"{shown(str(path))}: no file can have this name")
    try:
        with path.open("rb") as raw:
            _check_head(path, raw.read(_HEAD_BYTES))
        with path.open(encoding="utf-8-sig", newline="") as text:
            yield text
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a directory, not a trace file") from None
    except UnicodeDecodeError as error:
        bad = error.object[error.start : error.start + 4]
        raise InputError(f"{path}: not UTF-8 text (bytes {bad.hex(' ')}); save it as UTF-8") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _check_head(path: Path, head: bytes) -> None:
    if not head.strip(b" \t\r\n\xef\xbb\xbf"):
        raise InputError(f"{path}: empty file")
    if head.startswith(b"\x1f\x8b"):
        raise InputError(f"{path}: compressed with gzip; unpack it first")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path}: UTF-16 text; save it as UTF-8")
    if b"\0" in head:
        raise InputError(f"{path}: a binary file, not a trace (CSV, JSON lines or JSON)")


def is_json(text: TextIO) -> bool:
    """Whether the first character that is not blank opens a JSON value; leaves the text at its start."""
    found = next((line.lstrip()[0] for line in text if line.strip()), "")
    text.seek(0)
    return found in ("{", "[")


def csv_records(path: Path, text: TextIO) -> tuple[list[str], Iterator[Record]]:
    """The header's column names and the data rows as (row number, values by column). Blank rows are passed over.

    A row number is the line of the file on which the row ends, so the header is row 1 and an editor shows the same
    number.
    """
    reader = csv.reader(text, strict=True)
    header = [name.strip() for name in _next_row(path, reader) or []]
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: row {reader.line_num}: column {shown(repeated[0])} stands twice in the header")
    return header, _csv_rows(path, reader, header)


def _csv_rows(path: Path, reader: Reader, header: list[str]) -> Iterator[Record]:
    while (cells := _next_row(path, reader)) is not None:
        if len(cells) != len(header):
            raise InputError(
                f"{path}: row {reader.line_num}: {len(cells)} columns where the header has {len(header)}: "
                f"{shown(','.join(cells))}"
            )
        yield reader.line_num, dict(zip(header, cells, strict=True))


def _next_row(path: Path, reader: Reader) -> list[str] | None:
    try:
        return next((cells for cells in reader if cells and (len(cells) > 1 or cells[0].strip())), None)
    except csv.Error as error:
        raise InputError(f"{path}: row {reader.line_num}: not CSV: {error}") from None


def json_document(path: Path, text: TextIO) -> list[Record] | None:
    """The records of a file that is one JSON array, or one JSON object over several lines; None for JSON lines.

    Elements of an array are rows 1, 2, ... in order. An array's elements that are no objects are refused.
    """
    first = next((line for line in text if line.strip()), "")
    text.seek(0)
    if first.lstrip().startswith("{") and _is_object(first):
        return None
    document = _loads(path, text.read(), None)
    elements = document if isinstance(document, list) else [document]
    return [(number, _object(path, number, element)) for number, element in enumerate(elements, 1)]


def json_lines(path: Path, text: TextIO) -> Iterator[Record]:
    """The objects of a file with one JSON object a line, with their line numbers. Blank lines are passed over."""
    for number, line in enumerate(text, 1):
        if line.strip():
            yield number, _object(path, number, _loads(path, line, number))


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        # A first line that is broken may still be a broken JSON line rather than the head of a spread-out document.
        return line.strip() not in ("{", "[") and line.rstrip().endswith("}")


def _loads(path: Path, text: str, row: int | None) -> object:
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=Decimal)
    except json.JSONDecodeError as error:
        line = row if row is not None else error.lineno
        near = text[max(error.pos - 30, 0) : error.pos + 30]
        where = f"{error.msg} at column {error.colno}, near {shown(near)}"
        raise InputError(f"{path}: row {line}: bad JSON: {where}") from None
    except RecursionError:
        raise InputError(f"{path}: row {row or 1}: bad JSON: nested too deeply") from None
    except (ValueError, ArithmeticError):
        near = shown(text.strip())
        raise InputError(f"{path}: row {row or 1}: bad JSON: a number is out of range, in {near}") from None


def _object(path: Path, row: int, element: object) -> dict[str, object]:
    if not isinstance(element, dict):
        raise InputError(f"{path}: row {row}: {shown(element)} is not a JSON object")
    return element
