"""Structures that pass between this process and the kernels by value or in mapped memory."""

from __future__ import annotations

import ctypes

_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64

CONTROL_WORDS = ("stop", "release", "ping", "heartbeat", "ended", "error", "error_launch", "pong", "pong_ns")
"""Of kernels/include/blink/control.h, in its order; a test holds them together."""
ENGINE_ARRAYS = (
    "tokens", "context_tokens", "query_tokens", "block_tables", "temperature", "top_p", "top_k", "seed",
    "sample_index", "min_tokens", "sampled",
)  # fmt: skip
"""Of kernels/include/blink/engine_io.h, in its order."""


class EngineIo(ctypes.Structure):
    """kernels/include/blink/engine_io.h: device addresses of an engine's buffers."""

    _fields_ = (*((name, _U64) for name in ENGINE_ARRAYS), ("blocks_per_sequence_max", _U32), ("scratch_block", _U32))


class CudaHost(ctypes.Structure):
    """kernels/include/blink/platform_cuda.h: executables of each kind, and the control words."""

    _fields_ = (("prefill", _U64), ("decode", _U64), ("control", _U64))


class Control:
    """The control words in mapped pinned memory, by name. Loads and stores are of whole words."""

    def __init__(self, address: int) -> None:
        self.address = address
        self._words = memoryview((_U64 * len(CONTROL_WORDS)).from_address(address)).cast("B").cast("Q")
        self._index = {name: index for index, name in enumerate(CONTROL_WORDS)}

    def __getitem__(self, name: str) -> int:
        return self._words[self._index[name]]

    def __setitem__(self, name: str, value: int) -> None:
        self._words[self._index[name]] = value

    def clear(self) -> None:
        """Every word 0, before a scheduler starts."""
        for index in range(len(CONTROL_WORDS)):
            self._words[index] = 0
