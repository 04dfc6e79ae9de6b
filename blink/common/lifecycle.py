"""The trace of a host-driven engine: the life of each request and of each step, and the file that holds them.

A host-driven engine has no ring, so its events are not those of the slot protocol. Rows stand in the order in which
the engine's loop caused them; the times of one request never go back. On disk: NDJSON (a header line, one line an
event, a footer line) or Parquet (header and footer as metadata). -1 stands for "does not apply".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from blink.common.errors import InputError
from blink.common.results import I64

KEY = "blink.lifecycle"
NOTHING = -1


class LifeEvent(IntEnum):
    """What can happen. The columns beside t_ns that an event fills are named behind it."""

    RECEIVED = 0  # request_id, tokens of the prompt: the client sent it
    TOKENIZED = 1  # request_id
    QUEUED = 2  # request_id: the core put it into its line
    SCHEDULED = 3  # request_id, tokens to compute, context that is cached, blocks it holds: admitted for the first time
    RESUMED = 4  # the same, after a preemption
    PREEMPTED = 5  # request_id: its blocks are taken
    PREFILL_CHUNK = 6  # request_id, step, tokens, context
    STEP_LAUNCHED = 7  # step, rows: sequences in it, tokens it computes, blocks in use
    STEP_DONE = 8  # step: the gpu is through with it
    FIRST_TOKEN = 9  # request_id, step, tokens: 1
    TOKEN = 10  # request_id, step, tokens so far
    FINISHED = 11  # request_id, step, tokens in all
    ABORTED = 12  # request_id: its client hung up
    DELIVERED = 13  # request_id, tokens: the client has the last one

    @property
    def label(self) -> str:
        """The name on disk."""
        return self.name.lower()


COLUMNS = ("t_ns", "event", "request_id", "step", "rows", "tokens", "context", "blocks")


@dataclass(frozen=True, slots=True)
class LifeHeader:
    """What was run, and the limits that its steps must keep."""

    run: str
    seed: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_blocks: int
    kv_block_tokens: int
    chunked_prefill: bool
    configuration: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LifeFooter:
    """How many rows there are, and whether every request came to its end."""

    events: int
    complete: bool


@dataclass(frozen=True, slots=True)
class LifeTrace:
    """A whole trace; `footer` is None if it was cut off. `columns` are int64, one entry a row."""

    source: str
    header: LifeHeader
    footer: LifeFooter | None
    columns: dict[str, I64]

    def __len__(self) -> int:
        return len(self.columns["t_ns"])


class LifeWriter:
    """Writes rows in chunks into `path` + ".part"; `close` renames it into place."""

    def __init__(self, path: Path, header: LifeHeader) -> None:
        if path.suffix not in (".ndjson", ".parquet"):
            raise InputError(f"{path}: suffix is {path.suffix!r}; allowed: .ndjson, .parquet")
        self._path, self._part = path, path.with_name(path.name + ".part")
        self._header, self._rows = header, 0
        self._parquet = _parquet_writer(self._part) if path.suffix == ".parquet" else None
        self._text = None if self._parquet else self._part.open("w", encoding="utf-8", newline="\n")
        if self._text:
            self._text.write(_dump({"kind": "header", "trace": "lifecycle", **asdict(header)}) + "\n")

    def write(self, columns: Mapping[str, I64]) -> None:
        """Append rows: every column of COLUMNS, all of one length."""
        count = len(columns["t_ns"])
        self._rows += count
        if not count:
            return
        if self._parquet:
            self._parquet.write_table(_table(columns))
            return
        assert self._text
        lists = [columns[name].tolist() for name in COLUMNS]
        for values in zip(*lists, strict=True):
            row = {name: value for name, value in zip(COLUMNS, values, strict=True) if value != NOTHING}
            row["event"] = LifeEvent(row["event"]).label
            self._text.write(_dump(row) + "\n")

    def close(self, *, complete: bool) -> None:
        """Write the footer and put the file in its place."""
        footer = asdict(LifeFooter(self._rows, complete))
        if self._parquet:
            self._parquet.add_key_value_metadata({KEY: _dump({"header": asdict(self._header), "footer": footer})})
            self._parquet.close()
        if self._text:
            self._text.write(_dump({"kind": "footer", **footer}) + "\n")
            self._text.close()
        self._part.replace(self._path)

    def abort(self) -> None:
        """Throw away what was written."""
        for file in (self._parquet, self._text):
            if file:
                file.close()
        self._part.unlink(missing_ok=True)


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _parquet_writer(path: Path) -> Any:
    # pyarrow takes a quarter of a second to import, so only those who write Parquet pay for it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.int64()) for name in COLUMNS])
    encoding = dict.fromkeys(COLUMNS, "DELTA_BINARY_PACKED")
    return pq.ParquetWriter(
        str(path), schema, compression="zstd", compression_level=1, use_dictionary=False, column_encoding=encoding,
        write_statistics=False,
    )  # fmt: skip


def _table(columns: Mapping[str, I64]) -> Any:
    import pyarrow as pa

    return pa.table({name: np.ascontiguousarray(columns[name], np.int64) for name in COLUMNS})


def is_lifecycle(path: Path) -> bool:
    """Whether a trace file is of this kind and not one of the slot protocol."""
    if path.suffix == ".ndjson":
        with path.open("rb") as file:
            return b'"trace":"lifecycle"' in file.readline(1 << 16)
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return KEY.encode() in (pq.read_metadata(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def read_lifecycle(path: Path) -> LifeTrace:
    """Read a trace of this kind. Raises InputError that names file, line and what is wrong."""
    if path.suffix == ".parquet":
        return _read_parquet(path)
    rows: dict[str, list[int]] = {name: [] for name in COLUMNS}
    labels = {event.label: event.value for event in LifeEvent}
    header, footer = None, None
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}: line {number}"
            try:
                found = json.loads(line)
            except ValueError:
                if not line.endswith("\n"):
                    break
                raise InputError(f"{where}: is not JSON; allowed: one JSON object") from None
            if not isinstance(found, dict):
                raise InputError(f"{where}: is not an object; allowed: one JSON object")
            if number == 1:
                header = _typed(LifeHeader, found, where)
            elif found.get("kind") == "footer":
                footer = _typed(LifeFooter, found, where)
            else:
                _add_row(rows, found, labels, where)
    if header is None:
        raise InputError(f"{path}: line 1: missing; allowed: a trace's header line")
    return LifeTrace(str(path), header, footer, {name: np.array(values, np.int64) for name, values in rows.items()})


def _add_row(rows: dict[str, list[int]], found: dict[str, Any], labels: dict[str, int], where: str) -> None:
    for name in found:
        if name not in COLUMNS:
            raise InputError(f"{where}, column {name}: unknown; allowed: {', '.join(COLUMNS)}")
    for name in COLUMNS:
        value = found.get(name, NOTHING)
        if name == "event":
            if value not in labels:
                raise InputError(f"{where}, column event: {value!r}; allowed: {', '.join(labels)}")
            value = labels[value]
        elif type(value) is not int:
            raise InputError(f"{where}, column {name}: {value!r}; allowed: an integer")
        rows[name].append(value)


def _read_parquet(path: Path) -> LifeTrace:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        table = file.read(use_threads=False)
        found = json.loads((file.metadata.metadata or {})[KEY.encode()])
    except (pa.ArrowException, OSError, KeyError, ValueError):
        raise InputError(f"{path}: is not a readable lifecycle trace; allowed: one that a run wrote") from None
    header = _typed(LifeHeader, found.get("header", {}), f"{path}: header")
    footer = _typed(LifeFooter, found.get("footer", {}), f"{path}: footer")
    return LifeTrace(str(path), header, footer, {name: np.asarray(table[name], np.int64) for name in COLUMNS})


def _typed(cls: Any, found: dict[str, Any], where: str) -> Any:
    names = [item.name for item in fields(cls)]
    for name in names:
        if name not in found:
            raise InputError(f"{where}: {name}: missing; needed: {', '.join(names)}")
    return cls(**{name: found[name] for name in names})
