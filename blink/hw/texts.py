"""Real prompts and sampled tokens, where a model stands behind the ring in place of the stub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blink.common.request import Request
from blink.hw.ring import Tokens


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled: of the descriptor (blink.frontend.submission). The default is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Texts:
    """The prompts of requests, and who takes what was sampled.

    `prompt(request)` gives (prompt_tokens,) ids. `taken(request, index, tokens)` gets the tokens of a request as they
    are read, the first of them its token number `index`, from 0. A request's sampling seed is its id.
    """

    prompt: Callable[[Request], Tokens]
    taken: Callable[[Request, int, Tokens], None]
    sampling: Sampling = Sampling()
