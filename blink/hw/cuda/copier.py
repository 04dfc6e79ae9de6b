"""The copy engine: whole pieces of device memory through pinned staging, on a stream of their own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

from blink.hw.cuda.driver import Cuda

STAGING_BYTES = 8 << 20


class Copier:
    """Copies in both directions. They take effect in the order of the calls: the stream keeps it.

    `put` returns at once; `get` waits for what it reads. Neither waits for a running scheduler.
    """

    def __init__(self, cuda: Cuda) -> None:
        self._cuda, self.stream = cuda, cuda.stream()
        self._in, self._out = cuda.allocate_pinned(STAGING_BYTES), cuda.allocate_pinned(STAGING_BYTES)
        self._next = 0

    def put(self, target: int, data: bytes) -> None:
        """Host to device."""
        for start in range(0, len(data), STAGING_BYTES):
            piece = data[start : start + STAGING_BYTES]
            if self._next + len(piece) > STAGING_BYTES:
                self._cuda.wait(self.stream)  # what is staged from the beginning on has left
                self._next = 0
            staged = self._in + self._next
            ctypes.memmove(staged, piece, len(piece))
            self._cuda.copy_in(target + start, staged, len(piece), self.stream)
            self._next += -(-len(piece) // 64) * 64

    def get(self, source: int, size_bytes: int) -> bytes:
        """Device to host."""
        return self.gather([(source, size_bytes)])

    def gather(self, pieces: Iterable[tuple[int, int]]) -> bytes:
        """(address, bytes) of the device, one after another, with one wait for as many as the staging holds."""
        found, used = [], 0
        for piece, total in pieces:
            start = 0
            while start < total:
                size = min(total - start, STAGING_BYTES - used)
                self._cuda.copy_out(self._out + used, piece + start, size, self.stream)
                start, used = start + size, used + size
                if used == STAGING_BYTES:
                    found.append(self._arrived(used))
                    used = 0
        if used:
            found.append(self._arrived(used))
        return b"".join(found) if len(found) != 1 else found[0]

    def _arrived(self, size_bytes: int) -> bytes:
        self._cuda.wait(self.stream)
        return ctypes.string_at(self._out, size_bytes)

    def close(self) -> None:
        """Wait for what is under way and give the memory back."""
        self._cuda.wait(self.stream)
        self._cuda.close_stream(self.stream)
        self._cuda.free_pinned(self._in)
        self._cuda.free_pinned(self._out)
