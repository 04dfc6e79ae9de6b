"""Requests: what clients will ask for, as columns, and the report of how a trace file became them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from blink.common.errors import InputError
from blink.workload.prefixes import Prefixes

Column = NDArray[np.int64]
NO_PARENT = -1
NO_ROW = -1


@dataclass(frozen=True, slots=True)
class IngestReport:
    """How a trace file was read. Nothing is dropped without a count and a reason in `skipped`.

    `rows_read` counts data rows (conversations or sessions where a row holds several requests); `accepted` counts
    requests; `skipped` counts what could not become a request, by reason; `notes` says what was assumed or changed.
    """

    dialect: str
    file: str
    rows_read: int
    accepted: int
    skipped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """One entry a request in every column, sorted by (arrival_ns, source row); the columns are read-only int64.

    arrival_ns     >= 0; the first arrival of a trace is 0. With a parent: the earliest moment, the session's arrival.
    prompt_tokens  >= 1
    output_tokens  >= 1, the length at which the model says EOS
    source_row     1-based row of the file (the header counts as a row), or -1 for a synthetic request
    parent         index of the request that must complete before this one is sent, or -1; always an earlier index
    think_ns       delay after the parent completes (tool time), else 0
    prefixes       which prompts begin alike, None where nobody says so
    has_arrivals   False when the source holds lengths only: arrival_ns is 0 throughout, see `with_arrivals`
    """

    arrival_ns: Column
    prompt_tokens: Column
    output_tokens: Column
    source_row: Column
    parent: Column
    think_ns: Column
    has_arrivals: bool = True
    report: IngestReport | None = None
    prefixes: Prefixes | None = None

    def __post_init__(self) -> None:
        columns = {name: getattr(self, name) for name in COLUMNS}
        for name, column in columns.items():
            if column.dtype != np.int64 or column.shape != self.arrival_ns.shape or column.ndim != 1:
                found = f"{column.dtype}{list(column.shape)}"
                raise ValueError(f"Requests.{name}: {found} is not an int64 column of the common length")
        self._check_values()
        if self.prefixes is not None and len(self.prefixes.blocks) != len(self):
            raise ValueError("Requests.prefixes must have an entry for each request")
        for column in columns.values():
            column.flags.writeable = False

    def _check_values(self) -> None:
        if not len(self):
            return
        if self.arrival_ns[0] < 0 or np.any(np.diff(self.arrival_ns) < 0):
            raise ValueError("Requests.arrival_ns must be sorted and not negative")
        if self.prompt_tokens.min() < 1 or self.output_tokens.min() < 1:
            raise ValueError("Requests need at least one prompt token and one output token")
        if self.parent.min() < NO_PARENT or np.any(self.parent >= np.arange(len(self))):
            raise ValueError("Requests.parent must be -1 or the index of an earlier request")
        if self.think_ns.min() < 0:
            raise ValueError("Requests.think_ns must not be negative")

    def __len__(self) -> int:
        return len(self.arrival_ns)


COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "source_row", "parent", "think_ns")


def synthetic(arrival_ns: Column, prompt_tokens: Column, output_tokens: Column) -> Requests:
    """Requests from an arrival process and a length distribution; arrivals must already be sorted."""
    count = len(arrival_ns)
    return Requests(
        arrival_ns=np.array(arrival_ns, dtype=np.int64),
        prompt_tokens=np.array(prompt_tokens, dtype=np.int64),
        output_tokens=np.array(output_tokens, dtype=np.int64),
        source_row=np.full(count, NO_ROW, dtype=np.int64),
        parent=np.full(count, NO_PARENT, dtype=np.int64),
        think_ns=np.zeros(count, dtype=np.int64),
    )


def with_arrivals(requests: Requests, arrival_ns: Column) -> Requests:
    """The same requests, in the same order, sent at the given sorted times: for sources that hold lengths only.

    Raises InputError when the counts differ.
    """
    if len(arrival_ns) != len(requests):
        raise InputError(f"arrivals: {len(arrival_ns)} times for {len(requests)} requests; the counts must be equal")
    return replace(requests, arrival_ns=np.array(arrival_ns, dtype=np.int64), has_arrivals=True)
