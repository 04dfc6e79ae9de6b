"""The rows of a step, written into an engine's buffers by a host: what the prologue of a device scheduler does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blink.common.events import GraphKind
from blink.common.policy import GraphShape
from blink.hw.engines.torch_engine import TorchEngine


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence of a step. `tokens`: its whole prompt, or in a decode the token that was sampled last.

    `context_tokens` are in the KV cache before the step, in `blocks`; `sample_index` counts the tokens that the
    request already has; while they are fewer than `min_tokens`, the end token is not drawn.
    """

    tokens: Sequence[int]
    context_tokens: int
    blocks: Sequence[int]
    sample_index: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    min_tokens: int = 0


def fill(engine: TorchEngine, shape: GraphShape, rows: Sequence[Row]) -> None:
    """Write the rows, at most `shape.batch`, and padding behind them."""
    tensors, torch, padding = engine.tensors, engine.torch, shape.batch - len(rows)
    width, scratch = tensors.block_tables.shape[1], engine.scratch_block

    def put(name: str, values: list[Any], *, empty: Any = 0) -> None:
        to = getattr(tensors, name)[: shape.batch]
        to.copy_(torch.tensor(values + [empty] * padding, dtype=to.dtype))

    length = shape.sequence if shape.kind is GraphKind.PREFILL else 1
    tokens = [token for row in rows for token in [*row.tokens, *[0] * (length - len(row.tokens))]]
    tokens += [0] * (padding * length)
    tensors.tokens[: len(tokens)].copy_(torch.tensor(tokens, dtype=torch.int32))
    put("context_tokens", [row.context_tokens for row in rows])
    put("query_tokens", [len(row.tokens) for row in rows])
    tables = [[*row.blocks, *[scratch] * (width - len(row.blocks))] for row in rows]
    put("block_tables", tables, empty=[scratch] * width)
    put("temperature", [row.temperature for row in rows])
    put("top_p", [row.top_p for row in rows], empty=1.0)
    put("top_k", [row.top_k for row in rows])
    put("seed", [_signed(row.seed) for row in rows])
    put("sample_index", [row.sample_index for row in rows])
    put("min_tokens", [row.min_tokens for row in rows])


def _signed(word: int) -> int:
    """The int32 with the bits of a uint32."""
    return word - 2**32 if word >= 2**31 else word
