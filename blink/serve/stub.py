"""What a stub engine says in place of a model: how long, and which tokens. The same for the same prompt and seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blink.common.config import Scenario
from blink.common.results import I64
from blink.frontend.tokenizer.base import Tokenizer
from blink.frontend.tokenizer.plain import plain_tokens
from blink.hw.native.tokens import mix, seed_of
from blink.serve.backend import Job
from blink.workload.build import build_load

NEVER = 1 << 30
_WORD = (1 << 64) - 1


class StubText:
    """Lengths come from the scenario's load, tokens from the plain ones of a tokenizer."""

    def __init__(self, scenario: Scenario, tokenizer: Tokenizer, seed: int) -> None:
        self._lengths: list[int] = build_load(scenario)[1].output_tokens.tolist()
        self._plain = np.array(plain_tokens(tokenizer), np.uint32)
        self._seed = seed

    def key(self, job: Job) -> int:
        """What a job's text depends on: its prompt and its seed, the server's if it has none."""
        seed = self._seed if job.sampling.seed is None else job.sampling.seed
        return seed_of(seed & _WORD, np.array(job.prompt, np.uint32))

    def eos_at(self, job: Job, key: int) -> int:
        """The number of the token with which the text ends by itself: EOS, which `min_tokens` others must precede."""
        if job.sampling.ignore_eos:
            return NEVER
        return max(job.sampling.min_tokens + 1, self._lengths[key % len(self._lengths)])

    def text(self, key: int, count: int) -> list[int]:
        """The first `count` tokens of a text."""
        index: I64 = np.arange(1, count + 1, dtype=np.int64)
        return self._at(np.uint64(key) + index.astype(np.uint64))

    def piece(self, key: int, start: int, errors: Sequence[int]) -> list[int]:
        """Tokens of a text from number `start` (from 0) on, as many as `errors`, each of which shifts its token.

        An engine whose token is not the expected one by that much shows as another text, not as the same.
        """
        index = np.arange(start + 1, start + len(errors) + 1, dtype=np.uint64)
        return self._at(np.uint64(key) + index, np.array(errors, np.uint64))

    def _at(self, x: np.ndarray[tuple[int], np.dtype[np.uint64]], shift: object = 0) -> list[int]:
        places = (mix(x) >> np.uint64(32)) + np.asarray(shift, np.uint64)
        tokens: list[int] = self._plain[places % np.uint64(self._plain.size)].tolist()
        return tokens
