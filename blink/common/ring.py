"""The ring over real bytes: what both sides do to its memory, with every move checked against the table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from blink.common import layout
from blink.common.layout import Buffer, Ctl, Descriptor
from blink.common.states import Actor, SlotState, SlotStatus
from blink.common.transitions import IllegalTransitionError, require_legal

Slots = NDArray[np.int64]
_STATE_MASK = np.uint64(layout.STATE_MASK)
_GENERATION_SHIFT = np.uint64(layout.GENERATION_SHIFT)
_GENERATION_MASK = np.uint64(layout.GENERATION_MASK)
# Members by name of their own: looking one up in its class costs as much as the rest of a store.
_FRONTEND, _GPU = Actor.FRONTEND, Actor.GPU
_NONE, _DECODING = SlotStatus.NONE, SlotState.DECODE_PROCESSING
_COMPLETES = SlotState.DECODE_COMPLETED - SlotState.DECODE_PROCESSING


class Ring:
    """Header, status array and descriptor array in three writable buffers of any kind.

    The frontend's side stores bytes as its WRITEs arrive; the gpu's side moves slots by word. Both refuse an illegal
    (from, to, actor) with IllegalTransitionError before a byte changes.
    """

    def __init__(self, status: Buffer, descriptors: Buffer, header: Buffer) -> None:
        for name, buffer, size in (
            ("status array", status, layout.STATUS_ARRAY_BYTES),
            ("descriptor array", descriptors, layout.DESCRIPTOR_ARRAY_BYTES),
            ("ring header", header, layout.HEADER_BYTES),
        ):
            if memoryview(buffer).nbytes != size:
                raise ValueError(f"the {name} has {memoryview(buffer).nbytes} bytes, the layout says {size}")
        self.header = memoryview(header).cast("B")
        self.descriptors = memoryview(descriptors).cast("B")
        self._status = memoryview(status).cast("B")
        self._words = self._status.cast("Q")  # even: ctl, odd: pulse
        self.ctl = layout.ctl_words(status)
        self.pulse = np.frombuffer(status, dtype="<u8")[1::2]

    @classmethod
    def in_memory(cls, boot_id: int, epoch: int = 0) -> Ring:
        """A fresh ring, all slots empty, in buffers of its own."""
        status, descriptors = bytearray(layout.STATUS_ARRAY_BYTES), bytearray(layout.DESCRIPTOR_ARRAY_BYTES)
        ring = cls(status, descriptors, bytearray(layout.header_words(boot_id, epoch)))
        layout.cancel_words(descriptors)[:] = layout.CANCEL_NONE
        ring.ctl[:] = Ctl(SlotState.EMPTY, epoch=epoch % layout.EPOCH_MODULUS).pack()
        return ring

    # --- the frontend's side ---

    def write_status(self, offset_bytes: int, data: bytes) -> list[int]:
        """A WRITE into the status array arrives; returns the slots whose control word it covers."""
        slots = list(range(offset_bytes // 16, -(-(offset_bytes + len(data)) // 16)))
        for slot in slots:
            start = slot * layout.STATUS_STRIDE_BYTES - offset_bytes
            after = data[start] & layout.STATE_MASK
            require_legal(self.state(slot), after, _FRONTEND)
        self._status[offset_bytes : offset_bytes + len(data)] = data
        return slots

    def write_descriptors(self, offset_bytes: int, data: bytes) -> None:
        """A WRITE into the descriptor array arrives (descriptors, or one cancel word)."""
        self.descriptors[offset_bytes : offset_bytes + len(data)] = data

    def write_header(self, offset_bytes: int, data: bytes) -> None:
        """A WRITE into the ring header arrives (the frontend's epoch)."""
        self.header[offset_bytes : offset_bytes + len(data)] = data

    # --- the gpu's side ---

    @property
    def epoch(self) -> int:
        """The frontend's epoch as the header says it, modulo EPOCH_MODULUS: what control words carry."""
        return layout.read_word(self.header, layout.FRONTEND_EPOCH_OFFSET_BYTES) % layout.EPOCH_MODULUS

    def word(self, slot: int) -> int:
        """The slot's control word."""
        return self._words[2 * slot]

    def generation(self, slot: int) -> int:
        """The generation in a slot's control word."""
        return self.word(slot) >> layout.GENERATION_SHIFT & layout.GENERATION_MASK

    def slot_epoch(self, slot: int) -> int:
        """The epoch in a slot's control word: of the frontend that submitted it."""
        return self.word(slot) >> layout.EPOCH_SHIFT & layout.EPOCH_MASK

    def state(self, slot: int) -> int:
        """The slot's state."""
        return self._words[2 * slot] & layout.STATE_MASK

    def descriptor(self, slot: int) -> Descriptor:
        """The slot's descriptor, whatever its checksum says."""
        return layout.unpack_descriptor(self.descriptors, slot * layout.DESCRIPTOR_STRIDE_BYTES)

    def descriptor_is_whole(self, slot: int) -> bool:
        """Whether the checksum of the slot's descriptor is right."""
        return layout.descriptor_is_whole(self.descriptors, slot * layout.DESCRIPTOR_STRIDE_BYTES)

    def cancelled_generation(self, slot: int) -> int:
        """The generation that the slot's cancel word names, GENERATION_NONE if none."""
        offset = slot * layout.DESCRIPTOR_STRIDE_BYTES + layout.CANCEL_OFFSET_BYTES
        return layout.cancel_generation(layout.read_word(self.descriptors, offset))

    def compare_and_swap(self, slot: int, expected: int, to: SlotState) -> bool:
        """Claim: replace the whole control word if it still is `expected`; False if it is not."""
        if self._words[2 * slot] != expected:
            return False
        require_legal(expected & layout.STATE_MASK, to, _GPU)
        self._words[2 * slot] = expected & ~layout.STATE_MASK | to
        return True

    def move(self, slot: int, to: SlotState, new_tokens: int = 0, status: SlotStatus = _NONE) -> int:
        """One store of the control word: state, status and token count together. Returns the new token count."""
        word = self._words[2 * slot]
        require_legal(word & layout.STATE_MASK, to, _GPU)
        word = word & ~(layout.STATE_MASK | layout.STATUS_MASK << layout.STATUS_SHIFT)
        word += to | status << layout.STATUS_SHIFT | new_tokens << layout.TOKEN_COUNT_SHIFT
        self._words[2 * slot] = word
        return word >> layout.TOKEN_COUNT_SHIFT & layout.TOKEN_COUNT_MASK

    def move_all(self, slots: Slots, source: SlotState, to: SlotState) -> None:
        """Pause or resume a batch: every one of `slots` is in `source` and goes to `to`."""
        require_legal(source, to, _GPU)
        words = self._all_in(slots, source)
        self.ctl[slots] = words ^ np.uint64(source ^ to)

    def add_tokens(
        self, slots: Slots, steps: int, step: int, ended: Mapping[int, SlotStatus] = MappingProxyType({})
    ) -> None:
        """`steps` tokens more in every one of `slots`, all decoding; `step` is the scheduler's step number (pulse).

        `ended` maps positions in `slots` to the status with which their last token completes them, in the same store.
        """
        words = self._all_in(slots, _DECODING)
        pulse = words >> _GENERATION_SHIFT
        pulse &= _GENERATION_MASK
        pulse |= np.uint64((step & layout.PULSE_FIELDS[1].mask) << layout.PULSE_FIELDS[1].shift)
        self.pulse[slots] = pulse
        words += np.uint64(steps << layout.TOKEN_COUNT_SHIFT)
        if ended:
            require_legal(_DECODING, SlotState.DECODE_COMPLETED, _GPU)
            for position, status in ended.items():
                words[position] += np.uint64(_COMPLETES + (status << layout.STATUS_SHIFT))
        self.ctl[slots] = words

    def _all_in(self, slots: Slots, state: SlotState) -> layout.U64:
        words = self.ctl[slots]
        wrong = (words & _STATE_MASK) != state
        if np.count_nonzero(wrong):
            slot = int(slots[wrong][0])
            raise IllegalTransitionError(
                f"I1: slot {slot} is {SlotState(self.state(slot)).label}, its batch is {state.label}"
            )
        return words
