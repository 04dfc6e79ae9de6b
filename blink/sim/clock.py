"""SimPy with integer nanoseconds, and the few ways in which the model waits."""

from __future__ import annotations

from collections.abc import Callable

import simpy
from simpy.events import EventPriority


class Clock(simpy.Environment):
    """A SimPy environment whose time is an integer number of nanoseconds from 0."""

    @property
    def now(self) -> int:
        """Virtual time."""
        return self._now  # type: ignore[return-value]


NORMAL = EventPriority(1)
LAST = EventPriority(2)
"""After all other events of the same nanosecond: a status READ sees every store of its instant."""


def at(env: Clock, time_ns: int, action: Callable[[], None], priority: EventPriority = NORMAL) -> None:
    """Call `action` at a virtual time that is not in the past."""
    event = simpy.Event(env)
    event._ok = True
    event._value = None
    event.callbacks = [lambda _: action()]
    env.schedule(event, priority, time_ns - env.now)


class Alarm:
    """A wait of one process until a time that others may bring forward."""

    def __init__(self, env: Clock) -> None:
        self._env = env
        self._event: simpy.Event | None = None
        self._due_ns = -1

    def wait(self, time_ns: int | None) -> simpy.Event:
        """The event to yield: it fires at `time_ns`, or at whatever `ring` says if that is None."""
        self._event = simpy.Event(self._env)
        self._due_ns = -1
        if time_ns is not None:
            self.ring(time_ns)
        return self._event

    def ring(self, time_ns: int) -> None:
        """Fire at `time_ns` instead of what was set before."""
        if self._due_ns == time_ns:
            return
        self._due_ns = time_ns
        event = self._event
        assert event is not None
        at(self._env, time_ns, lambda: self._fire(event, time_ns))

    def _fire(self, event: simpy.Event, time_ns: int) -> None:
        if event is self._event and self._due_ns == time_ns and not event.triggered:
            event.succeed()
