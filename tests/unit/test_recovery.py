"""E2: a restarted frontend frees every slot exactly once, gives nothing away too early, and notices a dead ring."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.common.layout import (
    DESCRIPTOR_STRIDE_BYTES,
    GENERATION_NONE,
    Ctl,
    Descriptor,
    next_generation,
    pack_descriptor,
)
from blink.common.ring import Ring
from blink.common.states import OWNER, SLOT_COUNT, Actor, SlotState, SlotStatus
from blink.common.transitions import IllegalTransitionError
from blink.frontend.operations import Region, Write
from blink.frontend.prompt_area import PromptArea
from blink.frontend.recovery import HeartbeatWatch, Recovery
from blink.frontend.slot_tracker import SlotTracker
from blink.frontend.submission import Submission, Submitter

AREA_TOKENS = 4096
OUTPUT_TOKENS = 8


@dataclass
class OldRing:
    """A ring as a dead frontend left it: state, generation and prompt of some slots."""

    epoch: int
    slots: dict[int, tuple[SlotState, int, int, int]]  # state, generation, prompt_offset, prompt_tokens
    ring: Ring = field(init=False)

    def __post_init__(self) -> None:
        self.ring = Ring.in_memory(boot_id=1, epoch=self.epoch)
        for slot, (state, generation, offset, tokens) in self.slots.items():
            completed = state == SlotState.DECODE_COMPLETED
            status = SlotStatus.STOP if completed else SlotStatus.NONE
            self.ring.ctl[slot] = Ctl(state, status, self.epoch % 256, generation).pack()
            descriptor = Descriptor(
                1000 + slot, generation, self.epoch, offset, tokens, slot * OUTPUT_TOKENS, OUTPUT_TOKENS, OUTPUT_TOKENS
            )
            pack_descriptor(descriptor, self.ring.descriptors, slot * DESCRIPTOR_STRIDE_BYTES)

    def land(self, write: Write) -> None:
        """A WRITE arrives."""
        assert write.data is not None
        stores = {
            Region.STATUS: self.ring.write_status,
            Region.DESCRIPTOR: self.ring.write_descriptors,
            Region.HEADER: self.ring.write_header,
        }
        stores[write.region](write.offset_bytes, write.data)


@st.composite
def old_rings(draw: st.DrawFn) -> OldRing:
    """Up to 24 slots in use, with disjoint prompts, under any epoch."""
    chosen = draw(st.lists(st.integers(0, SLOT_COUNT - 1), unique=True, max_size=24))
    slots, end = {}, 0
    for slot in chosen:
        gap, tokens = draw(st.integers(0, 40)), draw(st.integers(1, 60))
        state = draw(st.sampled_from(SlotState))
        slots[slot] = state, draw(st.sampled_from([0, 1, 77, GENERATION_NONE - 1])), end + gap, tokens
        end += gap + tokens
    return OldRing(draw(st.sampled_from([0, 1, 254, 255, 256, 511])), slots)


def started(old: OldRing) -> tuple[SlotTracker, PromptArea, Recovery]:
    """A new frontend that has done all of E2 but wait for the fence."""
    slots, prompts = SlotTracker(), PromptArea(AREA_TOKENS)
    recovery = Recovery(slots, prompts, old.epoch)
    old.land(recovery.begin())
    recovery.adopt(old.ring.ctl, old.ring.descriptors)
    return slots, prompts, recovery


@settings(max_examples=80, deadline=None)
@given(old_rings(), st.data())
def test_every_slot_comes_back_once_whatever_order_the_fence_takes(old: OldRing, data: st.DataObject) -> None:
    slots, _, recovery = started(old)
    assert old.ring.epoch == (old.epoch + 1) % 256
    in_use = {slot for slot, (state, *_) in old.slots.items() if state != SlotState.EMPTY}
    assert slots.recovering_count == recovery.waiting_count == len(in_use)
    owned = [slot for slot in sorted(in_use) if OWNER[SlotState(old.ring.state(slot))] == Actor.GPU]
    order = data.draw(st.permutations(owned))
    recycled: list[int] = []
    while True:
        for left in recovery.completed(old.ring.ctl):
            assert left.request_id == 1000 + left.slot
            recycled.append(left.slot)
            old.land(recovery.recycle(left.slot))  # refuses to touch a slot that is the gpu's
        assert slots.free_count + slots.in_use_count + slots.recovering_count == SLOT_COUNT
        assert slots.in_use_count == 0
        if not order:
            break
        old.ring.move(order.pop(), SlotState.DECODE_COMPLETED, status=SlotStatus.FENCED)
    assert sorted(recycled) == sorted(in_use)
    assert recovery.done
    assert slots.free_count == SLOT_COUNT
    for slot, (state, generation, *_) in old.slots.items():
        expected = generation if state == SlotState.EMPTY else next_generation(generation)
        assert slots.generation(slot) == expected == Ctl.unpack(old.ring.word(slot)).generation


@settings(max_examples=60, deadline=None)
@given(old_rings(), st.lists(st.integers(1, 200), max_size=40))
def test_new_prompts_keep_clear_of_those_that_a_graph_may_still_read(old: OldRing, sizes: list[int]) -> None:
    slots, prompts, _ = started(old)
    submitter = Submitter(slots, prompts, OUTPUT_TOKENS, epoch=old.epoch + 1)
    for request_id, tokens in enumerate(sizes):
        submitter.add(Submission(request_id, tokens, 1))
    burst = submitter.post()
    held = {
        slot: range(offset, offset + tokens)
        for slot, (state, _, offset, tokens) in old.slots.items()
        if state != SlotState.EMPTY
    }
    used = [token for kept in held.values() for token in kept]
    for submission, slot, descriptor in burst.submitted if burst else ():
        assert old.slots.get(slot, (SlotState.EMPTY,))[0] == SlotState.EMPTY
        assert descriptor.epoch == old.epoch + 1
        used += range(descriptor.prompt_offset, descriptor.prompt_offset + submission.prompt_tokens)
    assert len(used) == len(set(used))


def test_room_of_an_old_prompt_comes_back_with_its_slot() -> None:
    old = OldRing(0, {5: (SlotState.DECODE_PROCESSING, 3, 0, AREA_TOKENS)})
    _, prompts, recovery = started(old)
    assert prompts.allocate(1) is None
    old.ring.move(5, SlotState.DECODE_COMPLETED, status=SlotStatus.FENCED)
    old.land(recovery.recycle(recovery.completed(old.ring.ctl)[0].slot))
    assert prompts.allocate(AREA_TOKENS) == 0


def test_the_order_of_the_steps_is_enforced() -> None:
    old = OldRing(7, {})
    slots = SlotTracker()
    recovery = Recovery(slots, PromptArea(AREA_TOKENS), 7)
    assert slots.free_count == 0
    assert slots.recovering_count == SLOT_COUNT
    with pytest.raises(ValueError, match="epoch is written first"):
        recovery.adopt(old.ring.ctl, old.ring.descriptors)
    recovery.begin()
    recovery.adopt(old.ring.ctl, old.ring.descriptors)
    with pytest.raises(ValueError, match="once"):
        recovery.adopt(old.ring.ctl, old.ring.descriptors)


def test_a_slot_of_the_gpu_cannot_be_recycled_before_its_fence() -> None:
    """Recycling what is not completed, the planted bug, is refused by the ring itself: I1."""
    old = OldRing(0, {9: (SlotState.PREFILL_PROCESSING, 0, 0, 4)})
    _, _, recovery = started(old)
    assert recovery.completed(old.ring.ctl) == []
    with pytest.raises(IllegalTransitionError, match="prefill_processing to empty"):
        old.land(recovery.recycle(9))


def test_a_word_of_another_generation_is_no_completion() -> None:
    old = OldRing(0, {9: (SlotState.DECODE_PAUSED, 4, 0, 4)})
    _, _, recovery = started(old)
    stale = np.array(old.ring.ctl)
    stale[9] = Ctl(SlotState.DECODE_COMPLETED, SlotStatus.STOP, 0, 3).pack()
    assert recovery.completed(stale) == []


def test_a_damaged_descriptor_keeps_new_prompts_away_until_its_slot_is_free() -> None:
    """Its prompt may lie anywhere, and areas of slots in use must not overlap (I6)."""
    old = OldRing(0, {2: (SlotState.PREFILL_PENDING, 0, 10, 4), 5: (SlotState.DECODE_COMPLETED, 0, 20, 4)})
    old.ring.descriptors[2 * DESCRIPTOR_STRIDE_BYTES + 0x10] ^= 1
    _, prompts, recovery = started(old)
    assert recovery.waiting_count == 2
    assert prompts.allocate(1) is None
    recovery.recycle(5)
    assert prompts.allocate(1) is None
    recovery.recycle(2)
    assert prompts.allocate(AREA_TOKENS) == 0
    with pytest.raises(ValueError, match="without being known"):
        prompts.free_somewhere()


def test_a_partition_recovers_its_own_slots_alone() -> None:
    old = OldRing(0, {3: (SlotState.DECODE_PROCESSING, 0, 0, 4), 12: (SlotState.DECODE_PROCESSING, 0, 4, 4)})
    slots = SlotTracker(first=10, count=5)
    recovery = Recovery(slots, PromptArea(AREA_TOKENS), 0)
    recovery.begin()
    assert [left.slot for left in recovery.adopt(old.ring.ctl, old.ring.descriptors)] == [12]
    assert (slots.free_count, slots.recovering_count) == (4, 1)


def test_ranges_that_overlap_are_refused() -> None:
    prompts = PromptArea(100)
    prompts.occupy(10, 20)
    with pytest.raises(ValueError, match="occupied"):
        prompts.occupy(29, 5)
    with pytest.raises(ValueError, match="occupied"):
        prompts.occupy(90, 11)


@given(st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=60))
def test_the_ring_is_dead_after_the_bound_of_watched_silence_and_never_before(looks: list[tuple[int, bool]]) -> None:
    watch, now, beat, silence = HeartbeatWatch(100), 0, 0, 0
    watch.look(beat, now)
    for gap, beats in looks:
        now += gap
        beat += beats
        silence = 0 if beats else silence + min(gap, 25)
        alive = watch.look(beat, now)
        if not alive:
            assert silence >= 100
            return
        assert silence < 100


def test_a_pause_of_the_frontend_itself_is_no_silence() -> None:
    watch = HeartbeatWatch(100)
    watch.look(1, 0)
    assert watch.look(1, 10_000_000)
    assert [watch.look(1, 10_000_000 + 25 * n) for n in range(1, 5)] == [True, True, False, False]
    assert not watch.look(2, 10_000_200)  # dead is dead


def test_nobody_watches_while_nobody_waits() -> None:
    watch = HeartbeatWatch(100)
    watch.look(1, 0)
    watch.look(1, 20)
    watch.rest()
    assert watch.look(1, 200)
    assert watch.silence_ns == 0
