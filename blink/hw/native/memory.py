"""The block of memory that the frontend's process and the scheduler's share."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import tempfile
from typing import Protocol


class Memory(Protocol):
    """Some bytes at an address of this process."""

    size_bytes: int
    address: int

    def view(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Some of them; writes go through."""

    def close(self) -> None:
        """Give them back."""


class SharedBlock:
    """`size_bytes` zero bytes without a name, so that nothing is left behind however the processes end.

    Another process maps `fd`, which it inherits. Pages that are never touched cost nothing.
    """

    def __init__(self, size_bytes: int, fd: int | None = None) -> None:
        """A new block, or with `fd` one that another process has made and that this one inherits."""
        self.size_bytes = size_bytes
        self.fd = _anonymous_file() if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, size_bytes)
        self._map = mmap.mmap(self.fd, size_bytes)
        self._first = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._first)

    def view(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Some bytes of the block; writes go through. Release it before `close`."""
        return memoryview(self._map)[offset_bytes : offset_bytes + size_bytes]

    def close(self) -> None:
        """Unmap, unless an array still looks at the memory; the last reference frees it in any case."""
        if self.fd < 0:
            return
        del self._first
        with contextlib.suppress(BufferError):
            self._map.close()
        os.close(self.fd)
        self.fd = -1


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("blink-ring", os.MFD_CLOEXEC)
    handle, path = tempfile.mkstemp(prefix="blink-ring-")
    os.unlink(path)  # noqa: PTH108  # the open file stays, its name does not
    return handle
