"""The invariants I1 to I10 as properties of one event (state before, event, state after) and of one state.

What is legal comes from the transition table of `blink.common.transitions`; nothing of it is repeated here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, cast

from blink.common.layout import next_generation
from blink.common.states import OWNER, Actor, SlotState, SlotStatus
from blink.common.transitions import TRANSITIONS, CountRule, IllegalTransitionError, Transition, require_legal
from blink.prove import frontend, gpu, wire
from blink.prove.action import Action
from blink.prove.rules import Rules
from blink.prove.state import (
    COMPLETED,
    EMPTY,
    PREFILLING,
    Kind,
    Look,
    Phase,
    Running,
    Stage,
    State,
    TokenRead,
    Write,
    count_of,
    epoch_of,
    generation_of,
    state_of,
    status_of,
)

INVARIANTS: dict[str, str] = {
    "I1": "every write of ctl is a legal triple by the slot's current owner",
    "I2": "prompt and output areas are written by the owner alone; a claim sees this generation's prompt",
    "I3": "the generation changes at recycle only, by exactly one",
    "I4": "at most one claim for a (slot, generation)",
    "I5": "the token count obeys the rule of the transition",
    "I6": "the token count is at most the limit of the request",
    "I7": "the client gets its tokens once, in order; nothing is recycled undrained",
    "I8": "a cancelled status has its cancel, a fenced one its change of epoch",
    "I9": "free, in use and recovering partition the ring, and what is free is empty",
    "I10": "no graph is launched for a slot whose cancel or fence was visible at the boundary before",
    "L1": "from every reachable state the all-idle state is reachable",
    "L2": "when faults stop, everything drains within a bounded number of steps",
}


class Breach(NamedTuple):
    """An invariant that does not hold, and what happened."""

    invariant: str
    message: str


Check = Callable[[Rules, State, int, State], Breach | None]


def breach_of(rules: Rules, before: State, action: Action, place: int, after: State) -> Breach | None:
    """The first invariant that this event breaks, None if it breaks none."""
    check = _CHECKS.get(action)
    found = check(rules, before, place, after) if check is not None else None
    return found or (_gpu_store(rules, before, place, after) if action.stores and action.actor else None)


# --- writes of the control word: I1, I3, I5, I6, I8 -----------------------------------------------------------------


@cache
def store_breach(old: int, new: int, actor: Actor, limit: int) -> Breach | None:
    """What is wrong with a write of the control word, by the words alone."""
    source, target = SlotState(state_of(old)), SlotState(state_of(new))
    try:
        require_legal(source, target, actor)
    except IllegalTransitionError as error:
        return Breach("I1", str(error).removeprefix("I1: "))
    row = _row(source, target, actor, SlotStatus(status_of(new)))
    if row is None:
        status = SlotStatus(status_of(new)).label
        return Breach("I1", f"no transition leads from {source.label} to {target.label} with status {status}")
    generation = next_generation(generation_of(old)) if row.generation_step else generation_of(old)
    if generation_of(new) != generation:
        return Breach("I3", f"{row.name} leaves generation {generation_of(new)}, it must be {generation}")
    count = _count_after(row, count_of(old))
    if count_of(new) != count:
        return Breach("I5", f"{row.name} leaves token count {count_of(new)}, it must be {count}")
    if count > limit:
        return Breach("I6", f"{row.name} leaves token count {count}, the limit of the request is {limit}")
    return None


def row_of(old: int, new: int, actor: Actor) -> Transition | None:
    """The transition of the table that this write of a control word is."""
    return _row(SlotState(state_of(old)), SlotState(state_of(new)), actor, SlotStatus(status_of(new)))


def _row(source: SlotState, target: SlotState, actor: Actor, status: SlotStatus) -> Transition | None:
    """Source, target and actor leave T4' and T8 apart from T9 to the status."""
    for row in TRANSITIONS:
        if source in row.sources and target == row.target and actor == row.actor and status in row.statuses:
            return row
    return None


def _count_after(row: Transition, count: int) -> int:
    return {CountRule.ZERO: 0, CountRule.SAME: count, CountRule.ONE: 1, CountRule.PLUS_ONE: count + 1}[row.count]


def _gpu_store(rules: Rules, before: State, slot: int, after: State) -> Breach | None:
    old, new = before.memory[slot], after.memory[slot]
    if old is new:  # a compare-and-swap that failed
        return None
    found = store_breach(old.ctl, new.ctl, Actor.GPU, rules.configuration.tokens)
    return found or _status_breach(before, slot, new.ctl)


def _status_breach(state: State, slot: int, word: int) -> Breach | None:
    """I8."""
    status = status_of(word)
    if status == SlotStatus.CANCELLED and state.memory[slot].asked != generation_of(word):
        return Breach("I8", f"slot {slot} generation {generation_of(word)} is cancelled, nobody asked for it")
    if status == SlotStatus.FENCED and epoch_of(word) == state.epoch:
        return Breach("I8", f"slot {slot} is fenced, but its epoch {epoch_of(word)} is the frontend's")
    return None


# --- WRITEs of the frontend: I1, I2, I3 -----------------------------------------------------------------------------


def _land(rules: Rules, before: State, index: int, after: State) -> Breach | None:
    return _landed(rules, before, before.wire.fifo[index])


def _land_late(rules: Rules, before: State, index: int, after: State) -> Breach | None:
    return _landed(rules, before, before.wire.late[0])


def _landed(rules: Rules, before: State, write: Write) -> Breach | None:
    word = before.memory[write.slot].ctl
    if write.kind in (Kind.SUBMIT, Kind.RECYCLE, Kind.ABORT):
        return store_breach(word, cast(int, write.value), Actor.FRONTEND, rules.configuration.tokens)
    if write.kind in (Kind.PROMPT, Kind.DESCRIPTOR) and OWNER[SlotState(state_of(word))] != Actor.FRONTEND:
        what = "prompt" if write.kind == Kind.PROMPT else "descriptor"
        state = SlotState(state_of(word)).label
        return Breach("I2", f"the {what} of slot {write.slot} is written while the gpu owns the slot ({state})")
    return None


# --- claims, tokens, graphs: I2, I4, I7, I10 ------------------------------------------------------------------------


def _claim(rules: Rules, before: State, slot: int, after: State) -> Breach | None:
    cell = after.memory[slot]
    if cell is before.memory[slot] or state_of(cell.ctl) != PREFILLING:
        return None
    if cell.claims > 1:
        return Breach("I4", f"slot {slot} generation {generation_of(cell.ctl)} is claimed a second time")
    if cell.prompt != cell.descriptor.request:
        return Breach("I2", f"the claim of slot {slot} does not see the prompt of generation {generation_of(cell.ctl)}")
    return None


def _store_token(rules: Rules, before: State, slot: int, after: State) -> Breach | None:
    state = SlotState(state_of(before.memory[slot].ctl))
    if OWNER[state] == Actor.GPU:
        return None
    return Breach("I2", f"the gpu writes the output of slot {slot}, which is the frontend's ({state.label})")


def _launch(kind: int) -> Check:
    def check(rules: Rules, before: State, slot: int, after: State) -> Breach | None:
        for member in gpu.members(before, kind):
            if before.gpu.lanes[member].look != Look.CLEAR:
                why = "fence" if epoch_of(before.memory[member].ctl) != before.epoch else "cancel"
                return Breach("I10", f"a graph is launched for slot {member}, whose {why} was visible before")
        return None

    return check


def _serve_tokens(rules: Rules, before: State, slot: int, after: State) -> Breach | None:
    read, view = cast(TokenRead, before.wire.tokens[slot]), before.frontend.views[slot]
    if view.phase == Phase.IN_USE and view.request == read.request and view.read != read.begin:
        return Breach("I7", f"request {read.request} gets token {read.begin} after {view.read} tokens")
    output = before.memory[slot].output
    for position in range(read.begin, read.end):
        if output[position] != read.request:
            return Breach("I7", f"token {position} that request {read.request} gets is not its own")
    return None


def _recycle(rules: Rules, before: State, slot: int, after: State) -> Breach | None:
    """The completion stands in memory now: the frontend owns it."""
    cell, view, read = before.memory[slot], before.frontend.views[slot], before.wire.tokens[slot]
    word = cell.ctl
    status = status_of(word)
    excused = (
        status in (SlotStatus.CANCELLED, SlotStatus.FENCED)
        or cell.asked == generation_of(word)
        or epoch_of(word) != before.frontend.epoch
    )
    got = read.end if read is not None else view.read  # a READ that is posted counts: it may still bring them
    if state_of(word) != COMPLETED or excused or got == count_of(word):
        return None
    return Breach("I7", f"slot {slot} is recycled with {got} of its {count_of(word)} tokens read")


_CHECKS: dict[Action, Check] = {
    wire.LAND: _land,
    wire.LAND_LATE: _land_late,
    gpu.CLAIM: _claim,
    gpu.STORE_TOKEN: _store_token,
    gpu.LAUNCH_PREFILL: _launch(Running.PREFILL),
    gpu.LAUNCH_DECODE: _launch(Running.DECODE),
    wire.SERVE_TOKENS: _serve_tokens,
    frontend.RECYCLE: _recycle,
}


# --- one state: I9 --------------------------------------------------------------------------------------------------


def state_breach(state: State) -> Breach | None:
    """I9.

    The three sets partition the ring because the model keeps one phase a slot; what is left to show is that they mean
    what they say: behind the WRITEs under way, a free slot is empty and of the generation that the free list has.
    """
    if state.frontend.stage != Stage.SERVING:
        return None
    for slot, view in enumerate(state.frontend.views):
        word = wire.behind(state, slot)
        empty = state_of(word) == EMPTY
        if view.phase == Phase.FREE and not empty:
            return Breach("I9", f"slot {slot} is on the free list, but it is {SlotState(state_of(word)).label}")
        if view.phase == Phase.FREE and generation_of(word) != view.generation:
            return Breach("I9", f"slot {slot} is free with generation {view.generation}, not {generation_of(word)}")
        if view.phase != Phase.FREE and empty:
            return Breach("I9", f"slot {slot} counts as in use, but it is empty")
    return None
