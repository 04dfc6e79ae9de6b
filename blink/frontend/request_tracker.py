"""Which request lives in which slot, from submission to recycling."""

from __future__ import annotations

from dataclasses import dataclass

from blink.common.layout import (
    CANCEL_OFFSET_BYTES,
    DESCRIPTOR_STRIDE_BYTES,
    STATUS_STRIDE_BYTES,
    Ctl,
    Descriptor,
    pack_cancel,
)
from blink.common.states import SlotState
from blink.frontend.operations import Region, Write
from blink.frontend.prompt_area import PromptArea
from blink.frontend.slot_tracker import SlotTracker


@dataclass(slots=True)
class InFlight:
    """A request in the ring."""

    request_id: int
    slot: int
    generation: int
    prompt_offset: int
    cancelled_ns: int | None = None


class RequestTracker:
    """The requests in the ring by slot and by id; cancels them (E1) and recycles their slots (T10)."""

    def __init__(self, slots: SlotTracker, prompts: PromptArea, *, epoch: int = 0) -> None:
        self._slots = slots
        self._prompts = prompts
        self._epoch = epoch
        self.by_slot: dict[int, InFlight] = {}
        self._by_id: dict[int, InFlight] = {}

    def __len__(self) -> int:
        return len(self.by_slot)

    def submitted(self, slot: int, descriptor: Descriptor) -> InFlight:
        """Remember a request whose WRITEs were posted."""
        entry = InFlight(descriptor.request_id, slot, descriptor.generation, descriptor.prompt_offset)
        self.by_slot[slot] = entry
        self._by_id[entry.request_id] = entry
        return entry

    def cancel(self, request_id: int, now_ns: int) -> tuple[InFlight, Write] | None:
        """The WRITE of the cancel word of a request in the ring; None if it is not there or was cancelled already."""
        entry = self._by_id.get(request_id)
        if entry is None or entry.cancelled_ns is not None:
            return None
        entry.cancelled_ns = now_ns
        word = pack_cancel(entry.generation).to_bytes(8, "little")
        offset = entry.slot * DESCRIPTOR_STRIDE_BYTES + CANCEL_OFFSET_BYTES
        return entry, Write(Region.DESCRIPTOR, offset, len(word), word)

    def recycle(self, slot: int) -> Write:
        """Free a completed slot whose tokens are drained: the WRITE of its empty control word, generation + 1.

        The caller has waited for the completion of every READ of the slot (a WRITE may overtake a READ at the
        responder). The slot may be acquired again at once: its next WRITEs follow this one on the same connection.
        """
        entry = self.by_slot.pop(slot)
        del self._by_id[entry.request_id]
        self._prompts.free(entry.prompt_offset)
        word = Ctl(SlotState.EMPTY, epoch=self._epoch % 256, generation=self._slots.release(slot)).pack()
        return Write(Region.STATUS, slot * STATUS_STRIDE_BYTES, 8, word.to_bytes(8, "little"))
