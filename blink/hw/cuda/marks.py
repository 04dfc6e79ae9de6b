"""When captured graphs began and ended, by the GPU's own clock: kernels/include/blink/graph_marks.h."""

from __future__ import annotations

import numpy as np

from blink.common.results import I64
from blink.hw.cuda.copier import Copier
from blink.hw.cuda.driver import Cuda

_HEAD_BYTES, _PAIR_BYTES = 16, 16


class GraphMarks:
    """Times of the last `capacity` graphs, in device memory. `close` it once no graph writes there any more."""

    def __init__(self, cuda: Cuda, capacity: int) -> None:
        self._cuda, self._copier, self._capacity = cuda, Copier(cuda), capacity
        self.address = cuda.allocate(_HEAD_BYTES + _PAIR_BYTES * capacity)
        self.clear()

    def clear(self) -> None:
        """Forget every graph. None may run."""
        self._copier.put(self.address, np.array([0, self._capacity], np.uint64).tobytes())
        self._cuda.wait(self._copier.stream)

    def read(self) -> tuple[I64, I64]:
        """(begun_ns, ended_ns) of the last graphs, at most `capacity`, in their order. None may run."""
        count = int.from_bytes(self._copier.get(self.address, 8), "little")
        held = min(count, self._capacity)
        if not held:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        data = self._copier.get(self.address + _HEAD_BYTES, _PAIR_BYTES * held)
        pairs = np.frombuffer(data, np.int64).reshape(held, 2)
        pairs = np.roll(pairs, -(count % held), axis=0) if count > held else pairs
        return pairs[:, 0].copy(), pairs[:, 1].copy()

    def close(self) -> None:
        """Give the memory back."""
        self._copier.close()
        self._cuda.free(self.address)
