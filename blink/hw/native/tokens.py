"""Tokens that both sides can compute: prompts by request, and what the stub engine samples from them.

The same functions as in kernels/include/blink/stub_engine.h; a test holds them together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blink.common.layout import U64

Tokens = NDArray[np.uint32]

EOS_TOKEN = 2
TOKEN_BASE = 16
"""Ids below are special tokens."""
_TOKEN_SHIFT = np.uint64(44)
_PROMPT_STEP = 0x9E37_79B9_7F4A_7C15  # the golden ratio's bits: neighbours in a prompt and prompts differ
_WORD = (1 << 64) - 1


def mix(x: U64) -> U64:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014), element by element."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58_476D_1CE4_E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D0_49BB_1331_11EB)
    return x ^ x >> np.uint64(31)


def prompt_of(request_id: int, count: int) -> Tokens:
    """The prompt of a request, as (count,) token ids."""
    start = np.uint64(request_id * _PROMPT_STEP & _WORD)
    return (mix(start + np.arange(1, count + 1, dtype=np.uint64)) >> _TOKEN_SHIFT).astype(np.uint32)


def seed_of(request_id: int, prompt: Tokens) -> int:
    """What the sampled tokens of a request depend on: its id, and every token of its prompt at its position."""
    positions = np.arange(1, prompt.size + 1, dtype=np.uint64) << np.uint64(32)
    total = int(mix(prompt.astype(np.uint64) | positions).sum(dtype=np.uint64))
    return int(mix(np.array([total + request_id & _WORD], np.uint64))[0])


def sampled(seeds: U64, index: NDArray[np.int64], eos_at: NDArray[np.int64]) -> Tokens:
    """The tokens that the stub samples: of each seed the one at `index` (from 0), EOS as token number `eos_at`."""
    tokens = (mix(seeds + index.astype(np.uint64)) >> _TOKEN_SHIFT).astype(np.uint32) + np.uint32(TOKEN_BASE)
    tokens[index + 1 == eos_at] = EOS_TOKEN
    return tokens
