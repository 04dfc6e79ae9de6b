"""One replica of a fleet: an engine, what it has to do, and since when it is paid for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from blink.common.request import Request
from blink.common.results import Outcome, RunResult
from blink.sim.clock import Clock, at
from blink.sim.fleet.engine import Built, Recording

Ended = Callable[["Replica", Request, int], None]


class State(Enum):
    """What a replica can do."""

    WARMING = "warming"  # paid for, not there yet
    READY = "ready"
    DRAINING = "draining"  # takes nothing new
    LOST = "lost"  # what it does from now on reaches nobody
    GONE = "gone"


class Replica:
    """`index` is its place in the fleet: after a failure another one takes it over."""

    def __init__(self, env: Clock, index: int, make: Callable[[Replica], Built], ended: Ended) -> None:
        self._env, self.index, self._ended = env, index, ended
        self._built = make(self)
        self.state = State.WARMING
        self.known = True  # whether the router knows of its state
        self.since_ns, self.until_ns = env.now, -1  # paid for
        self.requests: dict[int, Request] = {}  # under way
        self.served = 0
        self.under_way_max = 0
        self._last: RunResult | None = None  # what it had done when it was lost

    def start(self) -> None:
        """It is warm and takes requests."""
        self.state = State.READY
        self._built.engine.start()

    @property
    def recording(self) -> Recording | None:
        """The trace that it leaves."""
        return self._built.recording

    @property
    def takes(self) -> bool:
        """Whether the router sends requests to it: it does so until it knows better."""
        return self.state is State.READY or (self.state is State.LOST and not self.known)

    @property
    def under_way(self) -> int:
        """Requests that were handed to it and are not over."""
        return len(self.requests)

    @property
    def waiting(self) -> int:
        """Of these, those that have no place in its batch yet."""
        return max(0, len(self.requests) - self._built.engine.running_count)

    def receive(self, request: Request) -> None:
        """A request is handed to it now."""
        self.requests[request.request_id] = request
        self.under_way_max = max(self.under_way_max, len(self.requests))
        if self.state is State.READY:
            self._built.engine.receive(request)

    def cancel(self, request: Request) -> None:
        """The client of a request that it has hangs up now."""
        if self.state is State.LOST:
            request.cancelled_ns, request.outcome = self._env.now, Outcome.CANCELLED
        else:
            self._built.engine.cancel(request)
        self.requests.pop(request.request_id, None)
        self._drained()

    def ended(self, request: Request, at_ns: int) -> None:
        """The engine says that a request will be over at `at_ns`, now or later."""
        if at_ns > self._env.now:
            at(self._env, at_ns, lambda: self._release(request, at_ns))
        else:
            self._release(request, at_ns)

    def _release(self, request: Request, at_ns: int) -> None:
        if self.state is State.LOST or self.requests.get(request.request_id) is not request:
            return
        del self.requests[request.request_id]
        self.served += request.outcome is Outcome.COMPLETED
        self._ended(self, request, at_ns)
        self._drained()

    def drain(self) -> None:
        """Take nothing new, and go when what it has is over."""
        self.state = State.DRAINING
        self._drained()

    def _drained(self) -> None:
        if self.state is State.DRAINING and not self.requests:
            self.leave()

    def lose(self) -> None:
        """It fails now, and the router does not know yet. What its engine still computes reaches nobody."""
        found = self._built.result(True)
        self._last = replace(found, scheduler=replace(found.scheduler), counters=dict(found.counters))
        self.state, self.known = State.LOST, False
        if self.recording:
            self.recording.cut()

    def give_up(self) -> list[Request]:
        """The router knows: the requests that it had, or that were sent to it since."""
        self.known = True
        lost, self.requests = list(self.requests.values()), {}
        return lost

    def leave(self) -> None:
        """It is no longer paid for."""
        self.until_ns = self._env.now
        if self.state is not State.LOST:
            self.state = State.GONE

    def paid_ns(self, start_ns: int, end_ns: int) -> int:
        """For how long it was paid for, between two times."""
        until = end_ns if self.until_ns < 0 else min(self.until_ns, end_ns)
        return max(0, until - max(self.since_ns, start_ns))

    def observed(self) -> dict[str, tuple[int, int]]:
        """What it asked of the step model."""
        return self._built.engine.observed()

    def result(self, partial: bool) -> RunResult:
        """Columns and counters of what it was handed, until it was lost."""
        return self._last or self._built.result(partial)
