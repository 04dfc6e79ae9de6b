"""The trace schema: which events exist, who records them, which columns they fill.

In memory a trace is a set of equally long numpy columns; -1 stands for "does not apply" in every integer column.
On disk (blink/common/trace.py) it is NDJSON or Parquet, with names in place of codes and nulls in place of -1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from blink.common.states import Actor, SlotState, SlotStatus
from blink.common.transitions import TRANSITIONS

TRACE_VERSION = 1
NOTHING = -1


class Event(IntEnum):
    """Every event of a trace. The first eleven are the transitions, in the table's order."""

    SUBMIT = 0
    CLAIM = 1
    REJECT = 2
    FIRST_TOKEN = 3
    FINISH_AT_PREFILL = 4
    TOKEN = 5
    PAUSE = 6
    RESUME = 7
    FINISH = 8
    ABORT = 9
    RECYCLE = 10
    PROMPT_POSTED = 11  # the WRITEs of prompt and descriptor were posted
    CANCEL_POSTED = 12  # the WRITE of the cancel word was posted
    STATUS_READ = 13  # one READ of the whole status array: posted, done
    TOKENS_READ = 14  # tokens token_from..token_count-1 of the slot reached the frontend
    CANCEL_SEEN = 15  # the gpu saw a cancel or a fence of the slot at a step boundary; status says which
    GRAPH_LAUNCHED = 16
    GRAPH_DONE = 17
    RELAUNCHED = 18  # recorded by the new scheduler instance
    CRASHED = 19
    RESTARTED = 20  # recorded by the new incarnation; epoch is the new one

    @property
    def label(self) -> str:
        """The name on disk."""
        return self.name.lower()


TRANSITION_EVENTS: tuple[Event, ...] = tuple(Event[row.name.upper()] for row in TRANSITIONS)


class Phase(IntEnum):
    """The two ends of a READ."""

    POSTED = 0
    DONE = 1

    @property
    def label(self) -> str:
        """The name on disk."""
        return self.name.lower()


class GraphKind(IntEnum):
    """What a captured graph does."""

    PREFILL = 0
    DECODE = 1

    @property
    def label(self) -> str:
        """The name on disk."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name on disk, its dtype in memory, and the enumeration whose labels stand on disk."""

    name: str
    dtype: type[np.signedinteger]
    labels: type[IntEnum] | None = None


COLUMNS: tuple[Column, ...] = (
    Column("seq", np.int64),  # counts up by one per actor, from 0
    Column("actor", np.int8, Actor),
    Column("instance", np.int32),  # of the actor: scheduler instances count relaunches, frontend's count restarts
    Column("t_ns", np.int64),  # on the header's clock of that actor
    Column("slot", np.int32),
    Column("generation", np.int32),
    Column("epoch", np.int16),
    Column("event", np.int8, Event),
    Column("from", np.int8, SlotState),
    Column("to", np.int8, SlotState),
    Column("token_count", np.int32),  # after the event
    Column("status", np.int8, SlotStatus),
    Column("step", np.int64),  # the scheduler's step number; -1 on the frontend's side
    Column("request_id", np.int64),
    Column("phase", np.int8, Phase),
    Column("token_from", np.int32),
    Column("graph", np.int8, GraphKind),
    Column("batch", np.int32),  # captured shape of the graph
    Column("sequence", np.int32),
    Column("live", np.int32),  # sequences of the batch that are real, not padding
    Column("kv_block_count", np.int32),
    Column("prompt_offset", np.int64),
    Column("prompt_tokens", np.int32),
    Column("output_offset", np.int64),
    Column("output_capacity", np.int32),
    Column("output_tokens_max", np.int32),
    Column("prompt_tag", np.int64),  # these three are evidence: see EVIDENCE
    Column("stored_count", np.int32),
    Column("wrong_count", np.int32),
)
"""Per-row columns. `run`, `backend` and an actor's `clock` are constant: written in every row, kept once in memory."""

CONSTANT_COLUMNS = ("run", "backend", "clock")


@dataclass(frozen=True, slots=True)
class Evidence:
    """A column that a backend fills only if it can, and says so in the header: what the events alone do not show.

    `shows` completes "the trace shows whether ...".
    """

    column: str
    events: tuple[Event, ...]
    invariants: tuple[str, ...]
    holds: str
    shows: str


EVIDENCE: tuple[Evidence, ...] = (
    Evidence(
        "prompt_tag",
        (Event.PROMPT_POSTED, Event.CLAIM),
        ("I2",),
        "a number that stands for the prompt's bytes, as they were posted and as the claim found them",
        "a claim saw the prompt of its own generation",
    ),
    Evidence(
        "stored_count",
        (Event.FIRST_TOKEN, Event.FINISH_AT_PREFILL, Event.TOKEN, Event.FINISH),
        ("I2", "I7"),
        "how many tokens of this generation lay in the output area when the control word was stored",
        "tokens were stored before the count that publishes them",
    ),
    Evidence(
        "wrong_count",
        (Event.TOKENS_READ,),
        ("I7",),
        "how many of the tokens that were read are not those that the model sampled for this request",
        "the tokens that were read are the request's own",
    ),
)
EVIDENCE_OF: dict[str, Evidence] = {row.column: row for row in EVIDENCE}


def written_columns(evidence: tuple[str, ...]) -> tuple[Column, ...]:
    """The columns of a trace that carries this evidence and no other."""
    return tuple(column for column in COLUMNS if column.name not in EVIDENCE_OF or column.name in evidence)


_SLOT = ("slot", "generation", "epoch", "request_id")
_MOVE = (*_SLOT, "from", "to", "token_count", "status")
_STEP_MOVE = (*_MOVE, "step")


@dataclass(frozen=True, slots=True)
class EventRule:
    """Who records an event (None: either), which columns it must fill, and which invariant a breach of that touches."""

    actor: Actor | None
    required: tuple[str, ...]
    invariant: str


EVENT_RULES: dict[Event, EventRule] = {
    **{
        Event[row.name.upper()]: EventRule(row.actor, _MOVE if row.actor == Actor.FRONTEND else _STEP_MOVE, "I1")
        for row in TRANSITIONS
    },
    Event.CLAIM: EventRule(Actor.GPU, (*_STEP_MOVE, "kv_block_count"), "I1"),
    Event.PROMPT_POSTED: EventRule(
        Actor.FRONTEND,
        (*_SLOT, "prompt_offset", "prompt_tokens", "output_offset", "output_capacity", "output_tokens_max"),
        "I2",
    ),
    Event.CANCEL_POSTED: EventRule(Actor.FRONTEND, _SLOT, "I8"),
    Event.STATUS_READ: EventRule(Actor.FRONTEND, ("phase",), "I7"),
    Event.TOKENS_READ: EventRule(Actor.FRONTEND, (*_SLOT, "token_from", "token_count"), "I7"),
    Event.CANCEL_SEEN: EventRule(Actor.GPU, (*_SLOT, "status", "step"), "I10"),
    Event.GRAPH_LAUNCHED: EventRule(Actor.GPU, ("graph", "batch", "sequence", "live", "step"), "I10"),
    Event.GRAPH_DONE: EventRule(Actor.GPU, ("graph", "batch", "sequence", "live", "step"), "I10"),
    Event.RELAUNCHED: EventRule(Actor.GPU, ("step",), "I1"),
    Event.CRASHED: EventRule(None, (), "I9"),
    Event.RESTARTED: EventRule(None, ("epoch",), "I8"),
}
