"""The batch: claimed requests, those that decode together, and decode steps planned for them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from blink.common.events import GraphKind
from blink.common.policy import GraphShape, Pending
from blink.common.recorder import Columns
from blink.common.request import Request
from blink.common.results import I64
from blink.common.states import SlotStatus


@dataclass(slots=True)
class Live:
    """A claimed request."""

    request: Request
    prompt: Pending
    slot: int
    generation: int
    epoch: int
    blocks: list[int]
    end_count: int
    end_status: SlotStatus
    claimed_ns: int
    end_step: int = 0  # number of the decode step whose token is its last
    computed: int = 0  # tokens of the prompt whose keys and values are in the cache
    load_ns: int = 0  # until those that were found elsewhere are there
    kv_base: int = 0  # KV length minus the scheduler's decode step number: constant while it decodes


@dataclass(slots=True)
class Batch:
    """The sequences that decode together, in the order of their slots; replaced whenever that set changes."""

    slots: I64
    lives: list[Live]
    columns: Columns | None  # for the trace
    first_end_step: int = 0  # the least end_step
    kv_base_max: int = 0  # the greatest kv_base

    @classmethod
    def of(cls, running: dict[int, Live], *, recorded: bool) -> Batch:
        """The batch of everything that runs, by slot."""
        order = sorted(running)
        lives = [running[slot] for slot in order]
        slots = np.array(order, np.int64)
        columns = None
        if recorded:
            generation = np.array([live.generation for live in lives], np.int64)
            request_id = np.array([live.request.request_id for live in lives], np.int64)
            columns = Columns(slots, generation, lives[0].epoch if lives else 0, request_id)
        end_steps = [live.end_step for live in lives]
        kv_bases = [live.kv_base for live in lives]
        return cls(slots, lives, columns, min(end_steps, default=0), max(kv_bases, default=0))


@dataclass(slots=True)
class Segment:
    """Planned decode steps of one batch."""

    batch: Batch
    shape_batch: int
    first_step: int
    launched: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    sequence: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)  # from launched until the graph runs
    applied: int = 0
    overdue: bool = False  # its only graph will not end in time

    def shape(self, index: int) -> GraphShape:
        """The captured shape of one of its steps."""
        return GraphShape(GraphKind.DECODE, self.shape_batch, self.sequence[index])
