"""The frontend: submits, cancels, polls, recycles, crashes, restarts. It touches memory by WRITEs and READs alone."""

from __future__ import annotations

from blink.common.layout import EPOCH_MODULUS, next_generation
from blink.common.states import Actor, SlotStatus
from blink.prove.action import Action, Move
from blink.prove.rules import Rules
from blink.prove.state import (
    COMPLETED,
    EMPTY,
    NO_WORD,
    NOBODY,
    PENDING,
    Cell,
    Descriptor,
    Frontend,
    Kind,
    Phase,
    Stage,
    State,
    TokenRead,
    View,
    Wire,
    Write,
    count_of,
    free_view,
    generation_of,
    put,
    state_of,
    status_of,
    word_of,
)
from blink.prove.wire import captured

_UNDELIVERED = (SlotStatus.CANCELLED, SlotStatus.FENCED)


def submit(rules: Rules, state: State, slot: int) -> State:
    """T1: take a slot off the free list and post prompt, descriptor and control word.

    They are posted as one event: a crash between two of them looks like a crash after which the rest never lands.
    """
    frontend, wire, budget = state.frontend, state.wire, state.budget
    generation, request = frontend.views[slot].generation, budget.submitted
    word = word_of(PENDING, SlotStatus.NONE, frontend.epoch, generation, 0)
    writes: tuple[Write, ...] = (
        Write(Kind.PROMPT, slot, request),
        Write(Kind.DESCRIPTOR, slot, Descriptor(request, generation, frontend.epoch)),
        Write(Kind.SUBMIT, slot, word),
    )
    if rules.flag_before_payload:
        writes = (writes[2], *writes[:2])
    view = View(Phase.IN_USE, generation, request, False, 0, NO_WORD)
    return state._replace(
        memory=_forget_output(state, slot),
        wire=wire._replace(fifo=wire.fifo + writes),
        frontend=frontend._replace(views=put(frontend.views, slot, view)),
        budget=budget._replace(submitted=request + 1),
    )


def _forget_output(state: State, slot: int) -> tuple[Cell, ...]:
    """Tokens of ended requests are all alike, "not of this request", unless one of them is still being read."""
    cell = state.memory[slot]
    if state.wire.tokens[slot] is not None:
        return state.memory
    return put(state.memory, slot, cell._replace(output=(NOBODY,) * len(cell.output)))


def cancel(rules: Rules, state: State, slot: int) -> State:
    """E1: post the cancel word of a request that is not complete."""
    frontend, wire, budget, cell = state.frontend, state.wire, state.budget, state.memory[slot]
    view = frontend.views[slot]
    write = Write(Kind.CANCEL, slot, view.generation)
    if rules.cancel_through_ctl:
        word = word_of(COMPLETED, SlotStatus.CANCELLED, frontend.epoch, view.generation, view.read)
        write = Write(Kind.ABORT, slot, word)
    return state._replace(
        memory=put(state.memory, slot, cell._replace(asked=view.generation)),
        wire=wire._replace(fifo=(*wire.fifo, write)),
        frontend=frontend._replace(views=put(frontend.views, slot, view._replace(cancelled=True))),
        budget=budget._replace(cancels=budget.cancels - 1),
    )


def poll(rules: Rules, state: State, slot: int) -> State:
    """Post one READ of the status array."""
    words = len(state.memory) * (2 if rules.count_in_a_second_word else 1)
    return state._replace(wire=state.wire._replace(read=(NO_WORD,) * words))


def deliver(rules: Rules, state: State, slot: int) -> State:
    """The status READ completes: READs of tokens are posted, completions are noted, a restarted frontend recovers."""
    frontend, wire = state.frontend, state.wire
    words = captured(wire.read, len(state.memory))
    if frontend.stage == Stage.RECOVERING:
        views = tuple(_recovered(rules, word) for word in words)
        return state._replace(wire=wire._replace(read=()), frontend=Frontend(Stage.SERVING, frontend.epoch, views))
    views = tuple(_updated(rules, view, word) for view, word in zip(frontend.views, words, strict=True))
    tokens = tuple(
        read or _news(rules, view, word) for read, view, word in zip(wire.tokens, frontend.views, words, strict=True)
    )
    return state._replace(wire=wire._replace(read=(), tokens=tokens), frontend=frontend._replace(views=views))


def _recovered(rules: Rules, word: int) -> View:
    """What a restart makes of a slot: empty is free, completed is to be recycled, else wait for the fence."""
    if state_of(word) == EMPTY or rules.restart_that_frees_everything:
        return free_view(generation_of(word))
    ended = word if state_of(word) == COMPLETED else NO_WORD
    return View(Phase.RECOVERING, generation_of(word), NOBODY, False, 0, ended)


def _concerns(rules: Rules, view: View, word: int) -> bool:
    return view.phase != Phase.FREE and (generation_of(word) == view.generation or rules.no_generation_check)


def _updated(rules: Rules, view: View, word: int) -> View:
    if not _concerns(rules, view, word):
        return view
    if state_of(word) == COMPLETED:
        return view._replace(ended=word)
    if state_of(word) == EMPTY and rules.trust_an_empty_seen_on_the_wire:
        return free_view(generation_of(word))
    return view


def _news(rules: Rules, view: View, word: int) -> TokenRead | None:
    """The READ of the tokens that a status word announces."""
    if view.phase != Phase.IN_USE or not _concerns(rules, view, word) or count_of(word) <= view.read:
        return None
    return TokenRead(view.request, view.read, count_of(word))


def may_recycle(rules: Rules, state: State, slot: int) -> bool:
    """T10's guard: the completion is known, all is drained or nobody wants it, no READ of the slot is in flight."""
    view, read = state.frontend.views[slot], state.wire.tokens[slot]
    if view.ended == NO_WORD or state.wire.read:
        return False
    if read is not None:
        return rules.recycle_before_the_reads_are_done
    return undelivered(view) or view.read == count_of(view.ended)


def undelivered(view: View) -> bool:
    """Whether nobody waits for the rest of the tokens."""
    return view.phase == Phase.RECOVERING or view.cancelled or status_of(view.ended) in _UNDELIVERED


def recycle(rules: Rules, state: State, slot: int) -> State:
    """T10: post the empty word of the next generation and put the slot on the free list."""
    frontend, wire = state.frontend, state.wire
    generation = frontend.views[slot].generation
    if not rules.generation_not_bumped:
        generation = next_generation(generation)
    write = Write(Kind.RECYCLE, slot, word_of(EMPTY, SlotStatus.NONE, frontend.epoch, generation, 0))
    return state._replace(
        wire=wire._replace(fifo=(*wire.fifo, write)),
        frontend=frontend._replace(views=put(frontend.views, slot, free_view(generation))),
    )


def crash(rules: Rules, state: State, slot: int) -> State:
    """The frontend loses its memory and its READs; its WRITEs go on landing until the connection is destroyed."""
    wire = state.wire
    return state._replace(
        wire=wire._replace(read=(), tokens=(None,) * len(state.memory)),
        frontend=Frontend(Stage.CRASHED, 0, ()),
        budget=state.budget._replace(crashes=state.budget.crashes - 1),
    )


def restart(rules: Rules, state: State, slot: int) -> State:
    """E2: destroy the old connection, with all that is on it, and post the next epoch on a new one."""
    epoch = (state.epoch + 1) % EPOCH_MODULUS
    late = state.wire.fifo if rules.old_connection_left_alive else ()
    wire = Wire((Write(Kind.EPOCH, 0, epoch),), state.wire.late + late, (), state.wire.tokens)
    return state._replace(wire=wire, frontend=Frontend(Stage.RECOVERING, epoch, ()))


SUBMIT = Action("submit", Actor.FRONTEND, submit, drains=False)
CANCEL = Action("cancel", Actor.FRONTEND, cancel, drains=False)
POLL = Action("poll", Actor.FRONTEND, poll)
DELIVER = Action("deliver", Actor.FRONTEND, deliver)
RECYCLE = Action("recycle", Actor.FRONTEND, recycle)
CRASH = Action("crash", Actor.FRONTEND, crash, drains=False)
RESTART = Action("restart", Actor.FRONTEND, restart)


def enabled(rules: Rules, state: State, found: list[Move]) -> None:
    """Append what the frontend can do now."""
    frontend, wire, budget = state.frontend, state.wire, state.budget
    if frontend.stage == Stage.CRASHED:
        found.append((RESTART, 0))
        return
    if budget.crashes:
        found.append((CRASH, 0))
    if wire.read:
        if NO_WORD not in wire.read:
            found.append((DELIVER, 0))
    elif frontend.stage == Stage.RECOVERING:
        if state.epoch == frontend.epoch:  # the WRITE of the epoch has completed: now the ring is read
            found.append((POLL, 0))
    elif not any(wire.tokens) and _waits(frontend.views):
        found.append((POLL, 0))
    for slot, view in enumerate(frontend.views):
        if view.phase == Phase.FREE:
            if budget.submitted < rules.configuration.requests:
                found.append((SUBMIT, slot))
            continue
        if budget.cancels and view.phase == Phase.IN_USE and not view.cancelled and view.ended == NO_WORD:
            found.append((CANCEL, slot))
        if view.ended != NO_WORD and may_recycle(rules, state, slot):
            found.append((RECYCLE, slot))


def _waits(views: tuple[View, ...]) -> bool:
    """Whether a slot's completion is still to be seen: else there is nothing to poll for."""
    return any(view.phase != Phase.FREE and view.ended == NO_WORD for view in views)
