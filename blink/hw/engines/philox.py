"""Philox4x32-10, the counter-based generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011).

The NumPy reference of what the engines draw on the device. A draw is a pure function of (seed, sample_index, token), so
a request gets the same random numbers whatever shares its batch and whatever engine runs it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
LOW = 0xFFFFFFFF

Words = NDArray[np.uint64]


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """Four words of 32 bits a counter; counters and results are arrays of uint64 that hold 32-bit values."""
    (c0, c1, c2, c3), (k0, k1), low = counter, key, np.uint64(LOW)
    for _ in range(ROUNDS):
        first, second = np.uint64(MULTIPLIERS[0]) * c0, np.uint64(MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (
            (second >> np.uint64(32)) ^ c1 ^ np.uint64(k0),
            second & low,
            (first >> np.uint64(32)) ^ c3 ^ np.uint64(k1),
            first & low,
        )
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return c0, c1, c2, c3


def token_words(seed: int, sample_index: int, vocabulary_count: int) -> Words:
    """The word that each token draws for one sample: key (seed, sample_index), counter (token, 0, 0, 0)."""
    token = np.arange(vocabulary_count, dtype=np.uint64)
    zero = np.zeros_like(token)
    return philox4x32((token, zero, zero, zero), (seed, sample_index))[0]


def exponentials(words: Words) -> NDArray[np.float64]:
    """Exponential variates of rate 1: -log(1 - u) with u = (word + 0.5) / 2^32."""
    return -np.log1p(-(words.astype(np.float64) + 0.5) / 2**32)
