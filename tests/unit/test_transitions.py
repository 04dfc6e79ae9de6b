"""The table of transitions: every (from, to, actor) is either in the specification's list or refused."""

from __future__ import annotations

from itertools import product

import pytest

from blink.common.events import EVENT_RULES, TRANSITION_EVENTS, Event
from blink.common.states import OWNER, Actor, SlotState, SlotStatus
from blink.common.transitions import (
    BY_NAME,
    LEGAL_TRIPLES,
    TRANSITIONS,
    IllegalTransitionError,
    is_legal,
    require_legal,
)

S, F, G = SlotState, Actor.FRONTEND, Actor.GPU

# Written out by hand from the specification, so that a slip in the table does not go unseen.
SPECIFIED = {
    (S.EMPTY, S.PREFILL_PENDING, F),
    (S.PREFILL_PENDING, S.PREFILL_PROCESSING, G),
    (S.PREFILL_PENDING, S.DECODE_COMPLETED, G),
    (S.PREFILL_PROCESSING, S.DECODE_PROCESSING, G),
    (S.PREFILL_PROCESSING, S.DECODE_COMPLETED, G),
    (S.DECODE_PROCESSING, S.DECODE_PROCESSING, G),
    (S.DECODE_PROCESSING, S.DECODE_PAUSED, G),
    (S.DECODE_PAUSED, S.DECODE_PROCESSING, G),
    (S.DECODE_PROCESSING, S.DECODE_COMPLETED, G),
    (S.DECODE_PAUSED, S.DECODE_COMPLETED, G),
    (S.DECODE_COMPLETED, S.EMPTY, F),
}
ALL_TRIPLES = list(product(SlotState, SlotState, Actor))


def test_there_are_72_triples() -> None:
    assert len(ALL_TRIPLES) == 72


@pytest.mark.parametrize(("source", "target", "actor"), ALL_TRIPLES)
def test_every_triple_is_legal_or_refused(source: SlotState, target: SlotState, actor: Actor) -> None:
    if (source, target, actor) in SPECIFIED:
        assert is_legal(source, target, actor)
        require_legal(source, target, actor)
        return
    assert not is_legal(source, target, actor)
    with pytest.raises(IllegalTransitionError, match=r"^I1: ") as refusal:
        require_legal(source, target, actor)
    message = str(refusal.value)
    assert source.label in message
    assert target.label in message
    assert actor.label in message


def test_the_table_is_the_specification() -> None:
    assert LEGAL_TRIPLES == SPECIFIED


def test_only_the_owner_moves_a_slot() -> None:
    for row in TRANSITIONS:
        for source in row.sources:
            assert OWNER[source] == row.actor, row.name


def test_every_state_is_entered_and_left() -> None:
    assert {row.target for row in TRANSITIONS} == set(SlotState)
    assert {source for row in TRANSITIONS for source in row.sources} == set(SlotState)


def test_a_status_is_given_exactly_where_a_slot_completes() -> None:
    for row in TRANSITIONS:
        completes = row.target == S.DECODE_COMPLETED
        assert (SlotStatus.NONE not in row.statuses) == completes, row.name
    given = {status for row in TRANSITIONS for status in row.statuses}
    assert given == set(SlotStatus), "every status has a transition that gives it"


def test_only_recycle_changes_the_generation() -> None:
    assert [row.name for row in TRANSITIONS if row.generation_step] == ["recycle"]


def test_each_transition_is_an_event_and_has_a_rule() -> None:
    assert [event.label for event in TRANSITION_EVENTS] == [row.name for row in TRANSITIONS]
    assert [int(event) for event in TRANSITION_EVENTS] == list(range(len(TRANSITIONS)))
    assert set(EVENT_RULES) == set(Event)
    for event in TRANSITION_EVENTS:
        assert EVENT_RULES[event].actor == BY_NAME[event.label].actor
