"""Lock-step: a scheduler that goes one iteration at a time, and what it decided, in the same words for every backend.

Arrivals and cancels are tied to the scheduler's step numbers in place of a clock, so that nothing depends on speed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from blink.common.events import Event
from blink.common.policy import Action, Blocked, GraphShape, GraphTable, Limits

STEP_NS = 1_000
"""By how much time advances an iteration; only a time limit feels it."""
NO_EOS = 1 << 30
"""The `eos_at` of a text that the model never ends by itself."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What bounds a scheduler in lock-step. `time_limit_ns` from the claim; 0: none."""

    limits: Limits
    prefill_table: GraphTable
    decode_table: GraphTable
    kv_block_count: int
    prompt_capacity_tokens: int
    output_capacity_tokens: int
    time_limit_ns: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt that is in the ring before the first boundary at or after step `at_step`."""

    at_step: int
    request_id: int
    prompt_tokens: int
    output_tokens_max: int
    eos_at: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancel word of a request that arrived before, in the ring before the first boundary at or after `at_step`."""

    at_step: int
    request_id: int


Operation = Arrival | Cancel


@dataclass(frozen=True, slots=True)
class Claimed:
    """A request that a step claimed, with its KV blocks in the order of its tokens."""

    request_id: int
    slot: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepDecision:
    """One iteration of the scheduler.

    `step` is the number of graphs launched before it. `members` are the slots of the launched graph in the order of its
    rows. `events` are the scheduler's trace events of the iteration in order, as (event, slot, request_id, token_count,
    status); -1 where one does not apply.
    """

    step: int
    action: Action
    blocked: Blocked
    claimed: tuple[Claimed, ...]
    graph: GraphShape | None
    members: tuple[int, ...]
    events: tuple[tuple[Event, int, int, int, int], ...]


class Stepper(Protocol):
    """A scheduler with its ring and its frontend that goes one iteration at a time. `close` gives its memory back."""

    @property
    def step_number(self) -> int:
        """Graphs launched so far."""

    @property
    def in_ring_count(self) -> int:
        """Requests that hold a slot."""

    def apply(self, operations: Sequence[Operation]) -> None:
        """Write these into the ring now: the arrivals in one burst, in order, then the cancels, in order."""

    def step(self) -> StepDecision:
        """One boundary, one decision and what follows from it; then the frontend recycles all that has ended."""

    def close(self) -> None: ...


def iterate(stepper: Stepper, operations: Sequence[Operation]) -> Iterator[StepDecision]:
    """Every iteration until all is over.

    Operations are due at the first boundary with as many graphs launched as their `at_step`. Those of later steps come
    forward when nothing is left to do.
    """
    left = sorted(operations, key=lambda operation: operation.at_step)  # stable: the given order within a step
    until = 0
    while left or stepper.in_ring_count:
        until = max(until, stepper.step_number)
        due = [operation for operation in left if operation.at_step <= until]
        left = left[len(due) :]
        stepper.apply(due)
        decision = stepper.step()
        yield decision
        if decision.action is Action.IDLE and not stepper.in_ring_count and left:
            until = left[0].at_step
