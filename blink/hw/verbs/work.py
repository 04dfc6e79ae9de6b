"""Bookkeeping of work requests: how many are under way, which are done, what memory they still need. No verbs here."""

from __future__ import annotations

from collections import deque


class WorkPool:
    """Numbers work requests from 0 and holds at most `limit` of them until they are done.

    A completion queue of `limit` entries can therefore never overflow: every request leaves at most one entry, with or
    without being signalled (a request that is not signalled leaves one if it fails). A reliable connection completes in
    the order of posting, so the completion of one request retires all before it.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"a pool of {limit} work requests")
        self.limit = limit
        self.taken = 0  # requests that were numbered so far
        self.retired = 0  # requests that are done: all numbers below

    @property
    def outstanding(self) -> int:
        """Requests that were numbered and are not done."""
        return self.taken - self.retired

    @property
    def free(self) -> int:
        """Requests that may be numbered now."""
        return self.limit - self.outstanding

    def take(self) -> int:
        """The number of the next request. Raises RuntimeError if the pool is empty: that would be an overflow."""
        if not self.free:
            raise RuntimeError(f"all {self.limit} work requests are under way")
        self.taken += 1
        return self.taken - 1

    def retire(self, number: int) -> None:
        """The request of this number is done, and all before it. Raises ValueError for one that is not under way."""
        if not self.retired <= number < self.taken:
            raise ValueError(f"work request {number} is not under way ({self.retired}..{self.taken - 1} are)")
        self.retired = number + 1


class StagingRing:
    """Places in `size_bytes` of registered memory for what WRITEs carry, given back in order as requests are done."""

    ALIGNMENT = 64

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._head = self._used = 0
        self._held: deque[tuple[int, int]] = deque()  # request number, bytes that come back with it

    @property
    def piece_max(self) -> int:
        """The largest piece that always finds a place once everything else is done."""
        return self.size_bytes

    def place(self, size_bytes: int, number: int) -> int | None:
        """An offset for a request's data; None if there is no room before earlier requests are done."""
        size = -(-size_bytes // self.ALIGNMENT) * self.ALIGNMENT
        if not self._used:
            self._head = 0
        skip = self.size_bytes - self._head if self._head + size > self.size_bytes else 0
        if self._used + skip + size > self.size_bytes:
            return None
        offset = 0 if skip else self._head
        self._head = (offset + size) % self.size_bytes
        self._used += skip + size
        self._held.append((number, skip + size))
        return offset

    def release(self, retired: int) -> None:
        """All requests with numbers below `retired` are done."""
        while self._held and self._held[0][0] < retired:
            self._used -= self._held.popleft()[1]
