"""The clients of a native drill: what they send, when they give up, and what they were given."""

from __future__ import annotations

from collections.abc import Iterator

from blink.common.ledger import Ledger
from blink.common.request import Request
from blink.common.results import Outcome
from blink.hw.native.clients import RealClients
from blink.workload.drill import Case


class DrillClients:
    """Every request is answered once: complete, refused, failed or cancelled. Times are those of the plan.

    Probes, which must be served, are sent only while somebody serves.
    """

    def __init__(self, case: Case, rows: list[Request]) -> None:
        self.rows, self._ledger = rows, Ledger()
        self._probes = case.probes
        self._clients = RealClients(rows, case.load, case.patience_ns, None, 1.0)
        self._held: list[Request] = []  # probes that wait until somebody serves
        self.given_ns = 0  # when a client was last given a token or an answer

    @property
    def open_count(self) -> int:
        """Requests without an answer."""
        return self._clients.open_count

    @property
    def over(self) -> bool:
        """Whether every client has its answer."""
        return not self.open_count and not self._held

    def due(self, now_ns: int, *, served: bool) -> Iterator[Request]:
        """Requests that are sent now; `served` says whether probes may be."""
        for request in self._clients.due(now_ns):
            if request.request_id in self._probes and not served:
                self._held.append(request)
            else:
                yield request
        if served:
            held, self._held = self._held, []
            for request in held:
                request.sent_ns = now_ns
                yield request

    def hanging_up(self, now_ns: int) -> Iterator[Request]:
        """Requests whose clients lose patience now."""
        return (request for request in self._clients.hanging_up(now_ns) if request.outcome is Outcome.UNFINISHED)

    def deliver(self, request_id: int, start: int, end: int, now_ns: int) -> None:
        """Tokens reach a client, unless it has hung up."""
        self.given_ns = now_ns
        if self.rows[request_id].outcome is not Outcome.CANCELLED:
            self._ledger.deliver(request_id, start, end)

    def answer(self, request: Request, outcome: Outcome, now_ns: int) -> None:
        """A request is over for its client."""
        self.given_ns = now_ns
        request.outcome = outcome
        self._ledger.answer(request)
        self._clients.ended(request, now_ns)

    def ended(self, now_ns: int, request_id: int, outcome: int, status: int, output_tokens: int) -> None:
        """The frontend says that a request is over: an answer, unless its client has hung up."""
        request = self.rows[request_id]
        if request.outcome is not Outcome.CANCELLED:
            request.status, request.output_tokens = status, output_tokens
            self.answer(request, Outcome(outcome), now_ns)

    def open_requests(self) -> list[Request]:
        """Those that were sent and have no answer."""
        held = {request.request_id for request in self._held}
        return [
            row
            for row in self.rows
            if row.sent_ns >= 0 and row.outcome is Outcome.UNFINISHED and row.request_id not in held
        ]

    def fail_all(self, now_ns: int) -> int:
        """Nobody will answer what is open: it has failed. How many that are."""
        open_requests = self.open_requests()
        for request in open_requests:
            request.output_tokens = self._ledger.delivered(request.request_id)
            self.answer(request, Outcome.FAILED, now_ns)
        return len(open_requests)

    def close(self) -> list[str]:
        """The drill is over: what clients complain about."""
        self._ledger.close(self.rows)
        return self._ledger.complaints
