"""What a restarted frontend does first (E2), and how it learns that the scheduler is gone. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blink.common.layout import (
    DESCRIPTOR_STRIDE_BYTES,
    EPOCH_MODULUS,
    FRONTEND_EPOCH_OFFSET_BYTES,
    GENERATION_MASK,
    GENERATION_SHIFT,
    STATE_MASK,
    STATUS_STRIDE_BYTES,
    U64,
    Buffer,
    Ctl,
    descriptor_is_whole,
    unpack_descriptor,
)
from blink.common.request import UNKNOWN
from blink.common.states import SlotState
from blink.frontend.operations import Region, Write
from blink.frontend.prompt_area import PromptArea
from blink.frontend.slot_tracker import SlotTracker


@dataclass(frozen=True, slots=True)
class Left:
    """A slot that the old frontend left behind.

    Where its descriptor is not whole, `request_id` is -1 and `prompt_offset` None: nobody can tell.
    """

    slot: int
    generation: int
    request_id: int
    state: SlotState
    prompt_offset: int | None


class Recovery:
    """The slots of a dead frontend, until each of them is free again.

    The order of E2 is the caller's: destroy the old connection, post `begin`'s WRITE on the new one, then READ status
    and descriptor arrays once and `adopt` them. Until then every slot counts as recovering, so nothing can be
    submitted. Afterwards an empty slot is free, with the generation that stands on the wire, and every other one
    recovers: a completed one is recycled at once, the gpu's fence completes the rest. `completed` finds those in later
    status READs; `recycle` is T10 and has its guard: no READ of the slot may be in flight.
    """

    def __init__(self, slots: SlotTracker, prompts: PromptArea, header_epoch: int) -> None:
        """`header_epoch` is the epoch in the ring header, READ on the new connection; slots are those of `slots`."""
        self.epoch = header_epoch + 1
        self._slots, self._prompts = slots, prompts
        self._left: dict[int, Left] = {}
        self._began = self.adopted = False
        for slot in slots.slots:
            slots.recover(slot, slots.generation(slot), empty=False)

    def begin(self) -> Write:
        """The WRITE of the new epoch: from then on the gpu fences whatever the old frontend submitted."""
        self._began = True
        return Write(Region.HEADER, FRONTEND_EPOCH_OFFSET_BYTES, 8, self.epoch.to_bytes(8, "little"))

    def adopt(self, words: U64, descriptors: Buffer) -> list[Left]:
        """Classify every slot by one READ of the ring that was posted after the epoch; what was left behind.

        `words` are the (SLOT_COUNT,) control words, `descriptors` the descriptor array; both belong to one moment for
        each slot. Raises ValueError out of order: before `begin`, or twice.
        """
        if not self._began or self.adopted:
            raise ValueError("E2: the epoch is written first, then the ring is read, once")
        self.adopted = True
        for slot in self._slots.slots:
            word = int(words[slot])
            state = SlotState(word & STATE_MASK)
            generation = word >> GENERATION_SHIFT & GENERATION_MASK
            self._slots.recover(slot, generation, empty=state == SlotState.EMPTY)
            if state != SlotState.EMPTY:
                self._left[slot] = _left(slot, generation, state, descriptors)
        self._keep_prompts(descriptors)
        return list(self._left.values())

    def _keep_prompts(self, descriptors: Buffer) -> None:
        """A prefill may still be reading an old prompt: its place is kept until its slot is recycled (I6).

        Where a descriptor is damaged, its prompt may lie anywhere, and no new one is placed before that slot is free.
        """
        kept = [left.slot for left in self._left.values() if left.prompt_offset is not None]
        ranges = [unpack_descriptor(descriptors, slot * DESCRIPTOR_STRIDE_BYTES) for slot in kept]
        for descriptor in sorted(ranges, key=lambda d: d.prompt_offset):
            self._prompts.occupy(descriptor.prompt_offset, descriptor.prompt_tokens)
        for _ in range(len(self._left) - len(kept)):
            self._prompts.occupy_somewhere()

    @property
    def waiting_count(self) -> int:
        """Slots that are not yet recycled."""
        return len(self._left)

    @property
    def done(self) -> bool:
        """Whether the ring was adopted and every slot of the old frontend is free again."""
        return self.adopted and not self._left

    def completed(self, words: U64) -> list[Left]:
        """Recovering slots that these (SLOT_COUNT,) control words show completed: to be recycled."""
        slots = np.fromiter(self._left, np.int64, len(self._left))
        word = words[slots]
        ended = (word & np.uint64(STATE_MASK)) == SlotState.DECODE_COMPLETED
        generation = (word >> np.uint64(GENERATION_SHIFT) & np.uint64(GENERATION_MASK)).astype(np.int64)
        found = zip(slots[ended].tolist(), generation[ended].tolist(), strict=True)
        return [self._left[slot] for slot, seen in found if self._left[slot].generation == seen]

    def recycle(self, slot: int) -> Write:
        """Free a recovering slot whose completion was seen: the WRITE of its empty control word, generation + 1."""
        left = self._left.pop(slot)
        if left.prompt_offset is not None:
            self._prompts.free(left.prompt_offset)
        else:
            self._prompts.free_somewhere()
        ctl = Ctl(SlotState.EMPTY, epoch=self.epoch % EPOCH_MODULUS, generation=self._slots.release(slot))
        return Write(Region.STATUS, slot * STATUS_STRIDE_BYTES, 8, ctl.pack().to_bytes(8, "little"))


def _left(slot: int, generation: int, state: SlotState, descriptors: Buffer) -> Left:
    """A descriptor that is not whole is believed in nothing."""
    offset = slot * DESCRIPTOR_STRIDE_BYTES
    descriptor = unpack_descriptor(descriptors, offset)
    if not descriptor_is_whole(descriptors, offset):
        return Left(slot, generation, UNKNOWN, state, None)
    return Left(slot, generation, descriptor.request_id, state, descriptor.prompt_offset)


class HeartbeatWatch:
    """Declares the ring dead once the scheduler's heartbeat has stood still for `bound_ns` of watched time.

    The scheduler beats at every step boundary and while a graph runs, so a heart that stands still means a scheduler
    that is gone. Silence counts only as far as it was watched: what lies between two looks counts as at most a quarter
    of the bound, so that a frontend that was itself held up does not take its own pause for the scheduler's.
    """

    def __init__(self, bound_ns: int) -> None:
        if bound_ns <= 0:
            raise ValueError(f"a heartbeat bound of {bound_ns} ns is no bound")
        self._bound_ns, self._look_max_ns = bound_ns, max(1, bound_ns // 4)
        self._last: int | None = None
        self._looked_ns = 0
        self.silence_ns = 0
        self.dead = False

    def look(self, heartbeat: int, now_ns: int) -> bool:
        """What a READ of the heartbeat brought at `now_ns`; False once the ring is dead, and for ever after."""
        if heartbeat != self._last:
            self._last, self.silence_ns = heartbeat, 0
        else:
            self.silence_ns += min(now_ns - self._looked_ns, self._look_max_ns)
        self._looked_ns = now_ns
        self.dead = self.dead or self.silence_ns >= self._bound_ns
        return not self.dead

    def rest(self) -> None:
        """Nobody waits for the scheduler now: the next look begins anew."""
        self._last = None
