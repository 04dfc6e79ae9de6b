"""A decoder's step as an ONNX graph, for engines that build plans from one.

The graph writes no memory: it returns the logits and the step's own keys and values, which a kernel then stores into
the KV blocks. Attention looks at the blocks that the block tables name and at the step's own tokens. So a paged cache
needs no plugin, and no tensor is input and output at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blink.common.events import GraphKind
from blink.common.optional import need
from blink.common.policy import GraphShape
from blink.hw.engines.buffers import PagedCache, StepTensors
from blink.hw.engines.lazy_torch import need_torch
from blink.hw.engines.plain import layer_output, rotated
from blink.hw.engines.spec import DecoderSpec
from blink.hw.engines.weights import Weights

Tensor = Any
INPUTS = ("tokens", "context_tokens", "query_tokens", "block_tables")
OUTPUTS = ("logits", "keys", "values")
HIDDEN = -1.0e30
"""Score of a position that a token may not see."""


def input_names(spec: DecoderSpec, shape: GraphShape) -> tuple[str, ...]:
    """Inputs of a step's graph in order: those of the step, and for a decode each layer's cache."""
    caches = range(spec.shape.layer_count) if shape.kind is GraphKind.DECODE else range(0)
    return (*(INPUTS if caches else ("tokens", "query_tokens")), *(f"cache_{layer}" for layer in caches))


def step_inputs(shape: GraphShape, buffers: StepTensors, cache: PagedCache) -> list[Tensor]:
    """The tensors behind `input_names`: views of an engine's fixed buffers, so that their addresses stay."""
    batch = shape.batch
    if shape.kind is GraphKind.PREFILL:
        tokens = buffers.tokens[: batch * shape.sequence].view(batch, shape.sequence)
        return [tokens, buffers.query_tokens[:batch]]
    tokens = buffers.tokens[:batch].view(batch, 1)
    step = [tokens, buffers.context_tokens[:batch], buffers.query_tokens[:batch], buffers.block_tables[:batch]]
    return [*step, *cache.values.unbind(0)]


def step_module(spec: DecoderSpec, weights: Weights, cache: PagedCache, shape: GraphShape) -> Any:
    """A torch.nn.Module from `input_names` to logits, keys and values.

    Logits are float32 (batch, vocabulary), of each row's last token; the others are (layers, batch, tokens, kv_heads,
    head_size).
    """
    torch = need_torch()
    sizes, prefill = spec.shape, shape.kind is GraphKind.PREFILL
    group, scale = sizes.head_count // sizes.kv_head_count, sizes.head_size**-0.5

    def gathered(values: Tensor, tables: Tensor) -> Tensor:
        """(batch, kv_heads, positions, head_size) of a cache's keys or values."""
        paged = values[tables]
        return paged.transpose(1, 2).reshape(len(tables), sizes.kv_head_count, -1, sizes.head_size)

    def attended(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
        q = q.view(shape.batch, sizes.kv_head_count, -1, sizes.head_size)  # the heads of a group one after another
        score = (q @ k.transpose(-1, -2)).float() * scale
        score = score.view(shape.batch, sizes.kv_head_count, group, -1, k.shape[2]).masked_fill(~seen, HIDDEN)
        share = torch.softmax(score, -1).to(v.dtype).view(shape.batch, sizes.kv_head_count, -1, k.shape[2])
        return (share @ v).view(shape.batch, sizes.head_count, -1, sizes.head_size)

    class Step(torch.nn.Module):  # type: ignore[misc, name-defined]
        """The step's computation, with the weights as constants."""

        def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            tokens, query, caches = inputs[0], inputs[1 if prefill else 2].long(), inputs[4:]
            offset = torch.arange(tokens.shape[1], device=tokens.device)
            context = torch.zeros_like(query) if prefill else inputs[1].long()
            position = (context[:, None] + offset).clamp_max(len(cache.cosines) - 1)
            cosine, sine = cache.cosines[position][:, None], cache.sines[position][:, None]
            tables = None if prefill else inputs[3].long()
            seen = (offset <= offset[:, None]).expand(shape.batch, 1, 1, -1, -1)
            if tables is not None:
                paged = torch.arange(tables.shape[1] * cache.block_tokens, device=tokens.device)
                past = (paged < context[:, None])[:, None, None, None, :]
                seen = torch.cat([past, seen], -1)
            stored: list[tuple[Tensor, Tensor]] = []

            def rotate(value: Tensor) -> Tensor:
                return rotated(value, cosine, sine, interleaved=spec.rope_interleaved)

            def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
                layer = len(stored)
                stored.append((k.transpose(1, 2), v.transpose(1, 2)))
                if tables is not None:
                    k = torch.cat([gathered(caches[layer][0], tables), k], 2)
                    v = torch.cat([gathered(caches[layer][1], tables), v], 2)
                return attended(q, k, v, seen)

            x = torch.nn.functional.embedding(tokens.long(), weights.embedding)
            for layer in weights.layers:
                x = layer_output(sizes, layer, x, rotate, attend, spec.norm_epsilon)
            last = x[torch.arange(shape.batch, device=x.device), (query - 1).clamp_min(0)]
            last = torch.nn.functional.rms_norm(last, (sizes.hidden_size,), weights.final_norm, spec.norm_epsilon)
            keys, values = (torch.stack(part) for part in zip(*stored, strict=True))
            return (last @ weights.head.t()).float(), keys, values

    return Step().eval()


def export_step(
    spec: DecoderSpec, weights: Weights, cache: PagedCache, buffers: StepTensors, shape: GraphShape, file: Path
) -> None:
    """Write a step's graph as an ONNX file, its weights beside it. Needs the packages `onnx` and `onnxscript`."""
    torch = need_torch()
    for package in ("onnx", "onnxscript"):
        need(package, "the tensorrt engine", "tensorrt")
    with torch.no_grad():
        torch.onnx.export(
            step_module(spec, weights, cache, shape),
            tuple(step_inputs(shape, buffers, cache)),
            str(file),
            input_names=list(input_names(spec, shape)),
            output_names=list(OUTPUTS),
            dynamo=True,
            external_data=True,
            verbose=False,
        )
