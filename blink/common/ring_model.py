"""The plain data of the executable specification: one recorded event, one slot, and what is common to all slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from blink.common.events import NOTHING
from blink.common.states import SLOT_COUNT, SlotState, SlotStatus

EMPTY = int(SlotState.EMPTY)
NO_STATUS = int(SlotStatus.NONE)


class Record(NamedTuple):
    """One row of a trace: its place in the file, then COLUMNS in order. `source` and `target` are `from` and `to`."""

    row: int = NOTHING
    seq: int = NOTHING
    actor: int = NOTHING
    instance: int = NOTHING
    t_ns: int = NOTHING
    slot: int = NOTHING
    generation: int = NOTHING
    epoch: int = NOTHING
    event: int = NOTHING
    source: int = NOTHING
    target: int = NOTHING
    token_count: int = NOTHING
    status: int = NOTHING
    step: int = NOTHING
    request_id: int = NOTHING
    phase: int = NOTHING
    token_from: int = NOTHING
    graph: int = NOTHING
    batch: int = NOTHING
    sequence: int = NOTHING
    live: int = NOTHING
    kv_block_count: int = NOTHING
    prompt_offset: int = NOTHING
    prompt_tokens: int = NOTHING
    output_offset: int = NOTHING
    output_capacity: int = NOTHING
    output_tokens_max: int = NOTHING
    prompt_tag: int = NOTHING
    stored_count: int = NOTHING
    wrong_count: int = NOTHING


FIELD_OF_COLUMN = {"from": "source", "to": "target"}
"""Columns whose names are words of Python and so are called otherwise in a Record."""


Area = tuple[int, int, int]  # start, end (tokens), slot


class Slot(NamedTuple):
    """One slot and what the specification remembers of its current generation.

    `posted_epoch`: the epoch under which this generation's prompt was posted, -1 if it was not.
    `prompt_tag`: what that posting said of the prompt's bytes, -1 if it said nothing.
    `limit`: the smaller of output_tokens_max and output_capacity. `moved_at`: graphs launched when the slot last moved.
    `written_by`: the frontend's incarnation that wrote last; `undo`: the slot before that WRITE, as long as nothing
    shows that the WRITE arrived (a crash may have swallowed it).
    """

    state: int = EMPTY
    generation: int = 0
    token_count: int = 0
    status: int = NO_STATUS
    epoch: int = 0
    request_id: int = NOTHING
    posted_epoch: int = NOTHING
    prompt_tag: int = NOTHING
    claimed: bool = False
    cancel_posted: bool = False
    read_count: int = 0
    limit: int = 0
    moved_at: int = 0
    written_by: int = 0
    prompt_area: Area | None = None
    output_area: Area | None = None
    undo: Slot | None = None


class Graph(NamedTuple):
    """The graph that was launched last."""

    kind: int
    batch: int
    sequence: int
    live: int
    running: bool


class Ring(NamedTuple):
    """What is common to all slots.

    `decoding`, `prefilling`: slots in these states. `doomed`: slots whose cancel or fence the gpu has seen and not yet
    acted on. `launches`: graphs launched so far. Areas are sorted by start. An incarnation counts restarts of the
    frontend, an instance those of the scheduler (relaunches included). `epoch_used`: the frontend has done something
    under its epoch, so the epoch has landed. `evidence`: columns that the header promises.
    """

    slot_count: int = SLOT_COUNT
    first_generation: int = 0
    epoch: int = 0
    epoch_used: bool = True
    frontend_incarnation: int = 0
    frontend_alive: bool = True
    gpu_instance: int = 0
    gpu_alive: bool = True
    reads_in_flight: int = 0
    graph: Graph | None = None
    launches: int = 0
    decoding: int = 0
    prefilling: int = 0
    doomed: frozenset[int] = frozenset()
    prompt_areas: tuple[Area, ...] = ()
    output_areas: tuple[Area, ...] = ()
    evidence: frozenset[str] = frozenset()

    def slot_of(self, slots: Mapping[int, Slot], index: int) -> Slot:
        """The slot's model; one that nothing happened to is empty and has the first generation."""
        found = slots.get(index)
        return Slot(generation=self.first_generation, epoch=self.epoch) if found is None else found


class Model(NamedTuple):
    """The whole specification's state. `slots` is never changed in place."""

    ring: Ring
    slots: Mapping[int, Slot]
