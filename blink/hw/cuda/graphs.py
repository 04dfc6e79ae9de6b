"""Executables of an engine's captured graphs, where the scheduler finds them: by kind and index, two of each."""

from __future__ import annotations

import ctypes
from itertools import product

import numpy as np

from blink.common.events import GraphKind
from blink.common.policy import GraphShape, GraphTable
from blink.hw.cuda.driver import Cuda
from blink.hw.cuda.kernels import IO_THREADS, Kernels
from blink.hw.cuda.marks import GraphMarks
from blink.hw.cuda.stub import engine_io
from blink.hw.engines.contract import Engine
from blink.hw.native.settings import NativeSettings

COPIES = 2
"""An executable whose completion word was seen may not have retired: launches alternate."""


class Graphs:
    """Captures each shape once, instantiates it twice for launch from the device, and uploads both.

    `memory` is the address of the scheduler's block, `config` the Config at its start. `arrays` are device addresses of
    the executables of a kind. With `marks` every graph notes there when it began and ended.
    """

    def __init__(
        self,
        kernels: Kernels,
        engine: Engine,
        settings: NativeSettings,
        memory: int,
        config: bytes,
        marks: GraphMarks | None = None,
    ) -> None:
        self._kernels, self._cuda, self._engine, self._memory = kernels, kernels.cuda, engine, memory
        self._marks = ctypes.c_uint64(marks.address if marks else 0)
        self._config = (ctypes.c_char * len(config)).from_buffer_copy(config)
        self._executables: dict[GraphShape, tuple[int, ...]] = {}
        stream = self._cuda.stream()
        self.handles = {
            kind: self._of_table(kind, table, stream)
            for kind, table in ((GraphKind.PREFILL, settings.prefill_table), (GraphKind.DECODE, settings.decode_table))
        }
        """Of each kind, COPIES handles an index."""
        self._cuda.wait(stream)
        self._cuda.close_stream(stream)
        self.arrays = {kind: _to_device(self._cuda, handles) for kind, handles in self.handles.items()}

    def executables(self, kind: GraphKind, batch: int, sequence: int) -> tuple[int, ...]:
        """Those of the smallest shape that holds so many rows of so many tokens; empty if there is none."""
        shape = covering(self._engine.shapes, kind, batch, sequence)
        return self._executables.get(shape, ()) if shape else ()

    def _of_table(self, kind: GraphKind, table: GraphTable, stream: int) -> list[int]:
        shapes = [*product(table.batches, table.sequences), (table.fallback.batch, table.fallback.sequence)]
        handles: list[int] = []
        for batch, sequence in shapes:
            shape = covering(self._engine.shapes, kind, batch, sequence)
            handles += self._instantiated(shape, stream) if shape else (0,) * COPIES  # never chosen: beyond the limit
        return handles

    def _instantiated(self, shape: GraphShape, stream: int) -> tuple[int, ...]:
        if shape not in self._executables:
            graph = self._engine.capture(
                shape, lambda capturing: self._prologue(shape, capturing), lambda capturing: self._epilogue(capturing)
            )
            found = tuple(self._cuda.instantiate(graph) for _ in range(COPIES))
            for executable in found:
                self._cuda.upload(executable, stream)
            self._executables[shape] = found
        return self._executables[shape]

    def _prologue(self, shape: GraphShape, stream: int) -> None:
        self._kernels.launch(
            "prologue", shape.batch, IO_THREADS, stream,
            ctypes.c_uint64(self._memory), self._config,
            engine_io(self._engine.buffers, self._engine.scratch_block),
            ctypes.c_uint32(shape.kind), ctypes.c_uint32(shape.sequence), self._marks,
        )  # fmt: skip

    def _epilogue(self, stream: int) -> None:
        io = engine_io(self._engine.buffers, self._engine.scratch_block)
        memory = ctypes.c_uint64(self._memory)
        self._kernels.launch("epilogue", 1, IO_THREADS, stream, memory, self._config, io, self._marks)

    def close(self) -> None:
        """Give the executables back; the graphs are the engine's. No scheduler may run."""
        for executables in self._executables.values():
            for executable in executables:
                self._cuda.close_executable(executable)
        for address in self.arrays.values():
            self._cuda.free(address)


def covering(shapes: tuple[GraphShape, ...], kind: GraphKind, batch: int, sequence: int) -> GraphShape | None:
    """The smallest shape of a kind that holds `batch` rows of `sequence` tokens, None if none does."""
    fits = [shape for shape in shapes if shape.kind == kind and shape.batch >= batch and shape.sequence >= sequence]
    return min(fits, key=lambda shape: (shape.batch, shape.sequence), default=None)


def _to_device(cuda: Cuda, handles: list[int]) -> int:
    values = np.array(handles, np.uint64)
    address, stream = cuda.allocate(values.nbytes), cuda.stream()
    cuda.copy_in(address, int(values.ctypes.data), values.nbytes, stream)
    cuda.wait(stream)
    cuda.close_stream(stream)
    return address
