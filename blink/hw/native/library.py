"""The compiled scheduler behind ctypes, and the layout of its structures as the library itself describes them."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from blink.common.layout import layout_hash
from blink.hw.native.build import build

_U32, _U64, _POINTER = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "describe": (_U64, (_POINTER, _U64)),
    "layout_hash": (_U64, ()),
    "plan": (None, (_POINTER,)),
    "create": (None, (_POINTER,)),
    "run": (None, (_POINTER, _U32, ctypes.c_int32)),
    "run_graphs": (None, (_POINTER, _POINTER)),
    "time_graph": (None, (_POINTER, _U32, _U32, _U64, _POINTER)),
    "time_launches": (_U64, (_POINTER, _U32, _U32, _U64)),
    "step": (_U32, (_POINTER, _U64)),
    "write_status": (None, (_POINTER, _U64, _POINTER, _U64)),
    "write_descriptors": (None, (_POINTER, _U64, _POINTER, _U64)),
    "write_prompt": (None, (_POINTER, _U64, _POINTER, _U64)),
    "read_status": (None, (_POINTER, _POINTER)),
    "read_tokens": (None, (_POINTER, _U64, _POINTER, _POINTER, _POINTER)),
    "set_stop": (None, (_POINTER, _U64)),
    "set_epoch": (None, (_POINTER, _U64)),
    "heartbeat_ns": (_U64, (_POINTER,)),
    "now_ns": (_U64, ()),
    "set_eos": (None, (_POINTER, _U32, _U32)),
    "set_durations": (None, (_POINTER, _POINTER, _POINTER)),
    "drain": (_U64, (_POINTER, _POINTER, _U64)),
    "look": (_U64, (_POINTER, _POINTER, _POINTER, _U64)),
    "append": (_U64, (_POINTER, _POINTER, _U64)),
    "time_scan": (_U64, (_POINTER, _U32, _U32)),
    "race_claims": (_U64, (_POINTER, _U32, _U32)),
}
"""Result and arguments of every `blink_native_*` function of kernels/src/native.cpp."""


class Library:
    """The functions of one build, without their prefix, and a numpy dtype for each structure."""

    def __init__(self, path: Path) -> None:
        self.path = path
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"blink_native_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        if self.layout_hash() != layout_hash():
            raise RuntimeError(f"{path} was compiled for another layout of the ring: regenerate ring_layout.h")
        self.dtypes = self._dtypes()

    def __getattr__(self, name: str) -> Callable[..., Any]:  # for type checkers: __init__ sets the functions
        raise AttributeError(name)

    def _dtypes(self) -> dict[str, np.dtype[np.void]]:
        size = self.describe(None, 0)
        text = ctypes.create_string_buffer(size)
        self.describe(text, size)
        fields: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
        for line in text.raw.decode().splitlines():
            name, offset, width = line.split()
            structure, field = name.split(".")
            fields[structure].append((field, int(offset), int(width)))
        return {structure: _dtype(found) for structure, found in fields.items()}


def _dtype(fields: list[tuple[str, int, int]]) -> np.dtype[np.void]:
    names = [name for name, _, _ in fields]
    end = max(offset + width for _, offset, width in fields)
    return np.dtype(
        {
            "names": names,
            "formats": [f"<u{width}" for _, _, width in fields],
            "offsets": [offset for _, offset, _ in fields],
            "itemsize": end,
        }
    )


@lru_cache
def load_library(extra_flags: tuple[str, ...] = ()) -> Library:
    """Build (or find) and load the library. Raises InputError without a compiler."""
    return Library(build(extra_flags))


def address_of(values: np.ndarray[Any, Any] | Sequence[int]) -> int:
    """The address of a contiguous array's first element."""
    assert isinstance(values, np.ndarray) and values.flags.c_contiguous
    return int(values.ctypes.data)
