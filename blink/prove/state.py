"""One state of the model: GPU memory, the wire, the frontend, the gpu, and how much may still happen.

Plain tuples of small integers throughout, because a search keeps and hashes hundreds of thousands of them. A control
word is the real 64-bit word of `blink.common.layout`.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import NamedTuple, TypeVar

from blink.common.layout import (
    CANCEL_NONE,
    EPOCH_MASK,
    EPOCH_SHIFT,
    GENERATION_MASK,
    GENERATION_SHIFT,
    STATE_MASK,
    STATUS_MASK,
    STATUS_SHIFT,
    TOKEN_COUNT_MASK,
    TOKEN_COUNT_SHIFT,
    Ctl,
)
from blink.common.states import SlotState, SlotStatus
from blink.prove.configurations import Configuration

NOBODY = -1  # where a request is expected: none
NO_WORD = -1  # where a control word is expected: none

EMPTY, PENDING = int(SlotState.EMPTY), int(SlotState.PREFILL_PENDING)
PREFILLING, DECODING = int(SlotState.PREFILL_PROCESSING), int(SlotState.DECODE_PROCESSING)
PAUSED, COMPLETED = int(SlotState.DECODE_PAUSED), int(SlotState.DECODE_COMPLETED)
IN_BATCH = (PREFILLING, DECODING, PAUSED)

T = TypeVar("T")


class Kind(IntEnum):
    """What a WRITE of the frontend carries."""

    PROMPT = 0  # value: request
    DESCRIPTOR = 1  # value: Descriptor; covers the cancel word too
    SUBMIT = 2  # value: control word
    RECYCLE = 3  # value: control word
    CANCEL = 4  # value: generation
    EPOCH = 5  # value: epoch
    ABORT = 6  # value: control word; only a mutant posts it


class Stage(IntEnum):
    """Where the frontend is in its own life."""

    SERVING = 0
    CRASHED = 1
    RECOVERING = 2  # restarted; the ring is not read yet


class Phase(IntEnum):
    """What the frontend believes of a slot."""

    FREE = 0
    IN_USE = 1
    RECOVERING = 2  # found in use after a restart; nobody waits for its tokens


class Running(IntEnum):
    """The child graph of the scheduler."""

    NONE = 0
    PREFILL = 1
    DECODE = 2


class Look(IntEnum):
    """What the last look at the slot's cancel word and epoch showed, and what the scheduler makes of it."""

    CLEAR = 0
    DOOMED = 1  # seen; it aborts the slot before the next launch
    IGNORED = 2  # it was there to be seen and is passed over: only mutants do so


class Owed(IntEnum):
    """How far a token of the graph that ran is."""

    NOTHING = 0
    TOKEN = 1  # the slot is a member of the graph that runs or ran
    HALF = 2  # one of the two stores (data, control) is made


class Descriptor(NamedTuple):
    """What a claim checks, and the request that it stands for (a ghost)."""

    request: int
    generation: int
    epoch: int


class Write(NamedTuple):
    """A posted WRITE: an element of the FIFO."""

    kind: int
    slot: int
    value: int | Descriptor


class TokenRead(NamedTuple):
    """A posted READ of tokens `begin`..`end`-1 on behalf of a request."""

    request: int
    begin: int
    end: int


class Cell(NamedTuple):
    """One slot in GPU memory. `prompt` and `output` hold the request that wrote there, not the bytes.

    Ghosts, which no actor reads: `claims` of this generation, `asked` the generation for which a cancel was posted.
    """

    ctl: int
    prompt: int
    descriptor: Descriptor
    cancel: int
    output: tuple[int, ...]
    claims: int
    asked: int


class Wire(NamedTuple):
    """Everything under way. `read` is the status READ: the words captured so far, () if none is posted.

    `tokens` has one READ of tokens a slot at most. `late` is the FIFO of a connection whose frontend is gone.
    """

    fifo: tuple[Write, ...]
    late: tuple[Write, ...]
    read: tuple[int, ...]
    tokens: tuple[TokenRead | None, ...]


class View(NamedTuple):
    """The frontend's memory of a slot: `read` tokens handed over, `ended` the word that showed the completion."""

    phase: int
    generation: int
    request: int
    cancelled: bool
    read: int
    ended: int


class Frontend(NamedTuple):
    """The frontend's memory; all of it is lost in a crash."""

    stage: int
    epoch: int
    views: tuple[View, ...]


class Lane(NamedTuple):
    """The scheduler's memory of a slot: the pending word it has seen, whether the slot is in its batch."""

    seen: int
    known: bool
    look: int
    owed: int


class Gpu(NamedTuple):
    """The scheduler. `looked`: the boundary after the last graph has been looked at."""

    graph: int
    looked: bool
    lanes: tuple[Lane, ...]


class Budget(NamedTuple):
    """What has happened (`submitted`) and what may still happen: this is what makes the model finite."""

    submitted: int
    cancels: int
    crashes: int
    relaunches: int
    errors: int


class State(NamedTuple):
    """The whole system at one moment. `epoch` is the frontend's epoch in the ring's header."""

    memory: tuple[Cell, ...]
    epoch: int
    wire: Wire
    frontend: Frontend
    gpu: Gpu
    budget: Budget


IDLE_LANE = Lane(NO_WORD, False, Look.CLEAR, Owed.NOTHING)
NO_DESCRIPTOR = Descriptor(NOBODY, CANCEL_NONE, 0)


@cache
def word_of(state: int, status: int, epoch: int, generation: int, count: int) -> int:
    """A control word."""
    return Ctl(state, status, epoch, generation, count).pack()


@cache
def moved(word: int, target: int, status: int = SlotStatus.NONE, more: int = 0) -> int:
    """The control word after a move to `target` with `more` tokens."""
    ctl = Ctl.unpack(word)
    return word_of(target, status, ctl.epoch, ctl.generation, ctl.token_count + more)


def state_of(word: int) -> int:
    """The state in a control word."""
    return word & STATE_MASK


def status_of(word: int) -> int:
    """The status in a control word."""
    return word >> STATUS_SHIFT & STATUS_MASK


def epoch_of(word: int) -> int:
    """The epoch in a control word."""
    return word >> EPOCH_SHIFT & EPOCH_MASK


def generation_of(word: int) -> int:
    """The generation in a control word."""
    return word >> GENERATION_SHIFT & GENERATION_MASK


def count_of(word: int) -> int:
    """The token count in a control word."""
    return word >> TOKEN_COUNT_SHIFT & TOKEN_COUNT_MASK


def put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """The tuple with one element replaced."""
    return (*items[:index], item, *items[index + 1 :])


def free_view(generation: int) -> View:
    """What the frontend remembers of a slot on its free list."""
    return View(Phase.FREE, generation, NOBODY, False, 0, NO_WORD)


def initial(configuration: Configuration) -> State:
    """An empty ring, a frontend that has every slot on its free list, a scheduler that runs."""
    c = configuration
    word = word_of(EMPTY, SlotStatus.NONE, 0, c.first_generation, 0)
    cell = Cell(word, NOBODY, NO_DESCRIPTOR, CANCEL_NONE, (NOBODY,) * c.tokens, 0, CANCEL_NONE)
    return State(
        memory=(cell,) * c.slots,
        epoch=0,
        wire=Wire((), (), (), (None,) * c.slots),
        frontend=Frontend(Stage.SERVING, 0, (free_view(c.first_generation),) * c.slots),
        gpu=Gpu(Running.NONE, False, (IDLE_LANE,) * c.slots),
        budget=Budget(0, c.cancels, c.crashes, c.relaunches, c.errors),
    )


def is_idle(state: State) -> bool:
    """Whether every slot is back: the goal of L1."""
    wire, frontend = state.wire, state.frontend
    return (
        not wire.fifo
        and not wire.late
        and not wire.read
        and frontend.stage == Stage.SERVING
        and all(view.phase == Phase.FREE for view in frontend.views)
        and all(state_of(cell.ctl) == EMPTY for cell in state.memory)
        and state.gpu.graph == Running.NONE
        and all(read is None for read in wire.tokens)
    )
