"""Where in a scheduler's ring of trace records the next ones stand."""

from __future__ import annotations


class TraceTail:
    """How far records were taken. `capacity` and sizes of records are those of the block."""

    def __init__(self, capacity: int, record_bytes: int, taken: int = 0) -> None:
        self._capacity, self._record_bytes, self.taken = capacity, record_bytes, taken

    def pieces(self, head: int, most: int) -> list[tuple[int, int]]:
        """(offset, size) in bytes of the records up to `head`, at most `most`: one piece, two where it wraps."""
        count = min(head - self.taken, most)
        first = self.taken % self._capacity
        whole = min(count, self._capacity - first)
        found = [(first, whole), (0, count - whole)]
        return [(start * self._record_bytes, size * self._record_bytes) for start, size in found if size]

    def advance(self, size_bytes: int) -> None:
        """So many bytes of records were taken."""
        self.taken += size_bytes // self._record_bytes
