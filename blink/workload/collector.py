"""The collector: requests as a dialect finds them, then sorted, rebased and scaled into columns."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from fractions import Fraction

import numpy as np

from blink.common.errors import InputError
from blink.workload.numbers import TIME_NS_MAX
from blink.workload.prefixes import Prefixes
from blink.workload.requests import NO_PARENT, Column, IngestReport, Requests


class Collector:
    """Accumulates requests in file order; `full` tells the reader that the limit is reached."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.rows_read = 0
        self.skipped: Counter[str] = Counter()
        self.tallies: Counter[str] = Counter()
        self._blocks: list[tuple[int, ...]] = []
        self._columns = {name: array("q") for name in ("arrival", "prompt", "output", "row", "parent", "think")}

    def __len__(self) -> int:
        return len(self._columns["arrival"])

    @property
    def full(self) -> bool:
        return self._limit is not None and len(self) >= self._limit

    def add(
        self,
        row: int,
        arrival_ns: int,
        prompt_tokens: int,
        output_tokens: int,
        parent: int = NO_PARENT,
        think_ns: int = 0,
        blocks: tuple[int, ...] = (),
    ) -> int:
        """Keep a request and return its index, by which a later one may name it as its parent.

        `blocks` are the hashes of its prompt's blocks, if the dialect has them.
        """
        self._blocks.append(blocks)
        columns = self._columns
        columns["arrival"].append(arrival_ns)
        columns["prompt"].append(prompt_tokens)
        columns["output"].append(output_tokens)
        columns["row"].append(row)
        columns["parent"].append(parent)
        columns["think"].append(think_ns)
        return len(self) - 1

    def skip(self, reason: str) -> None:
        self.skipped[reason] += 1

    def tally(self, note: str, count: int = 1) -> None:
        """Count something that the report should mention though it skips nothing."""
        self.tallies[note] += count

    def requests(
        self,
        *,
        dialect: str,
        file: str,
        has_arrivals: bool,
        notes: list[str],
        rate_scale: float,
        time_scale: float,
        block_tokens: int = 0,
    ) -> Requests:
        """The columns, sorted by (arrival, row), first arrival at 0, scaled; parents renumbered to the new order."""
        columns = self._columns.values()
        arrival, prompt, output, row, parent, think = (np.array(column, dtype=np.int64) for column in columns)
        late_count = int(np.count_nonzero(arrival[1:] < arrival[:-1]))
        arrival = _scaled(_rebased(file, arrival), Fraction(repr(time_scale)) / Fraction(repr(rate_scale)), file)
        order = np.argsort(arrival, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        parent = np.where(parent >= 0, rank[parent], NO_PARENT)[order]
        think = _scaled(think[order], Fraction(repr(time_scale)), file)
        report = IngestReport(
            dialect=dialect,
            file=file,
            rows_read=self.rows_read,
            accepted=len(self),
            skipped=dict(sorted(self.skipped.items())),
            notes=notes + self._notes(late_count, rate_scale, time_scale),
        )
        prefixes = None
        if block_tokens:
            prefixes = Prefixes(block_tokens, tuple(self._blocks[index] for index in order.tolist()))
        return Requests(
            arrival[order], prompt[order], output[order], row[order], parent, think, has_arrivals, report, prefixes
        )

    def _notes(self, late_count: int, rate_scale: float, time_scale: float) -> list[str]:
        notes = [f"{text}: {count}" for text, count in sorted(self.tallies.items())]
        if late_count:
            notes.append(f"requests earlier than the one before them: {late_count}; sorted by arrival")
        if rate_scale != 1.0:
            notes.append(f"arrival rate multiplied by {rate_scale}")
        if time_scale != 1.0:
            notes.append(f"times stretched by {time_scale}")
        if self.full:
            notes.append(f"stopped after {self._limit} requests; the rest of the file was not read")
        return notes


def check_scale(name: str, scale: float) -> float:
    """A scale as a float. Raises InputError unless it is finite and greater than 0."""
    if not (math.isfinite(scale) and scale > 0):
        raise InputError(f"{name}: {scale} is not allowed; it must be finite and greater than 0")
    return float(scale)


def _rebased(file: str, arrival_ns: Column) -> Column:
    first, last = int(arrival_ns.min()), int(arrival_ns.max())
    if last - first > TIME_NS_MAX:
        raise InputError(f"{file}: arrivals span {last - first} ns; at most 2^63 - 1 ns fit")
    return arrival_ns - first


def _scaled(times_ns: Column, scale: Fraction, file: str) -> Column:
    """times * scale in exact rational arithmetic, rounded to the nearest nanosecond, halves up."""
    if scale == 1:
        return times_ns
    numerator, denominator = scale.numerator, scale.denominator
    scaled = [(2 * time * numerator + denominator) // (2 * denominator) for time in times_ns.tolist()]
    if max(scaled) > TIME_NS_MAX:
        raise InputError(f"{file}: scaled times reach {max(scaled)} ns; at most 2^63 - 1 ns fit")
    return np.array(scaled, dtype=np.int64)
