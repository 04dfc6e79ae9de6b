"""Replays a trace through the executable specification, merging the two actors by hand-over of ownership.

Each actor's rows keep their order in the file. Of the two next rows the one that stands first in the file goes first,
unless it waits for something that the other actor has yet to do; then the other goes. If neither can go, or the actor
that is waited for has no more rows, the waiting row is judged where it stands. No two clocks are compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from blink.common.bulk import Bulk, Fetch, Rows
from blink.common.events import COLUMNS, NOTHING, Event
from blink.common.reference import (
    DECODING,
    EMPTY,
    FRONTEND,
    GPU,
    PENDING,
    PREFILLING,
    TRANSITION_OF,
    Violation,
    advance,
    recount,
    waits,
)
from blink.common.ring_model import Graph, Record, Ring, Slot
from blink.common.states import Actor

_RECORDS_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class Found:
    """A violation and the record that committed it."""

    record: Record
    violation: Violation


@dataclass(slots=True)
class Replay:
    """The specification's state while a trace runs through it, and what it found.

    `open_ended` lists actors whose record is known to be incomplete: a wait for one of them at its end is no violation.
    """

    ring: Ring
    bulk: Bulk
    open_ended: frozenset[int] = frozenset()
    violations_max: int = 10
    slots: dict[int, Slot] = field(default_factory=dict)
    found: list[Found] = field(default_factory=list)
    stopped_early: bool = False  # what is left waits for a record that is incomplete
    _next_bulk: dict[int, int] = field(default_factory=dict)  # by slot: the first certified row not yet applied
    _bulk_limit: int | None = 0  # certified rows before this row of the trace have happened; None: all
    _bulk_decoding: int = 0  # how much of their change is in ring.decoding

    def run(self, frontend: Iterator[Record], gpu: Iterator[Record]) -> None:
        """Consume both actors' records to the end, or until there are enough violations."""
        records = {FRONTEND: frontend, GPU: gpu}
        heads = {actor: next(rows, None) for actor, rows in records.items()}
        while True:
            gpu_head = heads[GPU]
            self._bulk_limit = None if gpu_head is None else gpu_head.row
            actor = self._choose(heads)
            head = None if actor is None else heads[actor]
            if actor is None or head is None:
                break
            self._judge(head)
            if len(self.found) >= self.violations_max:
                break
            heads[actor] = next(records[actor], None)
        self.stopped_early = any(head is not None for head in heads.values())
        for index in list(self.slots):
            self._catch_up(index)

    def _choose(self, heads: dict[int, Record | None]) -> int | None:
        """The actor whose head goes next; None if there is no head, or all that is left waits for what is not there."""
        frontend, gpu = heads[FRONTEND], heads[GPU]
        gpu_first = frontend is None or (gpu is not None and gpu.row < frontend.row)
        order = (GPU, FRONTEND) if gpu_first else (FRONTEND, GPU)
        for actor in order:
            head = heads[actor]
            if head is not None:
                self._catch_up(head.slot)
                if not waits(self.ring, self.slots, head):
                    return actor
        for actor in order:
            other = GPU if actor == FRONTEND else FRONTEND
            if heads[actor] is not None and not (heads[other] is None and other in self.open_ended):
                return actor
        return None

    def _judge(self, event: Record) -> None:
        if event.event == Event.GRAPH_LAUNCHED:
            self._count_decoding(event.row)
            for index in self.ring.doomed:
                self._catch_up(index)
        try:
            self.ring, slot = advance(self.ring, self.slots, event)
        except Violation as violation:
            self.found.append(Found(event, violation))
            self.ring, slot = _take_at_its_word(self.ring, self.slots, event)
        if slot is not None:
            self.slots[event.slot] = slot

    def _catch_up(self, index: int) -> None:
        """Apply the certified rows of a slot that come before the gpu's next row."""
        bulk = self.bulk
        if not bulk.rows.size or index < 0 or index >= len(bulk.begin) - 1:
            return
        begin, end = self._next_bulk.get(index, bulk.begin[index]), bulk.begin[index + 1]
        at = end if self._bulk_limit is None else bisect_left(bulk.rows, self._bulk_limit, begin, end)
        if at == begin:
            return
        self._next_bulk[index] = at
        slot = self.ring.slot_of(self.slots, index)
        self.slots[index] = slot._replace(
            state=int(bulk.target[at - 1]),
            token_count=int(bulk.token_count[at - 1]),
            moved_at=int(bulk.launches[at - 1]),
            undo=None,
        )

    def _count_decoding(self, row: int) -> None:
        change = int(self.bulk.decoding_change[row])
        self.ring = self.ring._replace(decoding=self.ring.decoding + change - self._bulk_decoding)
        self._bulk_decoding = change


def _take_at_its_word(ring: Ring, slots: dict[int, Slot], event: Record) -> tuple[Ring, Slot | None]:
    """Ring and slot as a refused event claims that they are now, so that one fault is not reported over and over."""
    slot = slots.get(event.slot, Slot())
    if event.event in TRANSITION_OF and 0 <= event.slot < ring.slot_count and NOTHING not in event[_SOURCE:_STEP]:
        ring = recount(ring, event)._replace(
            decoding=ring.decoding + (event.target == DECODING) - (slot.state == DECODING),
            prefilling=ring.prefilling + (event.target == PREFILLING) - (slot.state == PREFILLING),
        )
        return ring, slot._replace(
            state=event.target,
            generation=event.generation,
            token_count=event.token_count,
            status=event.status,
            epoch=event.epoch,
            claimed=event.target not in (EMPTY, PENDING),
            moved_at=ring.launches,
            read_count=0 if event.target == EMPTY else slot.read_count,
        )
    if event.event == Event.TOKENS_READ and event.slot in slots:
        return ring, slot._replace(read_count=event.token_count)
    if event.event in (Event.GRAPH_LAUNCHED, Event.GRAPH_DONE):
        launched = event.event == Event.GRAPH_LAUNCHED
        graph = Graph(event.graph, event.batch, event.sequence, event.live, running=launched)
        return ring._replace(graph=graph, launches=ring.launches + launched), None
    return ring, None


_SOURCE, _STEP = Record._fields.index("source"), Record._fields.index("step")


class Records:
    """Some rows of a trace, ready to be replayed. The columns are cut to them once: most of a long trace is not."""

    def __init__(self, fetch: Fetch, rows: Rows) -> None:
        self._columns = [rows, *(fetch(column.name)[rows] for column in COLUMNS)] if rows.size else []
        self._actors = fetch("actor")[rows]

    def of(self, actor: Actor) -> Iterator[Record]:
        """The records of one actor, in the order of the file."""
        return self._at(np.flatnonzero(self._actors == actor))

    def __iter__(self) -> Iterator[Record]:
        return self._at(np.arange(len(self._actors)))

    def _at(self, places: Rows) -> Iterator[Record]:
        for start in range(0, len(places), _RECORDS_AT_ONCE):
            chunk = places[start : start + _RECORDS_AT_ONCE]
            yield from map(Record._make, zip(*(values[chunk].tolist() for values in self._columns), strict=True))
