"""The persistent scheduler: sees, claims, launches, publishes, looks for cancels, pauses, is relaunched.

Which slots to claim, pause or resume, when to launch, and when a text ends, is left open: whatever a policy decides is
a path here.
Two steps are one event each where no other actor can tell: the look at all cancel words at a step boundary (a cancel
that lands in the midst of it is as good as one before or after), and a relaunch with the adoption of the slots (the
states that it adopts are written by the gpu alone).
"""

from __future__ import annotations

from blink.common.layout import CANCEL_NONE, STATE_MASK
from blink.common.states import Actor, SlotStatus
from blink.prove.action import Action, Move
from blink.prove.rules import Rules
from blink.prove.state import (
    COMPLETED,
    DECODING,
    IN_BATCH,
    NO_WORD,
    PAUSED,
    PENDING,
    PREFILLING,
    Cell,
    Gpu,
    Lane,
    Look,
    Owed,
    Running,
    State,
    count_of,
    epoch_of,
    generation_of,
    moved,
    put,
    state_of,
)

COVERED = {Running.PREFILL: PREFILLING, Running.DECODE: DECODING}
"""The state of the slots that a graph is launched for."""


def _with_lane(state: State, slot: int, lane: Lane) -> State:
    gpu = state.gpu
    return state._replace(gpu=Gpu(gpu.graph, gpu.looked, put(gpu.lanes, slot, lane)))


def _with_slot(state: State, slot: int, cell: Cell, lane: Lane) -> State:
    gpu = state.gpu
    return state._replace(
        memory=put(state.memory, slot, cell), gpu=Gpu(gpu.graph, gpu.looked, put(gpu.lanes, slot, lane))
    )


def _store(state: State, slot: int, word: int, lane: Lane) -> State:
    """A release store of the control word."""
    return _with_slot(state, slot, state.memory[slot]._replace(ctl=word), lane)


# --- claims ---------------------------------------------------------------------------------------------------------


def see(rules: Rules, state: State, slot: int) -> State:
    """The scan loads a pending word."""
    return _with_lane(state, slot, state.gpu.lanes[slot]._replace(seen=state.memory[slot].ctl))


def claim(rules: Rules, state: State, slot: int) -> State:
    """T2 or T3: compare-and-swap the word that was seen, to a claim or to a rejection."""
    cell, lane = state.memory[slot], state.gpu.lanes[slot]
    if cell.ctl != lane.seen and not rules.claim_without_cas:
        return _with_lane(state, slot, lane._replace(seen=NO_WORD))
    status, look = _verdict(rules, state, cell)
    if status == SlotStatus.NONE:
        claimed = cell._replace(ctl=moved(lane.seen, PREFILLING), claims=cell.claims + 1)
        return _with_slot(state, slot, claimed, Lane(NO_WORD, True, look, Owed.NOTHING))
    return _store(state, slot, moved(lane.seen, COMPLETED, status), lane._replace(seen=NO_WORD))


def _verdict(rules: Rules, state: State, cell: Cell) -> tuple[int, int]:
    """The status with which a pending request is rejected, NONE if it is claimed, and what was there to be seen."""
    if cell.descriptor[1:] != (generation_of(cell.ctl), epoch_of(cell.ctl)):
        return SlotStatus.BAD_DESCRIPTOR, Look.CLEAR
    if epoch_of(cell.ctl) != state.epoch:
        if rules.no_epoch_fence:
            return SlotStatus.NONE, Look.IGNORED
        return SlotStatus.FENCED, Look.CLEAR
    if cancel_visible(rules, cell):
        return SlotStatus.CANCELLED, Look.CLEAR
    return SlotStatus.NONE, Look.CLEAR


# --- the step boundary ----------------------------------------------------------------------------------------------


def cancel_visible(rules: Rules, cell: Cell) -> bool:
    """Whether the slot's cancel word asks to end the generation that is in the slot."""
    if rules.cancel_without_generation:
        return cell.cancel != CANCEL_NONE
    return cell.cancel == generation_of(cell.ctl)


def _look_at(rules: Rules, state: State, slot: int) -> int:
    """What the scheduler sees of a slot of its batch, and whether it cares."""
    cell = state.memory[slot]
    if epoch_of(cell.ctl) != state.epoch:
        return Look.IGNORED if rules.no_epoch_fence else Look.DOOMED
    if not cancel_visible(rules, cell):
        return Look.CLEAR
    if rules.cancel_ignored_while_paused and state_of(cell.ctl) == PAUSED:
        return Look.IGNORED
    return Look.DOOMED


def look(rules: Rules, state: State, slot: int) -> State:
    """The step boundary: load the cancel words of the batch and the epoch."""
    lanes = tuple(
        lane._replace(look=_look_at(rules, state, slot)) if lane.known else lane
        for slot, lane in enumerate(state.gpu.lanes)
    )
    return state._replace(gpu=Gpu(state.gpu.graph, True, lanes))


def doomed_status(state: State, slot: int) -> int:
    """Why a slot is doomed."""
    return SlotStatus.FENCED if epoch_of(state.memory[slot].ctl) != state.epoch else SlotStatus.CANCELLED


def _aborted(state: State, slot: int, status: int) -> State:
    lane = Lane(state.gpu.lanes[slot].seen, False, Look.CLEAR, Owed.NOTHING)
    return _store(state, slot, moved(state.memory[slot].ctl, COMPLETED, status), lane)


def abort(rules: Rules, state: State, slot: int) -> State:
    """T9 of a doomed slot."""
    return _aborted(state, slot, doomed_status(state, slot))


def expire(rules: Rules, state: State, slot: int) -> State:
    """T9 because the request outlived its time limit."""
    return _aborted(_with_error(state), slot, SlotStatus.TIME_LIMIT)


def fail(rules: Rules, state: State, slot: int) -> State:
    """T9 because the graph that runs failed for this slot."""
    return _aborted(_with_error(state), slot, SlotStatus.ENGINE)


def _with_error(state: State) -> State:
    return state._replace(budget=state.budget._replace(errors=state.budget.errors - 1))


def pause(rules: Rules, state: State, slot: int) -> State:
    """T6."""
    return _store(state, slot, moved(state.memory[slot].ctl, PAUSED), state.gpu.lanes[slot])


def resume(rules: Rules, state: State, slot: int) -> State:
    """T7."""
    return _store(state, slot, moved(state.memory[slot].ctl, DECODING), state.gpu.lanes[slot])


def relaunch(rules: Rules, state: State, slot: int) -> State:
    """E3: a new instance, whose own memory is empty, adopts every slot from the ring."""
    lanes = tuple(
        Lane(NO_WORD, state_of(cell.ctl) in IN_BATCH and not rules.relaunch_that_adopts_nothing, Look.CLEAR, 0)
        for cell in state.memory
    )
    budget = state.budget._replace(relaunches=state.budget.relaunches - 1)
    return state._replace(gpu=Gpu(Running.NONE, False, lanes), budget=budget)


# --- graphs and tokens ----------------------------------------------------------------------------------------------


def members(state: State, kind: int) -> tuple[int, ...]:
    """The slots that a graph of this kind is launched for now."""
    covered = COVERED[Running(kind)]
    return tuple(
        slot for slot, lane in enumerate(state.gpu.lanes) if lane.known and state_of(state.memory[slot].ctl) == covered
    )


def _launched(state: State, kind: int) -> State:
    covered = members(state, kind)
    lanes = tuple(
        lane._replace(owed=Owed.TOKEN) if slot in covered else lane for slot, lane in enumerate(state.gpu.lanes)
    )
    return state._replace(gpu=Gpu(kind, state.gpu.looked, lanes))


def launch_prefill(rules: Rules, state: State, slot: int) -> State:
    """Launch a prefill graph for all that are claimed."""
    return _launched(state, Running.PREFILL)


def launch_decode(rules: Rules, state: State, slot: int) -> State:
    """Launch a decode graph for all that decode."""
    return _launched(state, Running.DECODE)


def graph_done(rules: Rules, state: State, slot: int) -> State:
    """The graph is complete: its tokens are to be published, and the next boundary is to be looked at."""
    return state._replace(gpu=Gpu(Running.NONE, False, state.gpu.lanes))


def _next_half(state: State, slot: int) -> Lane:
    """The slot's lane when one of the two stores of a token is made."""
    lane = state.gpu.lanes[slot]
    return lane._replace(owed=Owed.HALF if lane.owed == Owed.TOKEN else Owed.NOTHING)


def store_token(rules: Rules, state: State, slot: int) -> State:
    """The data: the token goes to the output area, at the position after those that are published."""
    cell = state.memory[slot]
    position = count_of(cell.ctl) - rules.count_published_before_token
    if position < len(cell.output):  # beyond it lies memory that the model does not have
        cell = cell._replace(output=put(cell.output, position, cell.descriptor.request))
    return _with_slot(state, slot, cell, _next_half(state, slot))


def publish(rules: Rules, state: State, slot: int) -> State:
    """T4 or T5, the control: count + 1."""
    return _store(state, slot, moved(state.memory[slot].ctl, DECODING, more=1), _next_half(state, slot))


def publish_last(rules: Rules, state: State, slot: int) -> State:
    """T4' or T8, the control: count + 1 and the status in one store."""
    word = state.memory[slot].ctl
    status = SlotStatus.STOP if count_of(word) + 1 < rules.configuration.tokens else SlotStatus.LENGTH
    lane = _next_half(state, slot)._replace(known=False, look=Look.CLEAR)
    return _store(state, slot, moved(word, COMPLETED, status, more=1), lane)


SEE = Action("see", Actor.GPU, see)
CLAIM = Action("claim", Actor.GPU, claim, stores=True)
LOOK = Action("look", Actor.GPU, look)
ABORT = Action("abort", Actor.GPU, abort, stores=True)
EXPIRE = Action("expire", Actor.GPU, expire, drains=False, stores=True)
FAIL = Action("fail", Actor.GPU, fail, drains=False, stores=True)
PAUSE = Action("pause", Actor.GPU, pause, drains=False, stores=True)
RESUME = Action("resume", Actor.GPU, resume, stores=True)
RELAUNCH = Action("relaunch", Actor.GPU, relaunch, drains=False)
LAUNCH_PREFILL = Action("launch_prefill", Actor.GPU, launch_prefill)
LAUNCH_DECODE = Action("launch_decode", Actor.GPU, launch_decode)
GRAPH_DONE = Action("graph_done", Actor.GPU, graph_done)
STORE_TOKEN = Action("store_token", Actor.GPU, store_token)
PUBLISH = Action("publish", Actor.GPU, publish, stores=True)
PUBLISH_LAST = Action("publish_last", Actor.GPU, publish_last, stores=True)


def enabled(rules: Rules, state: State, found: list[Move]) -> None:
    """Append what the scheduler can do now."""
    graph, looked, lanes = state.gpu
    between_steps = True
    for slot, lane in enumerate(lanes):
        if lane.owed:
            between_steps = False
            if graph:
                if state.budget.errors:
                    found.append((FAIL, slot))
            else:
                _tokens(rules, state, slot, found)
        if lane.seen != NO_WORD:
            found.append((CLAIM, slot))
        elif state.memory[slot].ctl & STATE_MASK == PENDING:
            found.append((SEE, slot))
    if graph:
        found.append((GRAPH_DONE, 0))
    elif between_steps:
        _boundary(rules, state, looked, found)


def _tokens(rules: Rules, state: State, slot: int, found: list[Move]) -> None:
    """Data before control; the mutant holds it the other way round."""
    data_next = (state.gpu.lanes[slot].owed == Owed.TOKEN) != rules.count_published_before_token
    if data_next:
        found.append((STORE_TOKEN, slot))
        return
    last = count_of(state.memory[slot].ctl) + 1 >= rules.configuration.tokens
    if not last or rules.no_capacity_guard:
        found.append((PUBLISH, slot))
    found.append((PUBLISH_LAST, slot))


def _boundary(rules: Rules, state: State, looked: bool, found: list[Move]) -> None:
    """Between two steps: look, abort, pause, resume, launch, or give way to a successor."""
    may_launch, news = looked, not looked
    covered: set[int] = set()
    for slot, lane in enumerate(state.gpu.lanes):
        if not lane.known:
            continue
        if lane.look == Look.DOOMED:
            may_launch = False
            found.append((ABORT, slot))
            continue
        news = news or lane.look != _look_at(rules, state, slot)
        _choices(rules, state, slot, found)
        covered.add(state.memory[slot].ctl & STATE_MASK)
    if news and any(lane.known for lane in state.gpu.lanes):
        found.append((LOOK, 0))
    if may_launch and PREFILLING in covered:
        found.append((LAUNCH_PREFILL, 0))
    if may_launch and DECODING in covered:
        found.append((LAUNCH_DECODE, 0))
    if state.budget.relaunches:
        found.append((RELAUNCH, 0))


def _choices(rules: Rules, state: State, slot: int, found: list[Move]) -> None:
    """What a policy may choose for a slot of the batch."""
    held = state.memory[slot].ctl & STATE_MASK
    if state.budget.errors:
        found.append((EXPIRE, slot))
    if held == DECODING and rules.configuration.pauses:
        found.append((PAUSE, slot))
    if held == PAUSED and not rules.never_resume:
        found.append((RESUME, slot))
