"""The pool of KV blocks against a plain list of blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.sim.engines.blocks import BlockPool


class Plain:
    """Every block by itself: a queue of (owner, index) contents, None where nobody will ask."""

    def __init__(self, total: int) -> None:
        self.queue: list[tuple[int, int] | None] = [None] * total

    def take(self, count: int) -> None:
        del self.queue[:count]

    def give(self, count: int) -> None:
        self.queue += [None] * count

    def give_cached(self, owner: int, count: int, filled: int) -> None:
        self.forget(owner)
        self.queue += [None] * (count - filled) + [(owner, index) for index in reversed(range(filled))]

    def cached(self, owner: int) -> int:
        count = 0
        while (owner, count) in self.queue:
            count += 1
        return count

    def reclaim(self, owner: int, count: int) -> None:
        for index in range(count):
            self.queue.remove((owner, index))
        self.forget(owner)

    def forget(self, owner: int) -> None:
        self.queue = [None if entry and entry[0] == owner else entry for entry in self.queue]


operations = st.lists(
    st.tuples(st.sampled_from(["take", "give", "preempt", "resume"]), st.integers(0, 4), st.integers(0, 9)),
    max_size=60,
)


@given(operations)
def test_the_pool_counts_what_a_queue_of_blocks_holds(steps: list[tuple[str, int, int]]) -> None:
    """A preempted owner finds exactly its first blocks that nobody took since."""
    pool, plain, held = BlockPool(30, caching=True), Plain(30), dict.fromkeys(range(5), 0)
    for verb, owner, count in steps:
        if verb == "take" and count <= pool.free:
            pool.take(count)
            plain.take(count)
            held[owner] += count
        elif verb == "give":
            pool.give(held[owner])
            plain.give(held[owner])
            held[owner] = 0
        elif verb == "preempt" and held[owner]:
            filled = min(count, held[owner])
            pool.give_cached(owner, held[owner], filled)
            plain.give_cached(owner, held[owner], filled)
            held[owner] = 0
        elif verb == "resume":
            found = min(count, pool.cached(owner))
            if found:
                pool.reclaim(owner, found)
                plain.reclaim(owner, found)
                held[owner] += found
        assert pool.free == len(plain.queue)
        assert pool.used == sum(held.values())
        # What one cannot find from its first block on is lost, whatever else of it is left.
        assert [pool.cached(who) for who in held] == [plain.cached(who) for who in held]


def test_without_caching_only_numbers_count() -> None:
    pool = BlockPool(10)
    pool.take(7)
    pool.give_cached(1, 7, 7)
    assert (pool.free, pool.used, pool.cached(1)) == (10, 0, 0)


def test_more_than_there_is_cannot_be_taken() -> None:
    pool = BlockPool(3, caching=True)
    with pytest.raises(ValueError, match="4 KV blocks wanted, 3 free"):
        pool.take(4)
    pool.take(2)
    pool.give_cached(5, 2, 2)
    with pytest.raises(ValueError, match="3 cached KV blocks wanted, 2 left"):
        pool.reclaim(5, 3)
