"""What faults act on in the simulator: clocks that can stop, graphs that hang, READs that come late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import simpy
from simpy.events import EventPriority

from blink.common.faults import Fault, FaultKind
from blink.sim.clock import NORMAL, Clock, at
from blink.sim.ports import StepTimes
from blink.sim.token_path import ReadCosts

STUCK_NS = 1 << 60
"""Longer than any watchdog waits."""


class Mortal(Clock):
    """The clock of something that can die: once it is dead, nothing that was due on it happens any more."""

    def __init__(self, clock: Clock) -> None:  # no heap of its own: events stand in that of `clock`
        self._clock = clock
        self.alive = True

    @property
    def now(self) -> int:
        """The time of the clock beneath."""
        return self._clock.now

    def die(self) -> None:
        """Stop."""
        self.alive = False

    def schedule(self, event: simpy.Event, priority: EventPriority = NORMAL, delay: float = 0) -> None:
        """As any clock; what stands behind the event happens only if this one still lives when it is due."""
        callbacks = list(event.callbacks or ())

        def happen(what: simpy.Event) -> None:
            if self.alive:
                for callback in callbacks:
                    callback(what)

        event.callbacks = [happen]
        self._clock.schedule(event, priority, delay)


Script = Iterator[int]
"""A sequence of actions: yields the times at which it goes on."""


def play(clock: Clock, script: Script) -> None:
    """Let a script run on a clock, the first stretch of it now."""

    def go_on() -> None:
        time_ns = next(script, None)
        if time_ns is not None:
            at(clock, time_ns, go_on)

    go_on()


class FaultyTimes:
    """Durations of graphs, some of them slow or without an end."""

    def __init__(self, times: StepTimes, clock: Clock) -> None:
        self._times, self._clock = times, clock
        self._slow: list[Fault] = []
        self._stuck = False
        self.on_stuck: Callable[[], None] = lambda: None
        self.on_slow: Callable[[], None] = lambda: None

    def slow_down(self, fault: Fault) -> None:
        """From now on, for the fault's duration."""
        self._slow.append(fault)

    def stick(self, wanted: bool) -> None:
        """Whether the next graph that is launched never ends."""
        self._stuck = wanted

    def decode_ns(self, batch: int, kv_tokens: int) -> int:
        """Duration of a decode graph that is launched now."""
        return self._faulty(self._times.decode_ns(batch, kv_tokens))

    def prefill_ns(self, batch: int, sequence: int) -> int:
        """Duration of a prefill graph that is launched now."""
        return self._faulty(self._times.prefill_ns(batch, sequence))

    def _faulty(self, duration_ns: int) -> int:
        if self._stuck:
            self._stuck = False
            self.on_stuck()
            return STUCK_NS
        now, factor = self._clock.now, 1
        for fault in self._slow:
            if now < fault.at_ns + fault.duration_ns:
                factor = max(factor, fault.size)
        if factor > 1:
            self.on_slow()
        return factor * duration_ns


@dataclass(slots=True)
class Read:
    """One READ of the status array: when it is posted, when its two halves are captured, when it completes."""

    posted_ns: int
    captured_ns: tuple[int, int]
    done_ns: int
    words: np.ndarray[tuple[int], np.dtype[np.uint64]] | None = None


class ReadTrouble:
    """How READs of the status array fare: as they should, late, or in the wrong order."""

    def __init__(self, rng: np.random.Generator, read: ReadCosts) -> None:
        self._rng, self._read = rng, read
        self._faults: list[Fault] = []

    def begin(self, fault: Fault) -> None:
        """From now on, for the fault's duration."""
        self._faults.append(fault)

    def draw(self, now_ns: int) -> tuple[list[Read], FaultKind | None]:
        """The READs of one cycle, posted from now on, and the trouble that they have."""
        active = [fault for fault in self._faults if now_ns < fault.at_ns + fault.duration_ns]
        if not active:
            return [self._plain(now_ns)], None
        fault = active[int(self._rng.integers(len(active)))]
        most_ns = 1000 * fault.size
        if fault.kind is FaultKind.STALE_READS:
            return [self._late(now_ns, most_ns)], fault.kind
        first = self._plain(now_ns)
        second = self._plain(now_ns + int(self._rng.integers(1, most_ns)))
        first.done_ns = second.done_ns + int(self._rng.integers(1, most_ns))
        return [first, second], fault.kind

    def _plain(self, posted_ns: int) -> Read:
        captured_ns = posted_ns + self._read.request_ns
        return Read(posted_ns, (captured_ns, captured_ns), captured_ns + self._read.status_done_ns)

    def _late(self, posted_ns: int, most_ns: int) -> Read:
        """The delay lies before, between and after the captures of the two halves, by chance."""
        before, between, after = self._rng.integers(0, most_ns, 3).tolist()
        first = posted_ns + self._read.request_ns + before
        return Read(posted_ns, (first, first + between), first + between + self._read.status_done_ns + after)
