"""What the simulated scheduler asks of others: durations, somebody who listens, somebody who compares."""

from __future__ import annotations

from typing import Protocol

from blink.common.policy import Decision, GraphShape
from blink.common.states import SlotStatus
from blink.sim.batch import Batch, Live


class StepTimes(Protocol):
    """How long a captured graph runs on its own, in nanoseconds (blink.perf.step.StepModel)."""

    def decode_ns(self, batch: int, kv_tokens: int) -> int: ...

    def prefill_ns(self, batch: int, sequence: int) -> int: ...


class Listener(Protocol):
    """Who learns of stores in the ring: the token path."""

    def stored_steps(self, batch: Batch, stored_ns: list[int], ended: dict[int, SlotStatus]) -> None: ...

    def stored_other(self, time_ns: int) -> None: ...

    def needs_single_steps(self) -> bool: ...


class Observer(Protocol):
    """Who compares decisions with those of another backend. A segment is told by its first step: use `stepwise`."""

    def decided(self, decision: Decision) -> None: ...

    def claimed(self, live: Live) -> None: ...

    def launched(self, shape: GraphShape, lives: list[Live]) -> None: ...
