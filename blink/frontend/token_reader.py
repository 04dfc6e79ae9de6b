"""Fetching tokens: one READ of the status array a cycle, then one READ of tokens for each slot with news."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blink.common.layout import (
    GENERATION_MASK,
    GENERATION_SHIFT,
    STATE_MASK,
    STATUS_MASK,
    STATUS_SHIFT,
    TOKEN_COUNT_MASK,
    TOKEN_COUNT_SHIFT,
    U64,
)
from blink.common.states import SLOT_COUNT, SlotState

Slots = NDArray[np.int64]
NO_GENERATION = -1
_STATE_MASK, _COMPLETED = np.uint64(STATE_MASK), np.uint64(SlotState.DECODE_COMPLETED)
_GENERATION_SHIFT, _GENERATION_MASK = np.uint64(GENERATION_SHIFT), np.uint64(GENERATION_MASK)
_COUNT_SHIFT, _COUNT_MASK = np.uint64(TOKEN_COUNT_SHIFT), np.uint64(TOKEN_COUNT_MASK)
_UNSEEN = np.uint64(2**64 - 1)  # no control word looks like this: its reserved bits are set


@dataclass(frozen=True, slots=True)
class News:
    """What one status READ showed, as parallel (n,) arrays: urgent slots (no token handed over yet) come first.

    Tokens token_from .. token_count - 1 of a slot are to be READ now. `status` is the SlotStatus of a slot that is
    `decode_completed`, and 0 of any other.
    """

    slots: Slots
    urgent_count: int
    token_from: Slots
    token_count: Slots
    completed: NDArray[np.bool_]
    status: Slots


class PollSchedule:
    """When the next status READ is posted: adaptive, between two bounds.

    The gap after a cycle with news is `gap_min_ns`; it doubles after each idle cycle, up to `gap_max_ns`. Because an
    idle cycle always takes `cycle_ns`, the posting times after a cycle with news are a fixed sequence of offsets, and
    the first READ that can see an event is computed, not stepped.
    """

    def __init__(self, gap_min_ns: int, gap_max_ns: int, cycle_ns: int) -> None:
        if not 0 < gap_min_ns <= gap_max_ns or cycle_ns <= 0:
            raise ValueError(f"poll gaps {gap_min_ns}..{gap_max_ns} ns and a cycle of {cycle_ns} ns are no schedule")
        self.cycle_ns = cycle_ns
        self._gap_max_ns = gap_max_ns
        self._offsets = [gap_min_ns]  # of the n-th posting, counted from the end of the cycle with news
        self._gaps = [gap_min_ns]
        while self._gaps[-1] < gap_max_ns:
            self._gaps.append(min(2 * self._gaps[-1], gap_max_ns))
            self._offsets.append(self._offsets[-1] + cycle_ns + self._gaps[-1])
        self._last = self._offsets[-1]
        self._period = cycle_ns + gap_max_ns

    def gap_ns(self, idle_cycles: int) -> int:
        """The gap before the next posting after so many idle cycles in a row."""
        return self._gaps[min(idle_cycles, len(self._gaps) - 1)]

    def first_at_or_after(self, offset_ns: int) -> tuple[int, int]:
        """(offset, idle cycles before it) of the first posting at least `offset_ns` after the last cycle with news."""
        if offset_ns <= self._last:
            index = bisect_left(self._offsets, offset_ns)
            return self._offsets[index], index
        extra = -(-(offset_ns - self._last) // self._period)
        return self._last + extra * self._period, len(self._offsets) - 1 + extra


class TokenReader:
    """Cursors over all slots: which generation is watched and how many of its tokens were handed over.

    Work in one cycle is bounded: at most `reads_max` slots, urgent ones first, the rest in circular order from where
    the last bounded cycle stopped; what is left over is found again by the next status READ.
    """

    def __init__(self, reads_max: int) -> None:
        self._reads_max = reads_max
        self._generation = np.full(SLOT_COUNT, NO_GENERATION, np.int64)
        self._count = np.zeros(SLOT_COUNT, np.int64)
        self._last = np.full(SLOT_COUNT, _UNSEEN, np.uint64)
        self._rotor = 0
        self.watched_count = 0
        self.deferred_count = 0  # slots with news that the last cycle left for the next

    def watch(self, slot: int, generation: int) -> None:
        """Expect tokens of a slot that was just submitted."""
        self._generation[slot] = generation
        self._count[slot] = 0
        self.watched_count += 1

    def forget(self, slot: int) -> None:
        """Stop watching a slot: it is about to be recycled."""
        self._generation[slot] = NO_GENERATION
        self.watched_count -= 1

    def handed_over(self, slot: int) -> int:
        """Tokens of the slot's current request that were handed over."""
        return int(self._count[slot])

    def on_status(self, words: U64) -> News | None:
        """Compare a (SLOT_COUNT,) snapshot of control words with the cursors; None if nothing is new.

        Only words that differ from the last snapshot are looked at. A word of another generation than the watched one
        is stale or foreign and says nothing.
        """
        slots = np.flatnonzero(words != self._last)
        if not slots.size:
            return None
        word = words[slots]
        self._last[slots] = word
        generation = (word >> _GENERATION_SHIFT & _GENERATION_MASK).astype(np.int64)
        count = (word >> _COUNT_SHIFT & _COUNT_MASK).astype(np.int64)
        completed = (word & _STATE_MASK) == _COMPLETED
        fresh = (generation == self._generation[slots]) & ((count > self._count[slots]) | completed)
        if not fresh.any():
            return None
        chosen = np.flatnonzero(fresh)
        order, urgent_count = self._bounded(slots[chosen])
        chosen = chosen[order]
        slots = slots[chosen]
        status = (word[chosen] >> np.uint64(STATUS_SHIFT) & np.uint64(STATUS_MASK)).astype(np.int64)
        return News(slots, urgent_count, self._count[slots], count[chosen], completed[chosen], status)

    def _bounded(self, slots: Slots) -> tuple[Slots, int]:
        """Positions of `slots` in reading order, at most `reads_max`, and how many of them are urgent."""
        urgent = self._count[slots] == 0
        if slots.size <= self._reads_max and urgent.all():
            self.deferred_count = 0
            return np.arange(slots.size), slots.size
        first, rest = np.flatnonzero(urgent), np.flatnonzero(~urgent)
        self.deferred_count = max(0, slots.size - self._reads_max)
        if slots.size > self._reads_max:
            split = int(np.searchsorted(slots[rest], self._rotor))
            rest = np.concatenate((rest[split:], rest[:split]))
            order = np.concatenate((first, rest))
            kept, left = order[: self._reads_max], order[self._reads_max :]
            self._last[slots[left]] = _UNSEEN  # found again by the next snapshot
            if kept.size > first.size:
                self._rotor = int(slots[kept[-1]]) + 1
            return kept, min(int(first.size), int(kept.size))
        return np.concatenate((first, rest)), int(first.size)

    def on_tokens(self, news: News) -> None:
        """The READs of the tokens that `news` asked for have completed: move the cursors."""
        self._count[news.slots] = news.token_count

    def on_steps(self, slots: Slots, steps: int) -> None:
        """`steps` cycles in a row each handed over one token of each of `slots`.

        The same as that many pairs of `on_status` and `on_tokens` when every cycle sees one step of an unchanged batch
        and the bound on work is not reached.
        """
        self._count[slots] += steps
        self._last[slots] += np.uint64(steps << TOKEN_COUNT_SHIFT)  # what the next snapshot would show of them

    def fits_in_one_cycle(self, slot_count: int) -> bool:
        """Whether that many slots with news stay within the bound on work."""
        return slot_count <= self._reads_max
