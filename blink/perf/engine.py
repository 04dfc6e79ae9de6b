"""EngineProfile: what a captured step consists of, which depends on who captured it and not on the GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blink.common.profile import Constant, constant, load_profile, typed_values


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """Kernels of a captured step and the activations that its unfused kernels move.

    `*_accesses` count reads and writes, outside the matrix products, of one element per token and layer: of the hidden
    state, of all query heads, of all key heads, of the FFN's inner state. `elementwise_efficiency` is the share of the
    bandwidth of a plain copy at which those accesses run. Products are computed in tiles of whole powers of two of
    tokens, up to `product_tile_tokens`; 1: of single tokens. Products grouped by expert compute at
    `grouped_flops_share` of the rate of one large product, since each expert has few rows, and each takes
    `grouped_floor_ns` at least.
    """

    name: str
    constants: Mapping[str, Constant] = field(repr=False)
    kernels_per_layer: int = constant("kernels", 1)
    kernels_per_layer_moe: int = constant("kernels", 1)
    kernels_outside: int = constant("kernels", 0)
    elementwise_kernels_per_layer: int = constant("kernels", 0)
    hidden_accesses: float = constant("accesses", 0)
    query_accesses: float = constant("accesses", 0)
    kv_accesses: float = constant("accesses", 0)
    ffn_accesses: float = constant("accesses", 0)
    elementwise_efficiency: float = constant("ratio", 0.01, 1, default=1.0)
    logit_accesses: float = constant("accesses", 1)
    product_tile_tokens: int = constant("tokens", 1, default=1)
    grouped_flops_share: float = constant("ratio", 0.01, 1, default=1.0)
    grouped_floor_ns: int = constant("ns", 0, default=0)
    graph_bytes: int = constant("bytes", 0)
    workspace_bytes: int = constant("bytes", 0)

    @classmethod
    def load(cls, name_or_path: str | Path) -> EngineProfile:
        """A shipped engine by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("engine", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))

    def tiled(self, tokens: float) -> float:
        """Tokens that a product over `tokens` computes: a power of two up to the largest tile, then whole tiles."""
        most = self.product_tile_tokens
        if most == 1 or tokens <= 1:
            return tokens
        tile = most if tokens >= most else 1 << (math.ceil(tokens) - 1).bit_length()
        return math.ceil(tokens / tile) * tile
