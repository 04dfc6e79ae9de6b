"""The trace reader: a file of any known dialect to requests, or one line that says why not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from blink.common.errors import InputError
from blink.workload.collector import Collector, check_scale
from blink.workload.dialects import DIALECTS, Dialect
from blink.workload.numbers import UnusableError, shown
from blink.workload.requests import Requests
from blink.workload.row import Row
from blink.workload.source import Record, csv_records, is_json, json_document, json_lines, opened


def read_trace(
    path: str | Path,
    *,
    dialect: str | None = None,
    limit: int | None = None,
    rate_scale: float = 1.0,
    time_scale: float = 1.0,
) -> Requests:
    """Read a trace file; its dialect is recognised by its header or keys, or must match `dialect` where one is given.

    limit       keep the first `limit` requests in file order, and read no further
    rate_scale  multiplies the arrival rate: every gap between arrivals is divided by it; think times stay
    time_scale  multiplies all times, think times included

    Both scales are exact rational arithmetic on integer nanoseconds. Requests.report says what was read, left out and
    assumed. Raises InputError, one line with file, row and value, for a file that is unreadable, of no known dialect,
    of another dialect than asked for, broken in a row, or without any request.
    """
    source = Path(path)
    known = _named(dialect) if dialect is not None else None
    rate_scale, time_scale = check_scale("rate_scale", rate_scale), check_scale("time_scale", time_scale)
    if limit is not None and limit < 1:
        raise InputError(f"limit: {limit} is not allowed; it must be at least 1")
    collector = Collector(limit)
    with opened(source) as text:
        in_json = is_json(text)
        if in_json:
            document = json_document(source, text)
            header, records = None, json_lines(source, text) if document is None else iter(document)
        else:
            header, records = csv_records(source, text)
        found, records = _recognised(source, in_json, header, records, known)
        _collect(source, found, records, collector)
    if not len(collector):
        counts = ", ".join(f"{reason}: {count}" for reason, count in sorted(collector.skipped.items()))
        raise InputError(f"{source}: no usable request in {collector.rows_read} rows ({found.name}): {counts}")
    return _finished(source, found, header, collector, rate_scale, time_scale)


def _recognised(
    path: Path, in_json: bool, header: list[str] | None, records: Iterator[Record], asked: Dialect | None
) -> tuple[Dialect, Iterator[Record]]:
    """The file's dialect, and its records with the first one, which was looked at, put back."""
    first = next(records, None)
    columns = frozenset(header if header is not None else first[1] if first else ())
    found = f"{'JSON keys' if in_json else 'CSV columns'} {shown(', '.join(header or (first[1] if first else ())))}"
    candidates = [asked] if asked else list(DIALECTS)
    if first is None:
        # A header alone still tells whether the file is a trace at all.
        if in_json or any(columns.issuperset(needs) for known in candidates for needs in known.needs):
            what = "an empty JSON array" if in_json else "a header and no rows"
            raise InputError(f"{path}: {what}; no request to read")
        raise InputError(_mismatch(path, found, asked))
    match = next((known for known in candidates if known.matches(in_json, columns, first[1])), None)
    if match is None:
        if asked and _looks_like(in_json, columns, first[1]):
            found += f" (looks like {_looks_like(in_json, columns, first[1])})"
        raise InputError(_mismatch(path, found, asked))
    return match, chain([first], records)


def _looks_like(in_json: bool, columns: frozenset[str], first: dict[str, object]) -> str:
    return next((known.name for known in DIALECTS if known.matches(in_json, columns, first)), "")


def _mismatch(path: Path, found: str, asked: Dialect | None) -> str:
    if asked:
        return f"{path}: not of dialect {asked.name}: found {found}; {asked.name} needs {asked.says}"
    return f"{path}: not a trace of a known dialect: found {found}; known: {_names()}"


def _named(name: str) -> Dialect:
    for known in DIALECTS:
        if known.name == name:
            return known
    raise InputError(f"dialect {name!r} is unknown; known: {_names()}")


def _names() -> str:
    return ", ".join(known.name for known in DIALECTS)


def _collect(path: Path, dialect: Dialect, records: Iterable[Record], collector: Collector) -> None:
    row = Row(str(path), 0, {})
    for row.number, row.values in records:
        collector.rows_read += 1
        try:
            dialect.read(row, collector)
        except UnusableError as reason:
            collector.skip(str(reason))
        if collector.full:
            return


def _finished(
    path: Path, dialect: Dialect, header: list[str] | None, collector: Collector, rate_scale: float, time_scale: float
) -> Requests:
    notes = list(dialect.notes)
    if not dialect.has_arrivals:
        notes.append("no arrival times: an arrival process must supply them")
        if rate_scale != 1.0 or time_scale != 1.0:
            why = "has no arrival times to scale; set the rate of the arrival process instead"
            raise InputError(f"{path}: {dialect.name} {why}")
    return collector.requests(
        dialect=dialect.name,
        file=path.name,
        has_arrivals=dialect.has_arrivals,
        notes=notes,
        rate_scale=rate_scale,
        time_scale=time_scale,
        block_tokens=dialect.block_tokens,
    )
