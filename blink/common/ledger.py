"""What clients were given, token by token: the frontend's promise (I7) as a client can check it, without a trace."""

from __future__ import annotations

from blink.common.request import Request
from blink.common.results import Outcome

COMPLAINTS_MAX = 10


class Ledger:
    """Counts the tokens of each request as its client gets them, and keeps what a client could complain about."""

    def __init__(self) -> None:
        self._count: dict[int, int] = {}
        self._over: dict[int, str] = {}
        self.complaints: list[str] = []

    def delivered(self, request_id: int) -> int:
        """Tokens that the request's client has."""
        return self._count.get(request_id, 0)

    def deliver(self, request_id: int, token_from: int, token_count: int) -> None:
        """Tokens `token_from` .. `token_count` - 1 reach the client: they must follow what it has."""
        has = self.delivered(request_id)
        if request_id in self._over:
            self._complain(f"request {request_id} gets tokens after it {self._over[request_id]}")
        if token_from < has:
            self._complain(f"request {request_id} gets tokens {token_from} to {has - 1} a second time")
        elif token_from > has:
            self._complain(f"request {request_id} does not get tokens {has} to {token_from - 1}")
        self._count[request_id] = max(has, token_count)

    def answer(self, request: Request) -> None:
        """The client's request is over, with the outcome that stands in it: once, and with all that it was promised."""
        request_id = request.request_id
        if request_id in self._over:
            self._complain(f"request {request_id} is answered twice: it {self._over[request_id]}")
        self._over[request_id] = f"was {request.outcome.label}"
        if request.outcome is Outcome.COMPLETED and request.output_tokens != self.delivered(request_id):
            self._complain(
                f"request {request_id} is complete with {request.output_tokens} tokens, "
                f"its client has {self.delivered(request_id)}"
            )

    def close(self, rows: list[Request]) -> None:
        """The run is over: every request must have been answered."""
        for request in rows:
            if request.request_id not in self._over:
                self._complain(f"request {request.request_id} never got an answer")

    def _complain(self, text: str) -> None:
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(text)
