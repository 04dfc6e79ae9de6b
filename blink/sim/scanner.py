"""The scan: what has become visible in the ring, and the line of prompts that wait for a place."""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from blink.common.policy import Pending
from blink.common.request import Request, tenant_of
from blink.common.ring import Ring
from blink.common.states import SlotStatus
from blink.sim.batch import Live
from blink.sim.claims import Claims

_EVERY_SLOT = -1  # in place of a slot: the frontend's epoch has changed


@dataclass(slots=True)
class Found:
    """What one scan found to end, by slot."""

    rejected: dict[int, tuple[int, SlotStatus]] = field(default_factory=dict)  # request_id, status: never claimed
    ended: dict[int, tuple[Live, SlotStatus]] = field(default_factory=dict)


class Scanner:
    """Takes in words of the ring once they were visible for a scan; `waiting` is the line, by request id."""

    def __init__(self, ring: Ring, requests: dict[int, Request], claims: Claims, scan_ns: int) -> None:
        self._ring, self._requests, self._claims, self._scan_ns = ring, requests, claims, scan_ns
        self._unseen: deque[tuple[int, int, bool]] = deque()  # visible_ns, slot, is it a cancel
        self.waiting: list[Pending] = []

    def visible(self, now_ns: int, slot: int, *, cancel: bool) -> None:
        """A control word, or a cancel word, of `slot` is visible from now on."""
        self._unseen.append((now_ns, slot, cancel))

    def epoch_visible(self, now_ns: int) -> None:
        """Another epoch of the frontend is visible from now on."""
        self._unseen.append((now_ns, _EVERY_SLOT, True))

    @property
    def unseen_since_ns(self) -> int | None:
        """When the oldest word that no scan took in became visible; None if there is none."""
        return self._unseen[0][0] if self._unseen else None

    def scan(self, now_ns: int) -> Found:
        """Take in what was visible one scan ago: new prompts join the line; what is to end is returned."""
        cutoff, found = now_ns - self._scan_ns, Found()
        while self._unseen and self._unseen[0][0] <= cutoff:
            _, slot, cancel = self._unseen.popleft()
            if slot == _EVERY_SLOT:
                self._fence(found)
            elif not cancel:
                self._take_in(slot, found)
            else:
                self._cancel(slot, found)
        return found

    def _take_in(self, slot: int, found: Found) -> None:
        """A new prompt joins the line, unless it cannot be claimed."""
        ring, generation = self._ring, self._ring.generation(slot)
        descriptor = ring.descriptor(slot)
        if not ring.descriptor_is_whole(slot) or descriptor.generation != generation:
            request_id = tenant_of(self._requests.values(), slot, generation)
            found.rejected[slot] = request_id, SlotStatus.BAD_DESCRIPTOR
            return
        pending = Pending(descriptor.request_id, slot, descriptor.prompt_tokens, descriptor.output_tokens_max)
        if ring.cancelled_generation(slot) == descriptor.generation:
            found.rejected[slot] = pending.request_id, SlotStatus.CANCELLED
        elif ring.slot_epoch(slot) != ring.epoch:
            found.rejected[slot] = pending.request_id, SlotStatus.FENCED
        else:
            insort(self.waiting, pending, key=lambda prompt: (prompt.request_id, prompt.slot))

    def _cancel(self, slot: int, found: Found) -> None:
        """A cancel ends a claimed request, and takes a prompt that waits out of the line."""
        live = self._claims.find(slot)
        if live is not None:
            if self._ring.cancelled_generation(slot) == live.generation:
                found.ended[slot] = live, SlotStatus.CANCELLED
            return
        for index, pending in enumerate(self.waiting):
            if pending.slot == slot and self._ring.cancelled_generation(slot) == self._ring.generation(slot):
                del self.waiting[index]
                found.rejected[slot] = pending.request_id, SlotStatus.CANCELLED
                return

    def _fence(self, found: Found) -> None:
        """Everything of an epoch that is gone ends: the frontend that submitted it was replaced."""
        epoch = self._ring.epoch
        for pending in [prompt for prompt in self.waiting if self._ring.slot_epoch(prompt.slot) != epoch]:
            self.waiting.remove(pending)
            found.rejected[pending.slot] = pending.request_id, SlotStatus.FENCED
        for live in self._claims.all():
            if live.epoch != epoch:
                found.ended.setdefault(live.slot, (live, SlotStatus.FENCED))  # a cancel seen before comes first
