"""A counterexample as a numbered story: who did what, and what came of it."""

from __future__ import annotations

from collections.abc import Callable

from blink.common.states import SlotState, SlotStatus
from blink.prove import frontend, gpu, wire
from blink.prove.action import Action
from blink.prove.explorer import Counterexample, Step
from blink.prove.properties import INVARIANTS
from blink.prove.state import (
    Cell,
    Kind,
    Look,
    Phase,
    Running,
    State,
    Write,
    count_of,
    epoch_of,
    generation_of,
    state_of,
    status_of,
)

_WIDTH = len("frontend")


def story(found: Counterexample) -> list[str]:
    """The events as lines `number  actor  sentence`, then the invariant, what it says and how it is broken."""
    lines = [_line(number, step) for number, step in enumerate(found.steps, 1)]
    breach = found.breach
    return [
        *lines,
        f"{breach.invariant}: {breach.message}",
        f"    ({breach.invariant}: {INVARIANTS[breach.invariant]})",
    ]


def _line(number: int, step: Step) -> str:
    actor = "wire" if step.action.actor is None else step.action.actor.label
    return f"{number:>3}  {actor:<{_WIDTH}}  {_SENTENCES[step.action](step)}"


def _ctl(word: int) -> str:
    """A control word in words."""
    text = f"{SlotState(state_of(word)).label}, generation {generation_of(word)}, epoch {epoch_of(word)}"
    if count_of(word):
        text += f", {_tokens(count_of(word))}"
    return text + (f", status {SlotStatus(status_of(word)).label}" if status_of(word) else "")


def _tokens(count: int) -> str:
    return f"{count} token" if count == 1 else f"{count} tokens"


def _slots(slots: list[int] | tuple[int, ...]) -> str:
    return ("slot " if len(slots) == 1 else "slots ") + ", ".join(map(str, slots))


# --- frontend and wire ----------------------------------------------------------------------------------------------


def _submit(step: Step) -> str:
    posted = step.after.wire.fifo[len(step.before.wire.fifo) :]
    names = {Kind.PROMPT: "prompt", Kind.DESCRIPTOR: "descriptor", Kind.SUBMIT: "control word"}
    order = ", ".join(names[Kind(write.kind)] for write in posted)
    view = step.after.frontend.views[step.place]
    return f"submits request {view.request} in slot {step.place}, generation {view.generation}: posts {order}"


def _cancel(step: Step) -> str:
    view, write = step.before.frontend.views[step.place], step.after.wire.fifo[-1]
    what = "the cancel word" if write.kind == Kind.CANCEL else "a control word of its own"
    return f"cancels request {view.request} in slot {step.place}: posts {what} of generation {view.generation}"


def _deliver(step: Step) -> str:
    before, after = step.before.frontend.views, step.after.frontend.views
    if not before:
        found = ", ".join(f"slot {slot} {Phase(view.phase).name.lower()}" for slot, view in enumerate(after))
        return f"has read the ring: {found}"
    news = []
    for slot, (old, new) in enumerate(zip(before, after, strict=True)):
        read = step.after.wire.tokens[slot]
        if read is not None and read != step.before.wire.tokens[slot]:
            news.append(f"slot {slot} has {_tokens(read.end)}, posts the READ of {read.begin}..{read.end - 1}")
        if new.ended != old.ended:
            news.append(f"slot {slot} is {_ctl(new.ended)}")
        if new.phase != old.phase:
            news.append(f"slot {slot} goes on the free list")
    return "completes the READ of the status array: " + ("; ".join(news) or "no news")


def _recycle(step: Step) -> str:
    word = _word(step.after.wire.fifo[-1])
    return f"recycles slot {step.place}: posts {_ctl(word)}; the slot is on the free list"


def _restart(step: Step) -> str:
    lost, late = len(step.before.wire.fifo), len(step.after.wire.late) - len(step.before.wire.late)
    old = f"leaves {late} old WRITEs on the wire" if late else f"destroys the old connection with {lost} WRITEs on it"
    return f"restarts: {old}, posts epoch {step.after.frontend.epoch}"


def _land(step: Step) -> str:
    return _landing(step.before, step.before.wire.fifo[step.place])


def _land_late(step: Step) -> str:
    return "a WRITE of the old frontend: " + _landing(step.before, step.before.wire.late[0])


def _landing(before: State, write: Write) -> str:
    kind, where = write.kind, f"slot {write.slot}"
    held = SlotState(state_of(before.memory[write.slot].ctl)).label
    if kind == Kind.EPOCH:
        return f"epoch {write.value} lands in the header"
    if kind == Kind.PROMPT:
        return f"the prompt of request {write.value} lands in {where} ({held})"
    if kind == Kind.DESCRIPTOR:
        return f"the descriptor lands in {where} ({held}) and clears its cancel word"
    if kind == Kind.CANCEL:
        return f"the cancel of generation {write.value} lands in {where} ({held})"
    return f"the control word lands in {where}: {held} -> {_ctl(_word(write))}"


def _word(write: Write) -> int:
    assert isinstance(write.value, int)
    return write.value


def _capture(step: Step) -> str:
    slots = len(step.before.memory)
    slot, words = step.place % slots, len(step.after.wire.read)
    what = "" if words == slots else ("the state of " if step.place < slots else "the count of ")
    return f"the READ takes {what}slot {slot}: {_ctl(step.before.memory[slot].ctl)}"


def _serve_tokens(step: Step) -> str:
    read, cell = step.before.wire.tokens[step.place], step.before.memory[step.place]
    assert read is not None
    whose = ", ".join(_owner(cell, position) for position in range(read.begin, read.end))
    which = f"tokens {read.begin}..{read.end - 1} of slot {step.place}"
    return f"completes the READ of {which} for request {read.request}: {whose}"


def _owner(cell: Cell, position: int) -> str:
    request = cell.output[position] if position < len(cell.output) else -1
    return f"a token of request {request}" if request >= 0 else "nothing of a request that lives"


# --- gpu ------------------------------------------------------------------------------------------------------------


def _see(step: Step) -> str:
    return f"sees slot {step.place}: {_ctl(step.before.memory[step.place].ctl)}"


def _claim(step: Step) -> str:
    slot = step.place
    before, after = step.before.memory[slot], step.after.memory[slot]
    if before is after:
        return f"fails to swap the control word of slot {slot}: it has changed"
    return f"swaps the control word of slot {slot}: {_move(before.ctl, after.ctl)}"


def _move(old: int, new: int) -> str:
    return f"{SlotState(state_of(old)).label} -> {_ctl(new)}"


def _look(step: Step) -> str:
    seen = []
    for slot, lane in enumerate(step.after.gpu.lanes):
        if lane.known and lane.look != Look.CLEAR:
            why = SlotStatus(gpu.doomed_status(step.after, slot)).label
            seen.append(f"slot {slot} is {why}" + (", and passes over it" if lane.look == Look.IGNORED else ""))
    return "looks at the cancel words and the epoch at the step boundary: " + ("; ".join(seen) or "nothing")


def _storing(verb: str) -> Callable[[Step], str]:
    def sentence(step: Step) -> str:
        slot = step.place
        return f"{verb} slot {slot}: {_move(step.before.memory[slot].ctl, step.after.memory[slot].ctl)}"

    return sentence


def _launch(step: Step) -> str:
    kind = Running(step.after.gpu.graph)
    return f"launches a {kind.name.lower()} graph for {_slots(gpu.members(step.before, kind))}"


def _graph_done(step: Step) -> str:
    return f"the {Running(step.before.gpu.graph).name.lower()} graph is done"


def _store_token(step: Step) -> str:
    old, new = step.before.memory[step.place].output, step.after.memory[step.place].output
    changed = [position for position in range(len(new)) if new[position] != old[position]]
    where = f"at position {changed[0]} of slot {step.place}" if changed else f"of slot {step.place}"
    return f"stores the token {where}"


def _relaunch(step: Step) -> str:
    adopted = [slot for slot, lane in enumerate(step.after.gpu.lanes) if lane.known]
    return "is relaunched; the new instance adopts " + (_slots(adopted) if adopted else "nothing")


_SENTENCES: dict[Action, Callable[[Step], str]] = {
    frontend.SUBMIT: _submit,
    frontend.CANCEL: _cancel,
    frontend.POLL: lambda step: "posts a READ of the status array",
    frontend.DELIVER: _deliver,
    frontend.RECYCLE: _recycle,
    frontend.CRASH: lambda step: f"crashes with {len(step.before.wire.fifo)} WRITEs under way",
    frontend.RESTART: _restart,
    wire.LAND: _land,
    wire.LAND_LATE: _land_late,
    wire.CAPTURE: _capture,
    wire.SERVE_TOKENS: _serve_tokens,
    gpu.SEE: _see,
    gpu.CLAIM: _claim,
    gpu.LOOK: _look,
    gpu.ABORT: _storing("aborts"),
    gpu.EXPIRE: _storing("ends, for its time limit,"),
    gpu.FAIL: _storing("ends, for a failed graph,"),
    gpu.PAUSE: _storing("pauses"),
    gpu.RESUME: _storing("resumes"),
    gpu.RELAUNCH: _relaunch,
    gpu.LAUNCH_PREFILL: _launch,
    gpu.LAUNCH_DECODE: _launch,
    gpu.GRAPH_DONE: _graph_done,
    gpu.STORE_TOKEN: _store_token,
    gpu.PUBLISH: _storing("publishes a token of"),
    gpu.PUBLISH_LAST: _storing("publishes the last token of"),
}
