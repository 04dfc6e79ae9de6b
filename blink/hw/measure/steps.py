"""Time captured prefill and decode steps of a decoder's shape with PyTorch: `python -m blink.hw.measure.steps`.

The layer is plain PyTorch (RMSNorm, rotary embedding, grouped-query attention, SwiGLU), weights are random, sampling is
greedy; each (kind, batch, sequence) is captured as one CUDA graph and replayed between two CUDA events. Prints one TOML
table a shape, in nanoseconds, for a file of points that `python -m blink.perf.fit` and the tests read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from blink.common.errors import InputError
from blink.hw.engines.lazy_torch import need_gpu
from blink.hw.engines.plain import layer_output
from blink.hw.engines.spec import DecoderSpec, random_spec
from blink.hw.engines.weights import LayerWeights, Weights, random_weights
from blink.perf.shape import ModelShape

DECODE = tuple((batch, kv) for kv in (256, 1024, 4096) for batch in (1, 8, 16, 32, 64, 128))
PREFILL = (
    *((1, sequence) for sequence in (64, 128, 256, 512, 1024, 2048, 4096, 8192)),
    *((batch, 1024) for batch in (2, 4, 8)),
    *((batch, 256) for batch in (2, 4, 8)),
)
FEW = {("decode", 1, 1024), ("decode", 16, 1024), ("decode", 64, 1024), ("prefill", 1, 1024), ("prefill", 1, 4096)}
"""What is measured of a compiled step: compiling takes most of a minute a shape."""
WARM, REPLAYS = 3, 30


@dataclass(frozen=True)
class Decoder:
    """Random bf16 weights of a dense shape on the GPU and one step over them."""

    torch: Any
    spec: DecoderSpec
    weights: Weights

    @classmethod
    def random(cls, torch: Any, shape: ModelShape) -> Decoder:
        """Weights with the scale of a trained model, so that products take the power they really take."""
        spec = random_spec(shape)
        return cls(torch, spec, random_weights(spec, "cuda", torch.bfloat16))

    @property
    def shape(self) -> ModelShape:
        """The sizes."""
        return self.spec.shape

    def attended(self, x: Any, layer: LayerWeights, angles: tuple[Any, Any], attend: Callable[..., Any]) -> Any:
        """One layer on x of (batch, tokens, hidden); `attend` takes rotated queries and keys, and values."""
        cosine, sine = angles
        half = self.shape.head_size // 2

        def rotate(value: Any) -> Any:
            return value * cosine + self.torch.cat([-value[..., half:], value[..., :half]], -1) * sine

        return layer_output(self.shape, layer, x, rotate, attend, self.spec.norm_epsilon)

    def angles(self, positions: Any) -> tuple[Any, Any]:
        """Cosine and sine of rotary embedding for (tokens,) positions, as (tokens, head_size)."""
        torch, size = self.torch, self.shape.head_size
        inverse = 1.0 / self.spec.rope_base ** (torch.arange(0, size, 2, device="cuda").float() / size)
        angle = torch.cat([positions.float()[:, None] * inverse] * 2, -1)
        return angle.cos().bfloat16(), angle.sin().bfloat16()

    def next_tokens(self, x: Any) -> Any:
        """Greedy tokens of (batch, hidden)."""
        return (x @ self.weights.head.t()).argmax(-1)


def prefill_step(model: Decoder, batch: int, sequence: int) -> Callable[[], Any]:
    """A prefill of `batch` prompts of `sequence` tokens that leaves keys and values in a cache."""
    torch, shape = model.torch, model.shape
    tokens = torch.zeros(batch, sequence, device="cuda", dtype=torch.long)
    positions = torch.arange(sequence, device="cuda")
    cache = torch.empty(2, batch, shape.kv_head_count, sequence, shape.head_size, device="cuda", dtype=torch.bfloat16)

    def attend(q: Any, k: Any, v: Any) -> Any:
        cache[0].copy_(k)
        cache[1].copy_(v)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def step() -> Any:
        x, angles = torch.nn.functional.embedding(tokens, model.weights.embedding), model.angles(positions)
        for layer in model.weights.layers:
            x = model.attended(x, layer, angles, attend)
        return model.next_tokens(x[:, -1])

    return step


def decode_step(model: Decoder, batch: int, kv_length: int) -> Callable[[], Any]:
    """One token for each of `batch` sequences whose caches hold `kv_length` tokens."""
    torch, shape = model.torch, model.shape
    tokens = torch.zeros(batch, 1, device="cuda", dtype=torch.long)
    position = torch.full((1,), kv_length - 1, device="cuda", dtype=torch.long)
    size = (2, batch, shape.kv_head_count, kv_length, shape.head_size)
    caches = [torch.zeros(*size, device="cuda", dtype=torch.bfloat16) for _ in model.weights.layers]

    def step() -> Any:
        x, angles = torch.nn.functional.embedding(tokens, model.weights.embedding), model.angles(position)
        for layer, cache in zip(model.weights.layers, caches, strict=True):

            def attend(q: Any, k: Any, v: Any, cache: Any = cache) -> Any:
                cache[0].index_copy_(2, position, k)
                cache[1].index_copy_(2, position, v)
                return torch.nn.functional.scaled_dot_product_attention(q, cache[0], cache[1], enable_gqa=True)

            x = model.attended(x, layer, angles, attend)
        return model.next_tokens(x[:, -1])

    return step


def replay_ns(torch: Any, step: Callable[[], Any], replays: int = REPLAYS) -> list[int]:
    """Durations of replays of the step's graph, ascending, by CUDA events (resolution about 0.5 us)."""
    stream = torch.cuda.Stream()
    with torch.no_grad(), torch.cuda.stream(stream):
        for _ in range(WARM):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        step()
    for _ in range(WARM):
        graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    return sorted(round(a.elapsed_time(b) * 1e6) for a, b in pairwise(events))


def measured(shape: ModelShape, *, fused: bool) -> Iterator[tuple[str, int, int, list[int]]]:
    """(kind, batch, sequence, sorted durations) of every shape of the programme; `fused`: compiled by PyTorch."""
    torch = need_gpu("measuring steps")
    model = Decoder.random(torch, shape)
    for kind, shapes, build in (("prefill", PREFILL, prefill_step), ("decode", DECODE, decode_step)):
        for batch, sequence in shapes:
            if fused and (kind, batch, sequence) not in FEW:
                continue
            step = build(model, batch, sequence)
            yield kind, batch, sequence, replay_ns(torch, torch.compile(step, dynamic=False) if fused else step)
            torch.cuda.empty_cache()


def main(arguments: list[str] | None = None) -> int:
    """Print the points of one model shape."""
    parser = argparse.ArgumentParser(prog="python -m blink.hw.measure.steps", description=__doc__)
    parser.add_argument("--model", default="llama-3-8b", help="model profile or file (dense shapes)")
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument("--compile", action="store_true", help="fuse the step with torch.compile; fewer shapes")
    options = parser.parse_args(arguments)
    shape = ModelShape.load(options.model)
    if options.layers:
        shape = replace(shape, layer_count=options.layers)
    if shape.expert_count:
        raise InputError(f"--model {options.model}: a mixture of experts; this programme measures dense shapes")
    for kind, batch, sequence, durations in measured(shape, fused=options.compile):
        middle, last = durations[len(durations) // 2], durations[-1]
        print(f'[[step]]\nkind = "{kind}"\nlayers = {shape.layer_count}\nbatch = {batch}\nsequence = {sequence}')
        print(f"p50_ns = {middle}\nmax_ns = {last}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as problem:
        sys.exit(f"blink: error: {problem}")
