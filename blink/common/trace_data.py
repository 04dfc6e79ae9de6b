"""A trace in memory: its header, its footer and its columns, and how the first two stand as JSON on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from blink.common.errors import InputError
from blink.common.events import COLUMNS, EVIDENCE_OF, NOTHING, TRACE_VERSION, Column
from blink.common.layout import EPOCH_MASK, GENERATION_NONE
from blink.common.states import SLOT_COUNT, Actor

Ints = NDArray[Any]  # one of the integer dtypes of COLUMNS
Columns = dict[str, Ints]
TokenReads = Literal["ranges", "each"]
COLUMN_BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}
VIRTUAL_CLOCK: dict[str, Any] = {
    "frontend": {"name": "virtual", "unit": "ns"},
    "gpu": {"name": "virtual", "unit": "ns"},
    "shared": True,
}
"""Clock facts of a simulated run: both actors read the one virtual clock."""


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What was run.

    `epoch` is the frontend's epoch at the first event and `generation` that of every slot; `clock` names the clock that
    each actor read.
    `token_reads` says what a `tokens_read` event covers: "each" READ, or "ranges" that several READs brought together.
    `evidence` names the columns of events.EVIDENCE that the trace has, in every event that they are about.
    """

    run: str
    backend: str
    seed: int
    layout_hash: int
    slot_count: int = SLOT_COUNT
    epoch: int = 0
    generation: int = 0
    configuration: dict[str, Any] = field(default_factory=dict)
    clock: dict[str, Any] = field(default_factory=lambda: dict(VIRTUAL_CLOCK))
    token_reads: TokenReads = "ranges"
    evidence: tuple[str, ...] = ()
    version: int = TRACE_VERSION

    def clock_names(self) -> list[str]:
        """The value of the `clock` column for each actor, in the order of Actor."""
        return [str(self.clock[actor.label]["name"]) for actor in Actor]

    def to_json(self) -> dict[str, Any]:
        """A JSON object; the layout hash is a string of hex digits because many readers keep numbers as doubles."""
        return {
            "kind": "header",
            "version": self.version,
            "run": self.run,
            "backend": self.backend,
            "seed": self.seed,
            "layout_hash": f"0x{self.layout_hash:016x}",
            "slot_count": self.slot_count,
            "epoch": self.epoch,
            "generation": self.generation,
            "token_reads": self.token_reads,
            **({"evidence": list(self.evidence)} if self.evidence else {}),
            "clock": self.clock,
            "configuration": self.configuration,
        }

    @classmethod
    def from_json(cls, found: Any, where: str) -> TraceHeader:
        """The header of a JSON object; `where` names file and line in errors. Raises InputError."""
        reader = _Reader(found, "header", where)
        version = reader.integer("version", TRACE_VERSION, TRACE_VERSION)
        header = cls(
            run=reader.text("run"),
            backend=reader.text("backend"),
            seed=reader.integer("seed", 0),
            layout_hash=reader.hexadecimal("layout_hash"),
            slot_count=reader.integer("slot_count", 1, SLOT_COUNT),
            epoch=reader.integer("epoch", 0, EPOCH_MASK),
            generation=reader.integer("generation", 0, GENERATION_NONE - 1),
            configuration=reader.mapping("configuration"),
            clock=reader.mapping("clock"),
            token_reads="each" if reader.choice("token_reads", ("ranges", "each")) == "each" else "ranges",
            evidence=reader.names("evidence", tuple(EVIDENCE_OF)),
            version=version,
        )
        for actor in Actor:
            clock = header.clock.get(actor.label)
            if not isinstance(clock, dict) or not isinstance(clock.get("name"), str):
                reader.refuse(f"clock.{actor.label}", clock, 'an object like {"name": "virtual", "unit": "ns"}')
        return header


@dataclass(frozen=True, slots=True)
class TraceFooter:
    """What the writer knows at the end. A trace without a footer is truncated.

    `events` and `dropped` count per actor label. `slots` is {free, in_use, recovering} as the frontend counts them, or
    None if it does not know. `complete` claims that the run drained: every request ended and every slot came back.
    `idle_status_reads` counts the READs of the status array that brought no news and have no event of their own.
    """

    events: dict[str, int]
    dropped: dict[str, int] = field(default_factory=lambda: {actor.label: 0 for actor in Actor})
    slots: dict[str, int] | None = None
    complete: bool = True
    idle_status_reads: int = 0

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "kind": "footer",
            "events": self.events,
            "dropped": self.dropped,
            "slots": self.slots,
            "complete": self.complete,
            "idle_status_reads": self.idle_status_reads,
        }

    @classmethod
    def from_json(cls, found: Any, where: str) -> TraceFooter:
        """The footer of a JSON object; `where` names file and line in errors. Raises InputError."""
        reader = _Reader(found, "footer", where)
        actors = tuple(actor.label for actor in Actor)
        if not isinstance(reader.found.get("complete"), bool):
            reader.refuse("complete", reader.found.get("complete"), "true or false")
        slots = reader.found.get("slots")
        return cls(
            events=reader.counts("events", actors),
            dropped=reader.counts("dropped", actors),
            slots=None if slots is None else reader.counts("slots", ("free", "in_use", "recovering")),
            complete=reader.found["complete"],
            idle_status_reads=reader.integer("idle_status_reads", 0),
        )


class _Reader:
    """Takes typed fields out of a JSON object and refuses wrong ones by name."""

    def __init__(self, found: Any, kind: str, where: str) -> None:
        self.where = where
        self.kind = kind
        if not isinstance(found, dict):
            raise InputError(f"{where}: {kind} is {shorten(found)}; allowed: a JSON object")
        self.found: dict[str, Any] = found

    def refuse(self, name: str, value: Any, allowed: str) -> None:
        raise InputError(f"{self.where}: {self.kind}.{name} is {shorten(value)}; allowed: {allowed}")

    def integer(self, name: str, low: int, high: int | None = None) -> int:
        value = self.found.get(name)
        if type(value) is not int or value < low or (high is not None and value > high):
            self.refuse(name, value, f"an integer from {low}" + ("" if high is None else f" to {high}"))
        return int(self.found[name])

    def text(self, name: str) -> str:
        if not isinstance(self.found.get(name), str):
            self.refuse(name, self.found.get(name), "a string")
        return str(self.found[name])

    def hexadecimal(self, name: str) -> int:
        text = self.text(name)
        try:
            return int(text, 16)
        except ValueError:
            raise InputError(
                f"{self.where}: {self.kind}.{name} is {shorten(text)}; allowed: hex digits in a string"
            ) from None

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        if self.found.get(name) not in allowed:
            self.refuse(name, self.found.get(name), ", ".join(allowed))
        return str(self.found[name])

    def names(self, name: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
        """A list that may be left out."""
        values = self.found.get(name, [])
        if not isinstance(values, list) or not all(value in allowed for value in values):
            self.refuse(name, values, f"a list of {', '.join(allowed)}")
        return tuple(values)

    def mapping(self, name: str) -> dict[str, Any]:
        if not isinstance(self.found.get(name), dict):
            self.refuse(name, self.found.get(name), "an object")
        return dict(self.found[name])

    def counts(self, name: str, keys: tuple[str, ...]) -> dict[str, int]:
        values = self.mapping(name)
        for key in keys:
            if type(values.get(key)) is not int or values[key] < 0:
                self.refuse(f"{name}.{key}", values.get(key), "an integer from 0")
        return {key: int(values[key]) for key in keys}


@dataclass(frozen=True, slots=True)
class Trace:
    """A whole trace. `columns` has every name of COLUMNS, all of one length, in the order of the file.

    A column that applies to no event may be a read-only view of a single -1, which costs no memory.
    """

    source: str
    header: TraceHeader
    footer: TraceFooter | None
    columns: Columns

    def __len__(self) -> int:
        """The number of events."""
        return len(next(iter(self.columns.values())))


def shorten(value: object) -> str:
    """A value as it stands in a one-line message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def nothing_column(column: Column, count: int) -> Ints:
    """A column of -1 that costs no memory, whatever its length; read-only."""
    return np.broadcast_to(column.dtype(NOTHING), (count,))


def check_chunk(columns: Mapping[str, Ints], count: int, evidence: tuple[str, ...]) -> None:
    """Refuse unknown columns, columns that are too short, and evidence that the header does not name.

    Each is a fault of the caller, hence ValueError.
    """
    for name, values in columns.items():
        if name not in COLUMN_BY_NAME:
            raise ValueError(f"trace column {name!r} does not exist; allowed: {', '.join(COLUMN_BY_NAME)}")
        if len(values) < count:
            raise ValueError(f"trace column {name!r} has {len(values)} values, the chunk has {count} rows")
        if name in EVIDENCE_OF and name not in evidence and (values[:count] != NOTHING).any():
            raise ValueError(f"trace column {name!r} is evidence that the header does not name")
