"""Failures that clients must live with, on purpose and by seed: for tests of clients."""

from __future__ import annotations

from collections.abc import Sequence

from blink.common.errors import InputError
from blink.frontend.openai.errors import ApiError, internal, too_many, unavailable
from blink.workload.streams import Stream, generator

KINDS = ("429", "500", "503", "stall", "abort", "disconnect")
"""Answers with that status; no answer until the time limit; an error inside the stream; a connection cut inside it."""
_TOKENS_BEFORE_MAX = 16


class Failures:
    """Which requests fail, and how. The n-th request of a server fails alike in every run with the same seed."""

    def __init__(self, rate: float, kinds: Sequence[str], seed: int) -> None:
        """Raises InputError for a rate that is none and a kind that is not known."""
        if not 0 <= rate <= 1:
            raise InputError(f"--failure-rate: {rate} is not allowed; allowed: 0 to 1")
        for kind in kinds:
            if kind not in KINDS:
                raise InputError(f"--failure-kinds: {kind!r} is not allowed; allowed: {', '.join(KINDS)}")
        self._rate, self._kinds, self._rng = rate, tuple(kinds), generator(seed, Stream.SERVER_FAILURES)

    def draw(self) -> tuple[str | None, int]:
        """How the next request fails, None if it does not, and after how many tokens, where that matters."""
        if not self._rate:
            return None, 0
        chance, kind, tokens = self._rng.random(3)
        if chance >= self._rate:
            return None, 0
        return self._kinds[int(kind * len(self._kinds))], 1 + int(tokens * _TOKENS_BEFORE_MAX)


def refusal(kind: str) -> ApiError | None:
    """The error that a request gets in place of an answer, None if it fails later."""
    if kind == "429":
        return too_many(0)
    if kind == "500":
        return internal("injected failure")
    return unavailable("injected failure") if kind == "503" else None
