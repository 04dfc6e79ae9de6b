"""A decoder's step as launches of the kernels, over scratch memory that is allocated once."""

from __future__ import annotations

from typing import Any

from blink.common.events import GraphKind
from blink.common.optional import need
from blink.common.policy import GraphShape
from blink.hw.engines.buffers import PagedCache, StepTensors
from blink.hw.engines.lazy_torch import need_torch
from blink.hw.engines.spec import DecoderSpec
from blink.hw.engines.weights import LayerWeights, Weights

Tensor = Any

CHUNK = 128
"""KV positions of one program of decode attention: small enough that one long sequence fills a GPU."""
BLOCK_CHUNKS, ATTENTION_N, PREFILL_M, GROUP_MIN = 16, 32, 64, 16
GATED_BLOCK, SAMPLE_BLOCK, SAMPLE_WARPS = 1024, 4096, 8
NO_TOKEN = -1


def launch_sampling(kernels: Any, logits: Tensor, buffers: StepTensors, batch: int, eos_token: int | None) -> None:
    """Write `sampled` for `batch` rows of float32 logits (batch, vocabulary) on the current stream."""
    kernels.sample_kernel[(batch,)](
        logits, buffers.temperature, buffers.top_p, buffers.top_k, buffers.seed, buffers.sample_index,
        buffers.min_tokens, buffers.sampled, logits.shape[-1], NO_TOKEN if eos_token is None else eos_token,
        BLOCK=SAMPLE_BLOCK, num_warps=SAMPLE_WARPS,
    )  # fmt: skip


class LinearTile:
    """Tile of the fixed product: rows, outputs, inputs, and how it is launched."""

    def __init__(self, rows: int, outputs: int, inputs: int, warps: int, stages: int) -> None:
        self.rows, self.outputs, self.inputs, self.warps, self.stages = rows, outputs, inputs, warps, stages


NARROW = LinearTile(64, 64, 128, 4, 4)
"""16-bit weights: a row of the tile a sequence, most of them padding in a small batch, which memory hides."""
WIDE = LinearTile(32, 32, 32, 4, 3)
"""32-bit weights, multiplied in exact float32."""


class TritonDecoder:
    """Steps of a decoder over a paged cache, in kernels of this package.

    With `fixed`, products run in tiles that do not depend on the number of rows, so that tokens do not depend on what
    shares the batch; otherwise cuBLAS computes them, in whatever way it finds fastest for the shape.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Weights,
        cache: PagedCache,
        buffers: StepTensors,
        *,
        rows_max: int,
        fixed: bool,
    ) -> None:
        self.torch, triton = need_torch(), need("triton", "the torch engine on a GPU", "torch")
        from blink.hw.engines import kernels

        self.kernels, self.power, self.ceil = kernels, triton.next_power_of_2, triton.cdiv
        self.spec, self.weights, self.cache, self.buffers, self.fixed = spec, weights, cache, buffers, fixed
        shape, dtype, device = spec.shape, weights.embedding.dtype, weights.embedding.device
        batch, blocks = buffers.block_tables.shape
        self.chunk_count = self.ceil(blocks * cache.block_tokens, CHUNK)

        def scratch(*size: int, kind: Any = dtype) -> Tensor:
            return self.torch.zeros(*size, device=device, dtype=kind)

        self.x, self.delta, self.normed = (scratch(rows_max, shape.hidden_size) for _ in range(3))
        self.qkv = scratch(rows_max, shape.query_size + 2 * shape.kv_size)
        self.query, self.mixed = (scratch(rows_max, shape.query_size) for _ in range(2))
        self.gate_up, self.gated = scratch(rows_max, 2 * shape.ffn_size), scratch(rows_max, shape.ffn_size)
        self.last, self.head_in = (scratch(batch, shape.hidden_size) for _ in range(2))
        self.logit_values = scratch(batch, shape.vocab_size, kind=self.torch.float32)
        parts = (batch, shape.head_count, self.chunk_count)
        self.part_sums = scratch(*parts, shape.head_size, kind=self.torch.float32)
        self.part_marks = scratch(*parts, 2, kind=self.torch.float32)
        # tf32 would be the default of a float32 product; it is not the arithmetic of the reference.
        self.precision = "ieee"

    def step(self, shape: GraphShape) -> None:
        """Run one step of the shape over the buffers; the last kernel writes `sampled`."""
        launch_sampling(self.kernels, self.logits(shape), self.buffers, shape.batch, self.spec.eos_token)

    def logits(self, shape: GraphShape) -> Tensor:
        """Float32 logits (batch, vocabulary) of each row's last token; keys and values are stored."""
        prefill = shape.kind is GraphKind.PREFILL
        sequence = shape.sequence if prefill else 1
        rows, hidden = shape.batch * sequence, self.spec.shape.hidden_size
        block = self.power(hidden)
        self.kernels.embed_kernel[(rows,)](self.buffers.tokens, self.weights.embedding, self.x, hidden, BLOCK=block)
        delta = None
        for index, layer in enumerate(self.weights.layers):
            self._norm(self.x, delta, layer.attention_norm, self.normed, rows)
            self._attention(index, layer, shape.batch, sequence, prefill=prefill)
            self._norm(self.x, self.delta, layer.ffn_norm, self.normed, rows)
            self._gated(layer, rows)
            delta = self.delta
        self._norm(self.x, delta, self.weights.final_norm, self.normed, rows)
        source = self.normed
        if prefill:
            self.kernels.last_rows_kernel[(shape.batch,)](
                self.normed, self.buffers.query_tokens, self.head_in, sequence, hidden, BLOCK=block
            )
            source = self.head_in
        logits = self.logit_values[: shape.batch]
        self._linear(source[: shape.batch], self.weights.head, logits)
        return logits

    def _norm(self, x: Tensor, delta: Tensor, weight: Tensor, out: Tensor, rows: int) -> None:
        hidden = self.spec.shape.hidden_size
        self.kernels.add_norm_kernel[(rows,)](
            x, x if delta is None else delta, weight, out, hidden, self.spec.norm_epsilon,
            ADD=delta is not None, BLOCK=self.power(hidden),
        )  # fmt: skip

    def _linear(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """out = x @ weight^T."""
        if not self.fixed:
            if out.dtype == x.dtype:
                self.torch.mm(x, weight.t(), out=out)
            else:
                out.copy_(self.torch.mm(x, weight.t()))
            return
        rows, inputs, outputs = len(x), x.shape[1], len(weight)
        tile = WIDE if weight.dtype == self.torch.float32 else NARROW
        self.kernels.linear_kernel[(self.ceil(rows, tile.rows) * self.ceil(outputs, tile.outputs),)](
            x, weight, out, rows, outputs, inputs, BLOCK_M=tile.rows, BLOCK_N=tile.outputs, BLOCK_K=tile.inputs,
            PRECISION=self.precision, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip

    def _gated(self, layer: LayerWeights, rows: int) -> None:
        """delta = FFN(normed)."""
        size = self.spec.shape.ffn_size
        self._linear(self.normed[:rows], layer.gate_up, self.gate_up[:rows])
        self.kernels.gated_kernel[(rows, self.ceil(size, GATED_BLOCK))](
            self.gate_up, self.gated, size, BLOCK=GATED_BLOCK
        )
        self._linear(self.gated[:rows], layer.down, self.delta[:rows])

    def _attention(self, index: int, layer: LayerWeights, batch: int, sequence: int, *, prefill: bool) -> None:
        """delta = attention(normed) of one layer, its keys and values stored."""
        rows = batch * sequence
        self._linear(self.normed[:rows], layer.qkv, self.qkv[:rows])
        self._rotate_store(index, layer, rows, sequence)
        if prefill:
            self._prefill_attention(index, batch, sequence)
        else:
            self._decode_attention(index, batch)
        self._linear(self.mixed[:rows], layer.output, self.delta[:rows])

    def _rotate_store(self, index: int, layer: LayerWeights, rows: int, sequence: int) -> None:
        shape, buffers, cache = self.spec.shape, self.buffers, self.cache
        normed = layer.query_norm is not None
        self.kernels.rotate_store_kernel[(rows, 2)](
            self.qkv, layer.query_norm if normed else self.qkv, layer.key_norm if normed else self.qkv, self.query,
            cache.values[index], buffers.block_tables, buffers.context_tokens, buffers.query_tokens,
            cache.cosines, cache.sines, self.spec.norm_epsilon, sequence, buffers.block_tables.shape[1],
            cache.values.stride(1), HEADS=shape.head_count, HEADS_PAD=self.power(shape.head_count),
            KV_HEADS=shape.kv_head_count, KV_HEADS_PAD=self.power(shape.kv_head_count), HALF=shape.head_size // 2,
            BLOCK_TOKENS=cache.block_tokens, INTERLEAVED=self.spec.rope_interleaved, NORM=normed,
        )  # fmt: skip

    def _decode_attention(self, index: int, batch: int) -> None:
        shape, buffers, cache = self.spec.shape, self.buffers, self.cache
        group = shape.head_count // shape.kv_head_count
        self.kernels.decode_attention_kernel[(batch, shape.kv_head_count, self.chunk_count)](
            self.query, cache.values[index], buffers.block_tables, buffers.context_tokens, buffers.query_tokens,
            self.part_sums, self.part_marks, shape.head_size**-0.5, buffers.block_tables.shape[1],
            cache.values.stride(1), KV_HEADS=shape.kv_head_count, GROUP=group,
            GROUP_PAD=max(GROUP_MIN, self.power(group)), SIZE=shape.head_size, BLOCK_TOKENS=cache.block_tokens,
            CHUNK=CHUNK, BLOCK_N=ATTENTION_N, PRECISION=self.precision,
        )  # fmt: skip
        self.kernels.merge_chunks_kernel[(batch, shape.head_count)](
            self.part_sums, self.part_marks, buffers.context_tokens, buffers.query_tokens, self.mixed,
            self.chunk_count, HEADS=shape.head_count, SIZE=shape.head_size, CHUNK=CHUNK, BLOCK_CHUNKS=BLOCK_CHUNKS,
        )  # fmt: skip

    def _prefill_attention(self, index: int, batch: int, sequence: int) -> None:
        shape, buffers, cache = self.spec.shape, self.buffers, self.cache
        self.kernels.prefill_attention_kernel[(self.ceil(sequence, PREFILL_M), shape.head_count, batch)](
            self.query, cache.values[index], buffers.block_tables, buffers.query_tokens, self.mixed,
            shape.head_size**-0.5, sequence, buffers.block_tables.shape[1], cache.values.stride(1),
            KV_HEADS=shape.kv_head_count, GROUP=shape.head_count // shape.kv_head_count, SIZE=shape.head_size,
            BLOCK_TOKENS=cache.block_tokens, BLOCK_M=PREFILL_M, BLOCK_N=ATTENTION_N, PRECISION=self.precision,
        )  # fmt: skip
