"""The ring of another host as the frontend's classes know it (blink.hw.ring.Ring), by one-sided verbs."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common.layout import (
    DESCRIPTOR_ARRAY_BYTES,
    FRONTEND_EPOCH_OFFSET_BYTES,
    HEADER_BYTES,
    HEARTBEAT_OFFSET_BYTES,
    STATUS_ARRAY_BYTES,
    U64,
    read_word,
)
from blink.common.states import SLOT_COUNT
from blink.frontend.operations import TOKEN_BYTES, Region, Write
from blink.hw.native.settings import NativeSettings
from blink.hw.ring import Records, Tokens
from blink.hw.verbs.attach import Attachment, Door
from blink.hw.verbs.device import DeviceChoice
from blink.hw.verbs.failure import ConnectionFailedError
from blink.hw.verbs.trace_tail import TraceTail

DRAIN_GAP_NS = 5_000_000
"""Between two looks for trace records: each is a READ, and the ring of records holds far more."""
_AREAS = {
    Region.STATUS: "status", Region.DESCRIPTOR: "descriptors", Region.PROMPT: "prompts", Region.HEADER: "header"
}  # fmt: skip
_RECORDS_A_DRAIN = 1 << 15
_AT_ONCE = (Region.STATUS, Region.HEADER)


class VerbsRing:
    """WRITEs and READs of a frontend over an attachment.

    What T1 and T10 of docs/protocol.md ask of the order is kept here:

    V0. WRITEs are posted in the order of the calls, on one queue pair whose peer's memory has no relaxed ordering, so
        the control word lands after its prompt and descriptor. Pairs with A0, the scheduler's acquire load
        (kernels/include/blink/scan.h).
    V1. A READ of tokens is posted only after the completion of the READ of control words that told of them. Pairs with
        R1, the scheduler's release store (kernels/include/blink/publish.h).
    V2. `read_status` and `read_tokens` return with their READs completed, and none is posted before the frontend has
        recycled what they showed, so that WRITE is posted after every READ of the slot is done. Pairs with the
        responder, which may let a WRITE overtake a READ.
    """

    def __init__(self, attachment: Attachment, settings: NativeSettings, tail: TraceTail | None = None) -> None:
        """`tail`: how far an earlier connection to the same ring has taken the trace's records."""
        self.attachment, self.settings = attachment, settings
        self.backend = f"{attachment.hello.backend}-rdma"
        self._channel = attachment.channel
        self._regions = {region: attachment.region(name) for region, name in _AREAS.items()}
        self._outputs, self._eos = attachment.region("outputs"), attachment.region("eos")
        self._state, self._trace = attachment.region("state"), attachment.region("trace")
        self._trace_tail = attachment.region("trace_tail")
        self._state_dtype = attachment.hello.structures["state"]
        self._record_dtype = attachment.hello.structures["record"]
        self._ends = np.zeros(SLOT_COUNT, np.uint32)
        self._ends_first, self._ends_end = SLOT_COUNT, 0  # changed and not yet written
        self.tail = tail
        self._status_read: int | None = None  # under way, or complete and not yet taken
        self.drain_gap_ns = DRAIN_GAP_NS
        self._drained_ns = 0

    def close(self) -> None:
        """Let the ring go."""
        self.attachment.close()

    # --- the frontend's operations ---

    def write(self, write: Write) -> None:
        """Post a WRITE, or gather it: prompts and descriptors go with the control word that publishes them (V0).

        It returns before the WRITE has taken effect. What fails shows in a later call.
        """
        if write.data is None:
            raise ValueError("a real ring needs the bytes of every WRITE")
        self._write_ends()
        # V0 pairs with A0: the order of these calls is the order in which the ring's memory changes.
        self._channel.write(self._regions[write.region], write.offset_bytes, bytes(write.data))
        if write.region in _AT_ONCE or not (write.holds_descriptors or write.region is Region.PROMPT):
            self._channel.post()
        if write.region is Region.HEADER:
            self._channel.flush()  # E2: the epoch is in the ring before anything is READ

    def look_for_status(self, spin_ns: int) -> bool:
        """Post the READ of the status array unless it is under way; whether it is complete after at most so long.

        Whoever must not wait asks again later; `read_status` then has it at once.
        """
        if self._status_read is None:
            self._post_status_read()
        assert self._status_read is not None
        due_ns = time.monotonic_ns() + spin_ns
        while not self._channel.is_done(self._status_read):
            if time.monotonic_ns() > due_ns:
                return False
        return True

    def _post_status_read(self) -> None:
        channel = self._channel
        self._status_read = channel.read(self._regions[Region.STATUS], 0, STATUS_ARRAY_BYTES, channel.apart)
        channel.post()

    def read_status(self) -> U64:
        """One READ of the whole array; every second word is a control word. It may have been posted before."""
        if self._status_read is None:
            self._post_status_read()
        assert self._status_read is not None
        self._channel.wait(self._status_read)  # V2 pairs with the responder: recycling comes after this completion
        self._status_read = None
        data = self._channel.staged(self._channel.apart, STATUS_ARRAY_BYTES)
        return np.ascontiguousarray(np.frombuffer(data, np.uint64)[::2])

    def read_tokens(self, offset: NDArray[np.int64], count: NDArray[Any]) -> Tokens:
        """READs of ranges of the output area, one batch for as many as the staging holds."""
        # V1 pairs with R1: whoever knows these ranges has the completed READ of the control words that published them.
        channel, parts, used, last = self._channel, [], 0, None
        for first, many in zip(offset.tolist(), count.tolist(), strict=True):
            start, left = TOKEN_BYTES * first, TOKEN_BYTES * many
            while left:
                size = min(left, channel.read_bytes_max - used)
                last = channel.read(self._outputs, start, size, used)
                start, left, used = start + size, left - size, used + size
                if used == channel.read_bytes_max:
                    channel.wait(last)
                    parts.append(channel.staged(0, used))
                    used, last = 0, None
        if last is not None:
            channel.wait(last)
            parts.append(channel.staged(0, used))
        return np.frombuffer(b"".join(parts), np.uint32)

    def set_eos(self, slot: int, eos_at: int) -> None:
        """In force with the next WRITE."""
        self._ends[slot] = min(eos_at, (1 << 32) - 1)
        self._ends_first, self._ends_end = min(self._ends_first, slot), max(self._ends_end, slot + 1)

    def _write_ends(self) -> None:
        if self._ends_end:
            first, end = self._ends_first, self._ends_end
            self._channel.write(self._eos, TOKEN_BYTES * first, self._ends[first:end].tobytes())
            self._ends_first, self._ends_end = SLOT_COUNT, 0

    def flush(self) -> None:
        """Return once every WRITE so far has taken effect."""
        self._channel.flush()

    # --- recovery ---

    def _header(self) -> bytes:
        return self._channel.read_now(self._regions[Region.HEADER], 0, HEADER_BYTES)

    @property
    def header_epoch(self) -> int:
        """The frontend's epoch in the ring header."""
        return read_word(self._header(), FRONTEND_EPOCH_OFFSET_BYTES)

    @property
    def is_untouched(self) -> bool:
        """Whether no frontend has used the ring: no epoch, no slot ever taken, no trace record read.

        Those whose hello was answered too late for them have only connected. Their queue pairs are gone (V3).
        """
        return not self.header_epoch and not self.read_status().any() and not self._read_state()["trace_tail"]

    def heartbeat(self) -> int:
        """The scheduler's heartbeat."""
        return read_word(self._header(), HEARTBEAT_OFFSET_BYTES)

    def read_descriptors(self) -> bytes:
        """A READ of the descriptor array."""
        return self._channel.read_now(self._regions[Region.DESCRIPTOR], 0, DESCRIPTOR_ARRAY_BYTES)

    # --- beside the ring ---

    def state(self) -> dict[str, int]:
        """The scheduler's state by field, as it is now."""
        found = self._read_state()
        return {name: int(found[name]) for name in found.dtype.names or ()}

    def _read_state(self) -> np.void:
        data = self._channel.read_now(self._state, 0, self._state_dtype.itemsize)
        row: np.void = np.frombuffer(data, self._state_dtype)[0]
        return row

    def drain(self) -> Records:
        """Trace records that are complete and were not drained before; none within `drain_gap_ns` of the last look."""
        now = time.monotonic_ns()
        if now - self._drained_ns < self.drain_gap_ns:
            return np.zeros(0, self._record_dtype)
        self._drained_ns = now
        state = self._read_state()  # A4 pairs with R4: the records up to trace_head are whole
        if self.tail is None:
            capacity = self.attachment.hello.trace_capacity
            self.tail = TraceTail(capacity, self._record_dtype.itemsize, int(state["trace_tail"]))
        pieces = self.tail.pieces(int(state["trace_head"]), _RECORDS_A_DRAIN)
        data = b"".join(self._channel.read_now(self._trace, start, size) for start, size in pieces)
        if data:
            self.tail.advance(len(data))
            # R5 pairs with A5: the records are here before the scheduler may write over them.
            with contextlib.suppress(ConnectionFailedError):  # a failure shows in the next call; these records are here
                self._channel.write(self._trace_tail, 0, self.tail.taken.to_bytes(8, "little"))
                self._channel.post()
        return np.frombuffer(data, self._record_dtype)


def open_ring(door: Door, choice: DeviceChoice, settings: NativeSettings) -> VerbsRing:
    """The ring behind a door, by a device that is opened for it."""
    return VerbsRing(door.open_with(choice), settings)
