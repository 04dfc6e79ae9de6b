"""Time the torch engine's captured steps: `python -m blink.hw.measure.engine_steps`.

Decode steps of a shape with random bf16 weights, every sequence with `--kv` tokens in its KV blocks, and prefills of
one prompt. Each is captured as the scheduler gets it, replayed between CUDA events, and its raw graph is checked: its
nodes are counted by type, and it is instantiated for launch from the device. Prints one TOML table a shape.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial

from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.optional import need
from blink.common.policy import GraphShape
from blink.hw.engines.lazy_torch import need_gpu
from blink.hw.engines.torch_engine import EngineLimits, TorchEngine
from blink.hw.measure.steps import replay_ns

BATCHES, PROMPTS = (1, 16, 64), (128, 1024)
REPLAYS, BLOCK_TOKENS = 400, 16


def fill(engine: TorchEngine, shape: GraphShape, kv_tokens: int) -> None:
    """Rows as they are in mid-decode (or full prompts), each with KV blocks of its own and greedy sampling."""
    tensors, torch = engine.tensors, engine.torch
    prefill = shape.kind is GraphKind.PREFILL
    count = shape.batch * (shape.sequence if prefill else 1)
    tensors.tokens[:count] = torch.arange(count, device=engine.device, dtype=torch.int32) % engine.vocabulary_count
    tensors.context_tokens.fill_(0 if prefill else kv_tokens - 1)
    tensors.query_tokens.fill_(shape.sequence if prefill else 1)
    blocks = -(-(shape.sequence if prefill else kv_tokens) // engine.block_tokens)
    own = torch.randperm(engine.block_count, device=engine.device)[: shape.batch * blocks].view(shape.batch, blocks)
    tensors.block_tables[: shape.batch, :blocks] = own.int()


def nodes(raw_graph: int) -> Counter[str]:
    """Nodes of a cudaGraph_t by type."""
    driver = need("cuda.bindings.driver", "reading a graph's nodes", "cuda")
    graph = driver.CUgraph(raw_graph)
    count = driver.cuGraphGetNodes(graph, 0)[-1]
    found = driver.cuGraphGetNodes(graph, count)[1][:count]
    kinds = (driver.cuGraphNodeGetType(node)[1].name for node in found)
    return Counter(kind.removeprefix("CU_GRAPH_NODE_TYPE_").lower() for kind in kinds)


def device_launchable(raw_graph: int) -> bool:
    """Whether the graph instantiates with the device-launch flag."""
    runtime = need("cuda.bindings.runtime", "instantiating a graph for device launch", "cuda")
    flag = runtime.cudaGraphInstantiateFlags.cudaGraphInstantiateFlagDeviceLaunch
    error, executable = runtime.cudaGraphInstantiateWithFlags(runtime.cudaGraph_t(raw_graph), flag)
    if error.value == 0:
        runtime.cudaGraphExecDestroy(executable)
    return bool(error.value == 0)


def measured(engine: TorchEngine, kv_tokens: int) -> Iterator[tuple[GraphShape, list[int], Counter[str], bool]]:
    """(shape, sorted durations in ns, nodes by type, launchable from the device) of every shape of the programme."""
    for shape in engine.shapes:
        fill(engine, shape, kv_tokens)
        raw = engine.capture(shape, lambda _: None, lambda _: None)
        yield shape, replay_ns(engine.torch, partial(engine.run, shape), REPLAYS), nodes(raw), device_launchable(raw)


def report(model: str, *, fixed: bool, kv_tokens: int) -> None:
    """Measure one variant of the engine and print it."""
    longest = max(*PROMPTS, kv_tokens)
    limits = EngineLimits(
        context_tokens=2 * longest,
        block_tokens=BLOCK_TOKENS,
        block_count=BATCHES[-1] * -(-longest // BLOCK_TOKENS),
        prefill_batches=(1,),
        prefill_sequences=PROMPTS,
        decode_batches=BATCHES,
    )
    engine = TorchEngine.of_model(model, limits, dtype="bfloat16", fixed=fixed)
    for shape, durations, kinds, launchable in measured(engine, kv_tokens):
        p50, p99, p999 = (durations[round(share * (len(durations) - 1))] for share in (0.5, 0.99, 0.999))
        sequence = kv_tokens if shape.kind is GraphKind.DECODE else shape.sequence
        print(f'[[step]]\nkind = "{shape.kind.label}"\nbatch = {shape.batch}\nsequence = {sequence}')
        print(f'products = "{"fixed tiles" if fixed else "cuBLAS"}"')
        print(f"p50_ns = {p50}\np99_ns = {p99}\np999_ns = {p999}")
        print(f"nodes = {{ {', '.join(f'{kind} = {count}' for kind, count in sorted(kinds.items()))} }}")
        print(f"device_launch = {str(launchable).lower()}\n", flush=True)
    engine.close()


def main(arguments: list[str] | None = None) -> int:
    """Print the points of one model shape, with both kinds of products."""
    parser = argparse.ArgumentParser(prog="python -m blink.hw.measure.engine_steps", description=__doc__)
    parser.add_argument("--model", default="llama-3-8b", help="model profile (dense shapes)")
    parser.add_argument("--kv", type=int, default=1024, help="tokens in the KV cache of each sequence")
    options = parser.parse_args(arguments)
    need_gpu("measuring an engine's steps")
    for fixed in (False, True):
        report(options.model, fixed=fixed, kv_tokens=options.kv)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as problem:
        sys.exit(f"blink: error: {problem}")
