"""The transition table of the slot protocol, one frozen row a transition. Everything else is derived from it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from blink.common.states import Actor, SlotState, SlotStatus

S = SlotState
_ALL_ERRORS = (SlotStatus.CANCELLED, SlotStatus.FENCED, SlotStatus.TIME_LIMIT, SlotStatus.ENGINE)


class CountRule(Enum):
    """What a transition does to the token count of the control word."""

    ZERO = "becomes 0"
    SAME = "unchanged"
    ONE = "becomes 1"
    PLUS_ONE = "+ 1"


@dataclass(frozen=True, slots=True)
class Transition:
    """One row: who may move a slot from which states to which, under which guard, with which effect."""

    id: str
    name: str
    sources: tuple[SlotState, ...]
    target: SlotState
    actor: Actor
    guard: str
    effect: str
    count: CountRule
    statuses: tuple[SlotStatus, ...] = (SlotStatus.NONE,)
    generation_step: int = 0


@dataclass(frozen=True, slots=True)
class SystemEvent:
    """An event of the protocol that changes no slot's state by itself."""

    id: str
    name: str
    actor: Actor
    guard: str
    effect: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition(
        "T1",
        "submit",
        (S.EMPTY,),
        S.PREFILL_PENDING,
        Actor.FRONTEND,
        "slot is on the frontend's free list; prompt and descriptor are written",
        "publishes the request",
        CountRule.ZERO,
    ),
    Transition(
        "T2",
        "claim",
        (S.PREFILL_PENDING,),
        S.PREFILL_PROCESSING,
        Actor.GPU,
        "descriptor valid (CRC, epoch, no cancel); batch place, KV blocks and launch budget available",
        "CAS of the whole control word",
        CountRule.SAME,
    ),
    Transition(
        "T3",
        "reject",
        (S.PREFILL_PENDING,),
        S.DECODE_COMPLETED,
        Actor.GPU,
        "cancelled, fenced, or bad descriptor",
        "status says which",
        CountRule.SAME,
        (SlotStatus.CANCELLED, SlotStatus.FENCED, SlotStatus.BAD_DESCRIPTOR),
    ),
    Transition(
        "T4",
        "first_token",
        (S.PREFILL_PROCESSING,),
        S.DECODE_PROCESSING,
        Actor.GPU,
        "prefill graph done",
        "token count becomes 1",
        CountRule.ONE,
    ),
    Transition(
        "T4'",
        "finish_at_prefill",
        (S.PREFILL_PROCESSING,),
        S.DECODE_COMPLETED,
        Actor.GPU,
        "first token ends the request",
        "token count 1 and status in the same store",
        CountRule.ONE,
        (SlotStatus.STOP, SlotStatus.LENGTH),
    ),
    Transition(
        "T5",
        "token",
        (S.DECODE_PROCESSING,),
        S.DECODE_PROCESSING,
        Actor.GPU,
        "decode graph done",
        "token count + 1",
        CountRule.PLUS_ONE,
    ),
    Transition(
        "T6",
        "pause",
        (S.DECODE_PROCESSING,),
        S.DECODE_PAUSED,
        Actor.GPU,
        "between two steps",
        "count unchanged",
        CountRule.SAME,
    ),
    Transition(
        "T7",
        "resume",
        (S.DECODE_PAUSED,),
        S.DECODE_PROCESSING,
        Actor.GPU,
        "between two steps",
        "count unchanged",
        CountRule.SAME,
    ),
    Transition(
        "T8",
        "finish",
        (S.DECODE_PROCESSING,),
        S.DECODE_COMPLETED,
        Actor.GPU,
        "EOS, stop or length",
        "last count + 1 and status in the same store",
        CountRule.PLUS_ONE,
        (SlotStatus.STOP, SlotStatus.LENGTH),
    ),
    Transition(
        "T9",
        "abort",
        (S.PREFILL_PROCESSING, S.DECODE_PROCESSING, S.DECODE_PAUSED),
        S.DECODE_COMPLETED,
        Actor.GPU,
        "cancel, time limit, fence or engine error; between two steps",
        "status says which",
        CountRule.SAME,
        _ALL_ERRORS,
    ),
    Transition(
        "T10",
        "recycle",
        (S.DECODE_COMPLETED,),
        S.EMPTY,
        Actor.FRONTEND,
        "all tokens drained (or cancelled) and no READ of the slot in flight",
        "generation + 1, slot back on the free list",
        CountRule.ZERO,
        generation_step=1,
    ),
)
"""T1 to T10 in the specification's order."""

SYSTEM_EVENTS: tuple[SystemEvent, ...] = (
    SystemEvent(
        "E1",
        "cancel",
        Actor.FRONTEND,
        "the request is not complete",
        "writes the slot's cancel word; seen at claim and at every step boundary",
    ),
    SystemEvent(
        "E2",
        "frontend restart",
        Actor.FRONTEND,
        "the old connection is destroyed first",
        "epoch + 1, then the ring is read: empty = free, completed = recycle, else wait for the fence",
    ),
    SystemEvent(
        "E3",
        "relaunch",
        Actor.GPU,
        "no child graph is running",
        "the new scheduler instance adopts every slot from memory",
    ),
)
"""E1 to E3: they change no slot's state by themselves."""

BY_NAME: dict[str, Transition] = {row.name: row for row in TRANSITIONS}

LEGAL_TRIPLES: frozenset[tuple[SlotState, SlotState, Actor]] = frozenset(
    (source, row.target, row.actor) for row in TRANSITIONS for source in row.sources
)
"""Every (from, to, actor) that the protocol allows; all others are refused."""


def is_legal(source: SlotState, target: SlotState, actor: Actor) -> bool:
    """Whether `actor` may move a slot from `source` to `target`."""
    return (source, target, actor) in LEGAL_TRIPLES


class IllegalTransitionError(RuntimeError):
    """A write of a control word that the table does not allow: invariant I1."""


def require_legal(source: int, target: int, actor: Actor) -> None:
    """Refuse an illegal (from, to, actor); states may be given by their values.

    Raises IllegalTransitionError, whose message names the three and what the actor could do instead.
    """
    if (source, target, actor) not in LEGAL_TRIPLES:
        raise IllegalTransitionError(_refusal(source, target, actor))


def _refusal(source: int, target: int, actor: Actor) -> str:
    names = {state.value: state.label for state in SlotState}
    allowed = sorted(t.label for f, t, a in LEGAL_TRIPLES if f == source and a == actor)
    return (
        f"I1: {actor.label} may not move a slot from {names.get(source, source)} to {names.get(target, target)}; "
        f"allowed from there: {', '.join(allowed) or 'nothing (the other side owns it)'}"
    )
