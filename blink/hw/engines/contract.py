"""The contract between the scheduler on the GPU and an engine: a captured graph a shape, plus fixed buffers.

The scheduler launches a graph by (kind, index) and knows nothing of the model. Each graph holds, in this order,

    prologue    the backend's kernel: copies the step's rows from the scheduler's memory into the engine's buffers
    the step    the engine's own kernels: read the buffers, write keys and values, write `sampled`
    epilogue    the backend's kernels: copy `sampled` to the scheduler's memory, then publish the completion number

Nodes are kernels, memory copies and memory sets on one device; no host, event or allocation node, so that the graph can
be instantiated for launch from the device.

A row is a sequence of the batch. A prefill row brings its whole prompt; a decode row brings one token, the one that was
sampled last. Rows past the real ones are padding: `query_tokens` 0, `context_tokens` 0, `tokens` 0, every entry of the
block table `scratch_block`, `temperature` 0. What an engine writes into `sampled` for a padding row means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from blink.common.events import GraphKind
from blink.common.policy import GraphShape, GraphTable

Capture = Callable[[int], None]
"""Adds kernels to the graph being captured: gets the address of the capturing CUstream."""


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """Device addresses of an engine's fixed inputs and outputs; row-major, 4 bytes an element.

    For a graph of `batch` rows and `sequence` tokens a row, as (type, shape):

    - `tokens`          int32, prefill (batch, sequence), decode (batch,): token ids, 0 past the end of a prompt
    - `context_tokens`  int32, (batch,): tokens in the KV cache before this step; prefill: 0
    - `query_tokens`    int32, (batch,): real tokens of the row; decode: 1; padding: 0
    - `block_tables`    int32, (batch, blocks_per_sequence_max): KV block numbers, `scratch_block` where there is none
    - `temperature`     float32, (batch,): 0 is greedy
    - `top_p`           float32, (batch,): in (0, 1]; 1 keeps all tokens
    - `top_k`           uint32, (batch,): 0 keeps all tokens
    - `seed`            uint32, (batch,): of the request
    - `sample_index`    uint32, (batch,): tokens that the request already has; prefill: 0
    - `min_tokens`      uint32, (batch,): `eos_token` is not drawn while `sample_index` is below; padding: 0
    - `sampled`         uint32, (batch,): output, the sampled token

    A block table has `blocks_per_sequence_max` entries in every row, whatever the graph's shape. The key and value of
    the token at position i of a sequence stand in block `block_tables[row, i // block_tokens]` at `i % block_tokens`.
    `tokens_capacity` is the number of elements of `tokens`, `batch_max` that of the others' first dimension.
    """

    tokens: int
    context_tokens: int
    query_tokens: int
    block_tables: int
    temperature: int
    top_p: int
    top_k: int
    seed: int
    sample_index: int
    min_tokens: int
    sampled: int
    tokens_capacity: int
    batch_max: int
    blocks_per_sequence_max: int


class Engine(Protocol):
    """What a backend needs of an engine.

    KV blocks 0 to `block_count` - 1 belong to the scheduler; `scratch_block` is a further one, kept by the engine for
    padding rows. `eos_token` is None if the model has none; it is not drawn where `min_tokens` forbids it. `tables`
    says which shapes exist and which the scheduler must choose; the `sequence` of a decode shape is the most tokens in
    the KV cache that its graph serves (an engine that reads lengths from memory has one sequence, its context).
    `shapes` lists what is to be captured.
    """

    name: str
    vocabulary_count: int
    block_tokens: int
    block_count: int
    scratch_block: int
    eos_token: int | None
    tables: Mapping[GraphKind, GraphTable]
    shapes: tuple[GraphShape, ...]
    buffers: StepBuffers

    def capture(self, shape: GraphShape, prologue: Capture, epilogue: Capture) -> int:
        """Address of a cudaGraph_t that runs prologue, step, epilogue. The engine owns the graph until `close`.

        Every kernel of the step has run once before, so that it is loaded. Must not be called while a scheduler runs.
        """
        ...

    def close(self) -> None:
        """Give the graphs and the memory back."""
        ...


@dataclass(frozen=True, slots=True)
class Described:
    """What a scheduler's settings need to know of an engine, before the engine is there. Fields as in Engine."""

    tables: Mapping[GraphKind, GraphTable]
    block_tokens: int
    block_count: int
    eos_token: int | None


def captured_shapes(table: GraphTable) -> tuple[GraphShape, ...]:
    """Every shape that `table.choose` can return, each once: the grid by batch then sequence, the fallback last."""
    grid = [table.dense(batch, sequence) for batch in table.batches for sequence in table.sequences]
    return tuple(dict.fromkeys([*(shape for shape in grid if shape is not None), table.fallback]))
