"""KV blocks of a host-driven engine: counted, with the freed blocks in the order in which they will be taken again."""

from __future__ import annotations

from collections import OrderedDict


class BlockPool:
    """Free blocks as runs, oldest first; each run is what one release gave back.

    With `caching`, the blocks that a preempted sequence gave back keep their contents until somebody takes them. Its
    blocks went into the queue last block first, so what is left of its run is always its first blocks: a count says
    which. Without, only the number of free blocks matters.
    """

    __slots__ = ("_caching", "_runs", "_serial", "free", "total", "watermark")

    def __init__(self, total: int, watermark: int = 0, *, caching: bool = False) -> None:
        self.total = self.free = total
        self.watermark = watermark
        self._caching = caching
        self._runs: OrderedDict[int, int] = OrderedDict({-1: total})  # key of the owner's contents, or a negative one
        self._serial = -1

    @property
    def used(self) -> int:
        """Blocks that sequences hold."""
        return self.total - self.free

    def take(self, count: int) -> None:
        """Take the blocks that were freed longest ago. Raises ValueError if there are too few."""
        if count > self.free:
            raise ValueError(f"{count} KV blocks wanted, {self.free} free")
        self.free -= count
        if not self._caching:
            return
        runs = self._runs
        while count:
            key, size = next(iter(runs.items()))
            if size > count:
                runs[key] = size - count
                return
            del runs[key]
            count -= size

    def give(self, count: int) -> None:
        """Give back blocks whose contents nobody will ask for."""
        self.free += count
        if self._caching and count:
            self._append(self._nameless(), count)

    def give_cached(self, owner: int, count: int, filled: int) -> None:
        """Give back the blocks of a preempted sequence; the first `filled` of them are full and keep their contents."""
        self.free += count
        if not self._caching:
            return
        if count > filled:
            self._append(self._nameless(), count - filled)
        self._forget(owner)
        if filled:
            self._append(owner, filled)

    def cached(self, owner: int) -> int:
        """How many of its first blocks a preempted sequence would find again."""
        return self._runs.get(owner, 0) if self._caching else 0

    def reclaim(self, owner: int, count: int) -> None:
        """Take the first `count` blocks of a preempted sequence with their contents."""
        if not count:
            return
        left = self._runs[owner] - count
        if left < 0:
            raise ValueError(f"{count} cached KV blocks wanted, {self._runs[owner]} left")
        self.free -= count
        self._runs[owner] = left
        self._forget(owner)

    def _append(self, key: int, count: int) -> None:
        self._runs[key] = count

    def _nameless(self) -> int:
        self._serial -= 1
        return self._serial

    def _forget(self, owner: int) -> None:
        """Blocks of an owner that stay free no longer belong to anybody; they keep their place near the front."""
        left = self._runs.pop(owner, 0)
        if left:
            key = self._nameless()
            self._runs[key] = left
            self._runs.move_to_end(key, last=False)
