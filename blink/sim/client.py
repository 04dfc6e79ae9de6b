"""The clients: they send requests at their times, wait for the one before, or keep a number of them in flight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator
from typing import Protocol

import simpy

from blink.common.request import Request
from blink.common.results import I64, Outcome
from blink.sim.clock import Clock, at
from blink.workload.requests import Requests


class Ends(Protocol):
    """Who is told that a request is over."""

    def ended(self, request: Request, at_ns: int) -> None:
        """It is over for its client at `at_ns`, now or later."""


class Clients:
    """Sends each request when it is due. `send` hands it to the frontend.

    Open loop: at its arrival time. A request with a parent: its think time after the parent is complete, but not
    before its own arrival time. Closed loop: `concurrency` requests in flight, each replaced when its client has its
    last token.
    """

    def __init__(
        self,
        env: Clock,
        rows: list[Request],
        load: Requests,
        cancel_after_ns: I64,
        concurrency: int | None,
        send: Callable[[Request], None],
        cancel: Callable[[Request], None],
    ) -> None:
        self._env, self._rows, self._send, self._cancel = env, rows, send, cancel
        self._arrival_ns = load.arrival_ns.tolist()
        self._think_ns = load.think_ns.tolist()
        self._patience_ns = cancel_after_ns.tolist()
        self._parent = load.parent.tolist()
        self._concurrency = concurrency
        self._children: dict[int, list[int]] = defaultdict(list)
        for index, parent in enumerate(self._parent):
            if parent >= 0:
                self._children[parent].append(index)
        self._next = 0  # closed loop
        self.open = len(rows)

    def run(self) -> Generator[simpy.Event, object, None]:
        """The sending process."""
        if self._concurrency is not None:
            self._next = min(self._concurrency, len(self._rows))
            for index in range(self._next):
                self._start(index)
            return
        for index, parent in enumerate(self._parent):
            if parent >= 0:
                continue
            wait = self._arrival_ns[index] - self._env.now
            if wait > 0:
                yield self._env.timeout(wait)
            self._start(index)

    def _start(self, index: int) -> None:
        request = self._rows[index]
        request.sent_ns = self._env.now
        patience = self._patience_ns[index]
        if patience >= 0:
            at(self._env, self._env.now + patience, lambda: self._hang_up(request))
        self._send(request)

    def _hang_up(self, request: Request) -> None:
        if request.outcome is Outcome.UNFINISHED:
            self._cancel(request)
            self.ended(request, self._env.now)

    def ended(self, request: Request, at_ns: int) -> None:
        """A request is over for its client at `at_ns` (now or later): complete, refused or given up."""
        self.open -= 1
        if self._concurrency is not None:
            if self._next < len(self._rows):
                index = self._next
                self._next += 1
                at(self._env, at_ns, lambda: self._start(index))
            return
        for child in self._children.get(request.request_id, ()):
            due = max(at_ns + self._think_ns[child], self._arrival_ns[child])
            at(self._env, due, lambda child=child: self._start(child))  # type: ignore[misc]
