"""Prefixes: which prompts begin with the same tokens, as hashes of whole blocks from the beginning on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Prefixes:
    """`blocks[i]` are the hashes of request i's prompt, each of `block_tokens` tokens; equal ones mean equal tokens.

    As in the traces that carry them, a hash stands for its block and all before it, and the last one may be of a block
    that the prompt does not fill.
    """

    block_tokens: int
    blocks: tuple[tuple[int, ...], ...]

    def first(self, count: int) -> Prefixes:
        """Those of the first requests."""
        return Prefixes(self.block_tokens, self.blocks[:count])

    def affinity(self, index: int) -> int | None:
        """What a request has in common with those that begin alike: its first block; None if it has none."""
        blocks = self.blocks[index]
        return blocks[0] if blocks else None


def shared(rng: np.random.Generator, prompt_tokens: NDArray[np.int64], groups: int, tokens: int) -> Prefixes:
    """Each prompt begins with the prefix of a group that is drawn evenly, as far as it is that long.

    A prefix of so many tokens is one block.
    """
    drawn = rng.integers(groups, size=len(prompt_tokens))
    whole = prompt_tokens >= tokens
    blocks = tuple((group,) if fits else () for group, fits in zip(drawn.tolist(), whole.tolist(), strict=True))
    return Prefixes(tokens, blocks)
