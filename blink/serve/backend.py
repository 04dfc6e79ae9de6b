"""What the server asks of whatever generates tokens. No backend starts a thread or a task: it is given turns.

A turn does everything that is due and says when the next one is. Tokens and ends are told during turns (and only then)
through the job's `take`, so that one loop serves every stream that has news.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from blink.common.states import SlotState, SlotStatus
from blink.frontend.openai.bodies import Bounds, Sampling


class Finish(Enum):
    """Why a job is over. The values are finish reasons of the API, but for the last two: errors inside a stream."""

    STOP = "stop"
    LENGTH = "length"
    TIME_LIMIT = "time limit"
    ERROR = "error"


Take = Callable[[Sequence[int], Finish | None], None]


@dataclass(slots=True, eq=False)
class Job:
    """One choice of a request. Numbers ascend in the order of submission and are never used twice by a server.

    `arrived_ns` is on the server's monotonic clock. `take(tokens, finish)` may be called until it got a finish or the
    job was cancelled, and not afterwards.
    """

    number: int
    prompt: list[int]
    output_tokens_max: int
    sampling: Sampling
    arrived_ns: int
    take: Take
    # On the same clock, known before its first token is told, if the backend knows them at all:
    published_ns: int = -1  # its slot became pending
    claimed_ns: int = -1  # the scheduler claimed it
    stored_ns: int = -1  # its first token was in the ring


@dataclass(slots=True)
class Stats:
    """The state of a backend at one moment. Shares are from 0 to 1; -1 where a backend has no such thing."""

    running: int = 0
    waiting: int = 0
    slots: dict[str, int] = field(default_factory=dict)  # by state
    batch_max: int = 0
    kv_share: float = 0.0
    kv_blocks: int = 0
    block_tokens: int = 0
    window_used: int = -1
    window: int = -1
    relaunches: int = 0
    poll_count: int = 0
    poll_ns: int = 0  # the mean duration of a cycle with news, or what the last one took
    lag_ns: int = 0  # how far behind its clock it is now
    lag_max_ns: int = 0
    recovering: int = 0
    wrong_tokens: int = 0
    note: str = ""  # what is wrong, for people


class Backend(Protocol):
    """Generates tokens. Nothing here blocks for longer than a turn's work."""

    name: str
    bounds: Bounds

    def submit(self, job: Job) -> None:
        """Take a job in. It is told of its tokens during later turns."""
        ...

    def cancel(self, job: Job) -> None:
        """Its client is gone: stop generating and free the slot. Nothing if it is over."""
        ...

    def turn(self) -> int | None:
        """Do what is due. When to call again, on the monotonic clock in ns; None: after the next submission."""
        ...

    def stats(self) -> Stats:
        """How things are."""
        ...

    def slot_states(self) -> bytes:
        """The SlotState of each slot of the ring, a byte each."""
        ...

    def close(self, *, complete: bool) -> None:
        """End it. `complete`: nothing was left open."""
        ...


def finish_of(status: int) -> Finish:
    """What a slot's final status means for its client."""
    if status == SlotStatus.STOP:
        return Finish.STOP
    if status == SlotStatus.LENGTH:
        return Finish.LENGTH
    return Finish.TIME_LIMIT if status == SlotStatus.TIME_LIMIT else Finish.ERROR


def count_states(states: bytes | bytearray) -> dict[str, int]:
    """Slots by the name of their state."""
    return {state.label: states.count(state.value) for state in SlotState}
