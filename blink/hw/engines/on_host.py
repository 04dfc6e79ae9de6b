"""A real model without a GPU: the torch engine's steps on this CPU, behind the scheduler compiled for the host.

The scheduler runs on a thread of this process and calls `HostSteps` for each graph. Its prologue and epilogue are done
here as kernels/src/engine_io.cu does them on a GPU. For trying things out and for tests: a step takes as long as a CPU
takes for it, and the heart does not beat meanwhile.
"""

from __future__ import annotations

import ctypes
from itertools import product

import numpy as np

from blink.common.events import GraphKind
from blink.common.layout import DESCRIPTOR_STRIDE_BYTES, unpack_descriptor, write_word
from blink.common.policy import GraphShape, GraphTable
from blink.common.states import SLOT_COUNT
from blink.hw.engines.rows import Row, fill
from blink.hw.engines.torch_engine import TorchEngine
from blink.hw.native.instance import Instance
from blink.hw.native.thread import HostGraphs, ThreadScheduler
from blink.hw.ring import min_tokens_of

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_ENTER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_FAILED = 1
_COPIES = 2


class HostSteps:
    """`graphs` for a ThreadScheduler over `instance`. `failure` is what a step raised: the first, None if none did."""

    def __init__(self, instance: Instance, engine: TorchEngine) -> None:
        self._instance, self._engine = instance, engine
        settings = instance.settings
        tables = {GraphKind.PREFILL: settings.prefill_table, GraphKind.DECODE: settings.decode_table}
        shapes = {kind: _shapes(table) for kind, table in tables.items()}
        self._shapes = [None, *shapes[GraphKind.PREFILL], *shapes[GraphKind.DECODE]]  # by handle; 0 is no handle
        prefill, decode = (len(shapes[kind]) for kind in (GraphKind.PREFILL, GraphKind.DECODE))
        self._prefill, self._decode = _handles(1, prefill), _handles(1 + prefill, decode)
        self._calls = _LAUNCH(self._launch), _ENTER(lambda _: 0)
        launch, nothing = (ctypes.cast(call, ctypes.c_void_p).value for call in self._calls)
        self.graphs = HostGraphs(
            nothing, launch, None, nothing, None, None,
            ctypes.addressof(self._prefill), ctypes.addressof(self._decode), 0, None, 0, 0,
        )  # fmt: skip
        self.failure: BaseException | None = None

    def _launch(self, handle: int, _: int) -> int:
        """Called by the scheduler's thread."""
        try:
            shape = self._shapes[handle]
            assert shape is not None
            self._step(shape)
        except BaseException as error:
            self.failure = self.failure or error
            return _FAILED  # nothing completes, so the watchdog gives the requests up
        return 0

    def _step(self, shape: GraphShape) -> None:
        instance = self._instance
        given = instance.read("input_rows_offset", "input")[0]
        slots = instance.words("input_rows_offset", given.dtype.itemsize, int(given["rows"]))
        live = instance.read("live_offset", "live", SLOT_COUNT)[slots]
        fill(self._engine, shape, [self._row(shape.kind, *pair) for pair in zip(slots.tolist(), live, strict=True)])
        self._engine.run(shape)
        sampled = self._engine.tensors.sampled[: slots.size].numpy().astype(np.uint32)
        view = instance.block.view(int(instance.config["sampled_offset"][0]), 4 * instance.settings.limits.batch_max)
        np.frombuffer(view, np.uint32)[live["place"]] = sampled
        self._complete(int(given["sequence"]))

    def _row(self, kind: GraphKind, slot: int, live: np.void) -> Row:
        instance = self._instance
        prompt_tokens, had, place = int(live["prompt_tokens"]), int(live["token_count"]), int(live["place"])
        if kind is GraphKind.PREFILL:
            tokens, context = instance.words("prompts_offset", 4 * int(live["prompt_offset"]), prompt_tokens), 0
        else:
            tokens, context = instance.words("sampled_offset", 4 * place, 1), prompt_tokens + had - 1
        table_bytes = 4 * place * int(instance.config["blocks_per_place"][0])
        blocks = instance.words("block_tables_offset", table_bytes, int(live["block_count"]))
        stride = DESCRIPTOR_STRIDE_BYTES
        with instance.block.view(int(instance.config["descriptors_offset"][0]) + stride * slot, stride) as view:
            asked = unpack_descriptor(view)
        return Row(
            tokens.tolist(), context, blocks.tolist(), had, asked.temperature, asked.top_p, asked.top_k, asked.seed,
            min_tokens_of(int(instance.words("eos_offset", 4 * slot, 1)[0])),
        )  # fmt: skip

    def _complete(self, sequence: int) -> None:
        fields = self._instance.library.dtypes["state"].fields
        assert fields is not None
        at = int(self._instance.config["state_offset"][0]) + int(fields["completion"][1])
        with self._instance.block.view(at, 8) as view:
            write_word(view, 0, sequence)  # of the thread that will read it


class HostModelScheduler(ThreadScheduler):
    """A ThreadScheduler whose graphs are an engine's steps on this CPU."""

    def __init__(self, instance: Instance, engine: TorchEngine, silence_limit_ns: int) -> None:
        self._steps = HostSteps(instance, engine)
        super().__init__(instance, self._steps.graphs, silence_limit_ns=silence_limit_ns)

    def fault(self) -> str | None:
        """Why the scheduler will not go on, None if it is well."""
        failure = self._steps.failure
        return super().fault() if failure is None else f"a step failed: {type(failure).__name__}: {failure}"


def _shapes(table: GraphTable) -> list[GraphShape]:
    """By index."""
    grid = product(table.batches, table.sequences)
    return [*(GraphShape(table.kind, batch, sequence) for batch, sequence in grid), table.fallback]


def _handles(first: int, count: int) -> ctypes.Array[ctypes.c_void_p]:
    """Of each index the same handle in place of each executable."""
    handles = [first + index for index in range(count) for _ in range(_COPIES)]
    return (ctypes.c_void_p * len(handles))(*handles)
