"""An engine's fixed inputs and outputs and its KV cache, as PyTorch tensors that are allocated once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blink.hw.engines.contract import StepBuffers
from blink.hw.engines.lazy_torch import need_torch
from blink.hw.engines.spec import DecoderSpec

Tensor = Any


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The arrays of StepBuffers as tensors; its uint32 arrays are int32 here, with the same bits."""

    tokens: Tensor
    context_tokens: Tensor
    query_tokens: Tensor
    block_tables: Tensor
    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    seed: Tensor
    sample_index: Tensor
    min_tokens: Tensor
    sampled: Tensor

    @classmethod
    def allocate(
        cls, device: str, batch: int, tokens: int, blocks_per_sequence: int, scratch_block: int
    ) -> StepTensors:
        """Buffers for `batch` rows and `tokens` token ids, all rows padding."""
        torch = need_torch()

        def ints(*size: int) -> Tensor:
            return torch.zeros(*size, device=device, dtype=torch.int32)

        return cls(
            tokens=ints(tokens),
            context_tokens=ints(batch),
            query_tokens=ints(batch),
            block_tables=ints(batch, blocks_per_sequence).fill_(scratch_block),
            temperature=torch.zeros(batch, device=device),
            top_p=torch.ones(batch, device=device),
            top_k=ints(batch),
            seed=ints(batch),
            sample_index=ints(batch),
            min_tokens=ints(batch),
            sampled=ints(batch),
        )

    def addresses(self) -> StepBuffers:
        """Where the arrays are."""
        batch, blocks_per_sequence = self.block_tables.shape
        return StepBuffers(
            **{name: getattr(self, name).data_ptr() for name in self.__slots__},
            tokens_capacity=self.tokens.numel(),
            batch_max=batch,
            blocks_per_sequence_max=blocks_per_sequence,
        )


@dataclass(frozen=True, slots=True)
class PagedCache:
    """Keys and values of all layers: (layers, 2, block_count + 1, kv_heads, block_tokens, head_size).

    The last block is the engine's scratch block. `cosines` and `sines` (context, head_size / 2), float32, are
    the rotary embedding of every position.
    """

    values: Tensor
    cosines: Tensor
    sines: Tensor
    block_tokens: int

    @classmethod
    def allocate(
        cls, spec: DecoderSpec, device: str, dtype: Any, *, block_count: int, block_tokens: int, context_tokens: int
    ) -> PagedCache:
        """An empty cache. What no token has been stored in is zero, so that it is finite."""
        torch, shape = need_torch(), spec.shape
        size = (shape.layer_count, 2, block_count + 1, shape.kv_head_count, block_tokens, shape.head_size)
        frequency = torch.tensor(spec.frequencies(), dtype=torch.float64)
        angle = torch.arange(context_tokens, dtype=torch.float64)[:, None] * frequency
        return cls(
            torch.zeros(size, device=device, dtype=dtype),
            angle.cos().float().to(device),
            angle.sin().float().to(device),
            block_tokens,
        )

    @property
    def scratch_block(self) -> int:
        """The block that belongs to no sequence."""
        return int(self.values.shape[2]) - 1
