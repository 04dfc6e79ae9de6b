"""The clients of a real-time run: when each request is due, and when its client hangs up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush

from blink.common.request import Request
from blink.common.results import I64
from blink.workload.requests import Requests


class RealClients:
    """Due times on the run's clock, every time of the load multiplied by `time_scale` (0: at once).

    Open loop: at the arrival time. A request with a parent: its think time after the parent is over, but not before its
    own arrival. Closed loop: `concurrency` requests in flight, each replaced when it is over.
    """

    def __init__(
        self, rows: list[Request], load: Requests, patience_ns: I64, concurrency: int | None, time_scale: float
    ) -> None:
        self._rows, self._scale = rows, time_scale
        self._think_ns, self._parent = load.think_ns.tolist(), load.parent.tolist()
        self._arrival_ns = load.arrival_ns.tolist()
        self._patience_ns = patience_ns.tolist()
        self._children: dict[int, list[int]] = defaultdict(list)
        self._due: list[tuple[int, int]] = []
        self._hang_up: list[tuple[int, int]] = []
        self._next = len(rows)
        self._closed = concurrency is not None
        self.open_count = len(rows)
        if concurrency is not None:
            self._next = min(concurrency, len(rows))
            for index in range(self._next):
                heappush(self._due, (0, index))
            return
        for index, parent in enumerate(self._parent):
            if parent >= 0:
                self._children[parent].append(index)
            else:
                heappush(self._due, (self._scaled(self._arrival_ns[index]), index))

    def _scaled(self, time_ns: int) -> int:
        return round(time_ns * self._scale)

    def due(self, now_ns: int) -> Iterator[Request]:
        """Requests that are sent now; `sent_ns` is when they were due, so that a late frontend shows in their TTFT."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, index = heappop(self._due)
            request = self._rows[index]
            request.sent_ns = due_ns if self._scale else now_ns
            if self._patience_ns[index] >= 0:
                heappush(self._hang_up, (request.sent_ns + self._scaled(self._patience_ns[index]), index))
            yield request

    def hanging_up(self, now_ns: int) -> Iterator[Request]:
        """Requests whose client loses patience now (it may be over already)."""
        while self._hang_up and self._hang_up[0][0] <= now_ns:
            yield self._rows[heappop(self._hang_up)[1]]

    def next_ns(self) -> int | None:
        """When the next request is due or the next client hangs up, None if neither will happen."""
        times = [heap[0][0] for heap in (self._due, self._hang_up) if heap]
        return min(times) if times else None

    def ended(self, request: Request, now_ns: int) -> None:
        """A request is over for its client: complete, refused or given up."""
        self.open_count -= 1
        if self._closed:
            if self._next < len(self._rows):
                heappush(self._due, (now_ns, self._next))
                self._next += 1
            return
        for child in self._children.get(request.request_id, ()):
            after_ns = now_ns + self._scaled(self._think_ns[child])
            heappush(self._due, (max(after_ns, self._scaled(self._arrival_ns[child])), child))
