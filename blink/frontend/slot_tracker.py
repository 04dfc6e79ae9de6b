"""The frontend's own list of free slots: no READ of the ring precedes a submission."""

from __future__ import annotations

from blink.common.layout import next_generation
from blink.common.states import SLOT_COUNT

_IN_USE, _FREE, _RECOVERING = 0, 1, 2


class SlotTracker:
    """Local availability and generation of every slot, with a circular search that starts at a hint.

    A search looks for one byte from the hint on, so a burst gets neighbouring slots (their WRITEs coalesce) and the
    work is O(1) amortised: the hint moves past what was taken. Outside recovery the tracker never learns from the
    ring that a slot is empty; only `release` frees one. `first` and `count` bound the partition of this frontend.
    """

    def __init__(self, first: int = 0, count: int = SLOT_COUNT) -> None:
        if not 0 <= first < first + count <= SLOT_COUNT:
            raise ValueError(f"slots {first}..{first + count - 1} are not within 0..{SLOT_COUNT - 1}")
        self._first = first
        self._state = bytearray([_FREE]) * count
        self._generation = [0] * count
        self._hint = 0
        self.free_count = count
        self.recovering_count = 0

    @property
    def slot_count(self) -> int:
        """Slots of this frontend's partition."""
        return len(self._state)

    @property
    def slots(self) -> range:
        """The slots of this frontend's partition."""
        return range(self._first, self._first + len(self._state))

    @property
    def in_use_count(self) -> int:
        """Slots that hold a request: invariant I9 says that free + in use + recovering is the slot count."""
        return self.slot_count - self.free_count - self.recovering_count

    def acquire(self) -> int | None:
        """Take a free slot, the next one at or after the hint in circular order; None if there is none."""
        if not self.free_count:
            return None
        index = self._state.find(_FREE, self._hint)
        if index < 0:
            index = self._state.find(_FREE)
        self._state[index] = _IN_USE
        self.free_count -= 1
        self._hint = index + 1 if index + 1 < len(self._state) else 0
        return self._first + index

    def generation(self, slot: int) -> int:
        """The generation that the slot's current or next request carries."""
        return self._generation[slot - self._first]

    def release(self, slot: int) -> int:
        """Free a slot that was recycled and return its new generation. Raises ValueError if it was free."""
        index = slot - self._first
        if self._state[index] == _FREE:
            raise ValueError(f"slot {slot} is released twice")
        if self._state[index] == _RECOVERING:
            self.recovering_count -= 1
        self._state[index] = _FREE
        self._generation[index] = next_generation(self._generation[index])
        self.free_count += 1
        return self._generation[index]

    def recover(self, slot: int, generation: int, empty: bool) -> None:
        """After a restart of the frontend: adopt what one READ of the ring says of a slot.

        An empty slot is free; any other waits as `recovering` until its fence or completion lets it be released.
        """
        index = slot - self._first
        if self._state[index] == _FREE:
            self.free_count -= 1
        elif self._state[index] == _RECOVERING:
            self.recovering_count -= 1
        self._state[index] = _FREE if empty else _RECOVERING
        self._generation[index] = generation
        self.free_count += empty
        self.recovering_count += not empty
