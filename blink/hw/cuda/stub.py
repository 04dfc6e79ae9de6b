"""The stub engine on the device: the native stub's tokens, after the time that each graph is said to take."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from blink.common.events import GraphKind
from blink.common.policy import GraphShape, GraphTable
from blink.hw.cuda.kernels import IO_THREADS, Kernels
from blink.hw.cuda.structures import ENGINE_ARRAYS, EngineIo
from blink.hw.engines.contract import Capture, StepBuffers
from blink.hw.native.settings import NativeSettings
from blink.hw.native.tokens import EOS_TOKEN

_WORD_BYTES = 4


class StubEngine:
    """An engine of the contract with one graph of each kind, which serves every shape of its kind.

    Prompts and block tables come through the contract's buffers; durations and texts' ends stand in the scheduler's
    block at `memory`, as on the host. `control` holds the word that lets a graph go on which a test hangs.
    """

    name = "stub"
    vocabulary_count = (1 << 20) + 16
    eos_token: int | None = EOS_TOKEN

    def __init__(self, kernels: Kernels, settings: NativeSettings, memory: int, control: int) -> None:
        self._kernels, self._cuda, self._memory, self._control = kernels, kernels.cuda, memory, control
        self.block_tokens, self.block_count = settings.limits.block_tokens, settings.kv_block_count
        self.scratch_block = settings.kv_block_count
        prefill, decode = settings.prefill_table, settings.decode_table
        self.tables: Mapping[GraphKind, GraphTable] = {GraphKind.PREFILL: prefill, GraphKind.DECODE: decode}
        batch = max(settings.limits.prefill_batch_max, prefill.fallback.batch)
        longest = max(prefill.fallback.sequence, *prefill.sequences)
        rows = max(settings.limits.batch_max, decode.fallback.batch, batch)
        self.shapes: tuple[GraphShape, ...] = (
            GraphShape(GraphKind.PREFILL, batch, longest),
            GraphShape(GraphKind.DECODE, rows, decode.fallback.sequence),
        )
        self.buffers, self._address = self._allocate(rows, batch * longest, settings.fields()["blocks_per_place"])
        self._stream = self._cuda.stream()
        self._graphs: list[int] = []

    def _allocate(self, rows: int, prompt_tokens: int, blocks: int) -> tuple[StepBuffers, int]:
        sizes = dict.fromkeys(ENGINE_ARRAYS, rows) | {"tokens": max(prompt_tokens, rows), "block_tables": rows * blocks}
        offsets, total = {}, 0
        for name, size in sizes.items():
            offsets[name] = total
            total += -(-size * _WORD_BYTES // 256) * 256
        start = self._cuda.allocate(total)
        addresses = {name: start + offset for name, offset in offsets.items()}
        buffers = StepBuffers(
            **addresses, tokens_capacity=sizes["tokens"], batch_max=rows, blocks_per_sequence_max=blocks
        )
        return buffers, start

    def capture(self, shape: GraphShape, prologue: Capture, epilogue: Capture) -> int:
        """The graph of a shape."""
        with self._cuda.capturing(self._stream) as captured:
            prologue(self._stream)
            self._kernels.launch(
                "stub", 1, IO_THREADS, self._stream,
                ctypes.c_uint64(self._memory), engine_io(self.buffers, self.scratch_block),
                ctypes.c_uint32(shape.sequence), ctypes.c_uint64(self._control),
            )  # fmt: skip
            epilogue(self._stream)
        self._graphs += captured
        return captured[0]

    def close(self) -> None:
        """Give graphs and memory back."""
        for graph in self._graphs:
            self._cuda.close_graph(graph)
        self._cuda.close_stream(self._stream)
        self._cuda.free(self._address)


def engine_io(buffers: StepBuffers, scratch_block: int) -> EngineIo:
    """An engine's buffers as the kernels take them."""
    addresses = [getattr(buffers, name) for name in ENGINE_ARRAYS]
    return EngineIo(*addresses, buffers.blocks_per_sequence_max, scratch_block)
