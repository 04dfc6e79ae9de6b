"""A decoder in plain PyTorch, on any device: the layer, attention over KV blocks by gathering them, a whole step.

It is the reference of `kernels.py` and the engine on a CPU. The measuring programme captures the same layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from blink.common.events import GraphKind
from blink.common.policy import GraphShape
from blink.hw.engines.buffers import PagedCache, StepTensors
from blink.hw.engines.lazy_torch import need_torch
from blink.hw.engines.sampling import sample
from blink.hw.engines.spec import DecoderSpec
from blink.hw.engines.weights import LayerWeights, Weights
from blink.perf.shape import ModelShape

Tensor = Any


def layer_output(
    shape: ModelShape,
    weights: LayerWeights,
    x: Tensor,
    rotate: Callable[[Tensor], Tensor],
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    epsilon: float,
) -> Tensor:
    """One layer on x of (batch, tokens, hidden).

    `rotate` turns (batch, heads, tokens, head_size) to the tokens' positions; `attend` takes rotated queries, rotated
    keys and values, and returns (batch, heads, tokens, head_size).
    """
    functional = need_torch().nn.functional
    batch, tokens, hidden = x.shape
    mixed = functional.rms_norm(x, (hidden,), weights.attention_norm, epsilon) @ weights.qkv.t()
    q, k, v = mixed.split([shape.query_size, shape.kv_size, shape.kv_size], -1)
    q = q.view(batch, tokens, shape.head_count, shape.head_size)
    k = k.view(batch, tokens, shape.kv_head_count, shape.head_size)
    if weights.query_norm is not None:
        q = functional.rms_norm(q, (shape.head_size,), weights.query_norm, epsilon)
        k = functional.rms_norm(k, (shape.head_size,), weights.key_norm, epsilon)
    q, k = rotate(q.transpose(1, 2)), rotate(k.transpose(1, 2))
    v = v.view(batch, tokens, shape.kv_head_count, shape.head_size).transpose(1, 2)
    mixed = attend(q, k, v).transpose(1, 2).reshape(batch, tokens, shape.query_size)
    x = x + mixed @ weights.output.t()
    gate, up = (functional.rms_norm(x, (hidden,), weights.ffn_norm, epsilon) @ weights.gate_up.t()).chunk(2, -1)
    return x + (functional.silu(gate) * up) @ weights.down.t()


def rotated(value: Tensor, cosine: Tensor, sine: Tensor, *, interleaved: bool) -> Tensor:
    """Rotary embedding of (..., tokens, head_size) by float32 cosines and sines that end in (tokens, head_size / 2)."""
    torch, half = need_torch(), value.shape[-1] // 2
    a, b = (value[..., 0::2], value[..., 1::2]) if interleaved else (value[..., :half], value[..., half:])
    a, b = a.float(), b.float()
    parts = (a * cosine - b * sine, b * cosine + a * sine)
    joined = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return joined.to(value.dtype)


class PlainDecoder:
    """Steps of a decoder over a paged cache, in PyTorch operations alone."""

    def __init__(self, spec: DecoderSpec, weights: Weights, cache: PagedCache, buffers: StepTensors) -> None:
        self.spec, self.weights, self.cache, self.buffers = spec, weights, cache, buffers

    def step(self, shape: GraphShape) -> None:
        """Run one step of the shape over the buffers; the last operation writes `sampled`."""
        batch = shape.batch
        sample(self.logits(shape), self.buffers, batch, self.spec.eos_token)

    def logits(self, shape: GraphShape) -> Tensor:
        """Float32 logits (batch, vocabulary) of each row's last token; keys and values are stored."""
        torch, weights, buffers = need_torch(), self.weights, self.buffers
        batch, tokens = shape.batch, _tokens(shape)
        functional = torch.nn.functional
        query = buffers.query_tokens[:batch].long()
        offset = torch.arange(tokens, device=query.device)
        # A padding token stands at a position that exists, and what it stores goes to the scratch block.
        position = (buffers.context_tokens[:batch].long()[:, None] + offset).clamp_max(len(self.cache.cosines) - 1)
        real = offset < query[:, None]
        x = functional.embedding(buffers.tokens[: batch * tokens].view(batch, tokens).long(), weights.embedding)
        cosine, sine = self.cache.cosines[position][:, None], self.cache.sines[position][:, None]

        def rotate(value: Tensor) -> Tensor:
            return rotated(value, cosine, sine, interleaved=self.spec.rope_interleaved)

        for index, layer in enumerate(weights.layers):
            attend = self._attend(index, position, real)
            x = layer_output(self.spec.shape, layer, x, rotate, attend, self.spec.norm_epsilon)
        last = x[torch.arange(batch, device=x.device), (query - 1).clamp_min(0)]
        last = functional.rms_norm(last, last.shape[-1:], weights.final_norm, self.spec.norm_epsilon)
        return (last @ weights.head.t()).float()

    def _attend(self, layer: int, position: Tensor, real: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        """Attention of one layer: stores keys and values at (batch, tokens) positions, then looks at all blocks."""
        torch, cache = need_torch(), self.cache
        tables = self.buffers.block_tables[: len(position)].long()
        block = torch.where(real, tables.gather(1, position // cache.block_tokens), cache.scratch_block)
        at = position % cache.block_tokens
        length = tables.shape[1] * cache.block_tokens
        seen = torch.arange(length, device=position.device) <= position[:, None, :, None]

        def gathered(values: Tensor) -> Tensor:
            return values[tables].transpose(1, 2).reshape(len(tables), values.shape[1], length, values.shape[3])

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = cache.values[layer]
            keys[block, :, at] = k.transpose(1, 2)
            values[block, :, at] = v.transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(
                q, gathered(keys), gathered(values), attn_mask=seen, enable_gqa=True
            )

        return attend


def _tokens(shape: GraphShape) -> int:
    return shape.sequence if shape.kind is GraphKind.PREFILL else 1
