"""The connection: WRITEs land in the order of their posting, READs are served whenever they like.

Nothing orders a READ against a WRITE here. On one connection a READ would wait for the WRITEs posted before it; a
frontend may use a second connection for READs, so the model allows more, and what holds here holds for both. A READ of
the status array captures each slot at a moment of its own.
"""

from __future__ import annotations

from typing import cast

from blink.common.layout import CANCEL_NONE, TOKEN_COUNT_MASK, TOKEN_COUNT_SHIFT
from blink.common.states import Actor
from blink.prove.action import Action, Move
from blink.prove.rules import Rules
from blink.prove.state import (
    NO_DESCRIPTOR,
    NO_WORD,
    NOBODY,
    Cell,
    Descriptor,
    Kind,
    Phase,
    State,
    TokenRead,
    Write,
    generation_of,
    put,
)

_COUNT_BITS = TOKEN_COUNT_MASK << TOKEN_COUNT_SHIFT


def land(rules: Rules, state: State, index: int) -> State:
    """A WRITE of the frontend's connection takes effect in memory."""
    fifo = state.wire.fifo
    write = fifo[index]
    wire = state.wire._replace(fifo=fifo[:index] + fifo[index + 1 :])
    return _landed(state._replace(wire=wire), write)


def land_late(rules: Rules, state: State, index: int) -> State:
    """A WRITE of a frontend that is gone takes effect in memory."""
    wire = state.wire
    return _landed(state._replace(wire=wire._replace(late=wire.late[1:])), wire.late[0])


def _landed(state: State, write: Write) -> State:
    if write.kind == Kind.EPOCH:
        return state._replace(epoch=cast(int, write.value))
    memory = state.memory
    return state._replace(memory=put(memory, write.slot, written(memory[write.slot], write)))


def written(cell: Cell, write: Write) -> Cell:
    """A slot in memory after a WRITE."""
    kind, value = write.kind, write.value
    if kind == Kind.PROMPT:
        return cell._replace(prompt=cast(int, value))
    if kind == Kind.DESCRIPTOR:
        # The descriptor is one WRITE of 64 bytes and the cancel word lies in them: it is cleared.
        return cell._replace(descriptor=cast(Descriptor, value), cancel=CANCEL_NONE)
    if kind == Kind.CANCEL:
        return cell._replace(cancel=cast(int, value))
    if kind == Kind.RECYCLE:
        # Whose prompt lay here is forgotten: what is not of the present generation is all alike to every property.
        # A cancel of the next generation may be posted before this recycling of the last one lands.
        asked = CANCEL_NONE if cell.asked == generation_of(cell.ctl) else cell.asked
        return Cell(cast(int, value), NOBODY, NO_DESCRIPTOR, cell.cancel, cell.output, 0, asked)
    return cell._replace(ctl=cast(int, value))


def capture(rules: Rules, state: State, place: int) -> State:
    """The status READ takes the word of one slot; the mutant with two words takes them one at a time."""
    wire, slots = state.wire, len(state.memory)
    word = state.memory[place % slots].ctl
    return state._replace(wire=wire._replace(read=put(wire.read, place, word)))


def captured(read: tuple[int, ...], slots: int) -> tuple[int, ...]:
    """The words that a completed status READ delivers."""
    if len(read) == slots:
        return read
    return tuple(
        state & ~_COUNT_BITS | count & _COUNT_BITS for state, count in zip(read[:slots], read[slots:], strict=True)
    )


def serve_tokens(rules: Rules, state: State, slot: int) -> State:
    """A READ of tokens is served and completes.

    The two are one event: between them the frontend could do nothing that it may not do before.
    """
    wire, views = state.wire, state.frontend.views
    read = cast(TokenRead, wire.tokens[slot])
    state = state._replace(wire=wire._replace(tokens=put(wire.tokens, slot, None)))
    if views[slot].phase != Phase.IN_USE or views[slot].request != read.request:
        return state
    views = put(views, slot, views[slot]._replace(read=read.end))
    return state._replace(frontend=state.frontend._replace(views=views))


LAND = Action("land", None, land, stores=True)
LAND_LATE = Action("land_late", None, land_late, stores=True)
CAPTURE = Action("capture", None, capture)
SERVE_TOKENS = Action("serve_tokens", Actor.FRONTEND, serve_tokens)


def enabled(rules: Rules, state: State, found: list[Move]) -> None:
    """Append what the wire can do now."""
    wire = state.wire
    if wire.fifo:
        if rules.relaxed_write_order:
            found.extend((LAND, index) for index in range(len(wire.fifo)))
        else:
            found.append((LAND, 0))
    if wire.late:
        found.append((LAND_LATE, 0))
    for place, word in enumerate(wire.read):
        if word == NO_WORD:
            found.append((CAPTURE, place))
    for slot, read in enumerate(wire.tokens):
        if read is not None:
            found.append((SERVE_TOKENS, slot))


def behind(state: State, slot: int) -> int:
    """The slot's control word as it will be when every WRITE of the present connection has landed."""
    word = state.memory[slot].ctl
    for write in state.wire.fifo:
        if write.slot == slot and (write.kind == Kind.SUBMIT or write.kind == Kind.RECYCLE):
            word = cast(int, write.value)
    return word
