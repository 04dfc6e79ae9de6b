"""The frontend's logic without I/O: slots, prompt space, bursts, requests, token reads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common import layout
from blink.common.layout import Ctl
from blink.common.ring import Ring
from blink.common.states import SLOT_COUNT, SlotState, SlotStatus
from blink.common.transitions import IllegalTransitionError
from blink.frontend.operations import Region
from blink.frontend.prompt_area import PromptArea
from blink.frontend.request_tracker import RequestTracker
from blink.frontend.slot_tracker import SlotTracker
from blink.frontend.submission import Submission, Submitter
from blink.frontend.token_reader import PollSchedule, TokenReader

# --- slots ---


def test_all_slots_are_given_out_once_in_circular_order() -> None:
    tracker = SlotTracker()
    assert [tracker.acquire() for _ in range(SLOT_COUNT)] == list(range(SLOT_COUNT))
    assert tracker.acquire() is None
    tracker.release(7)
    tracker.release(3)
    assert tracker.acquire() == 3  # the hint has come round to the start


def test_the_search_starts_behind_the_last_slot() -> None:
    tracker = SlotTracker(count=8)
    assert [tracker.acquire(), tracker.acquire()] == [0, 1]
    tracker.release(0)
    assert tracker.acquire() == 2


def test_a_partition_keeps_to_its_slots() -> None:
    tracker = SlotTracker(first=100, count=3)
    assert [tracker.acquire() for _ in range(4)] == [100, 101, 102, None]
    with pytest.raises(ValueError, match=r"slots 4000\.\.4199 are not within"):
        SlotTracker(first=4000, count=200)


def test_the_generation_wraps_before_the_value_that_means_none() -> None:
    tracker = SlotTracker(count=1)
    tracker.recover(0, layout.GENERATION_NONE - 1, empty=True)
    tracker.acquire()
    assert tracker.release(0) == 0


def test_a_slot_is_not_released_twice() -> None:
    tracker = SlotTracker(count=1)
    tracker.acquire()
    tracker.release(0)
    with pytest.raises(ValueError, match="slot 0 is released twice"):
        tracker.release(0)


@given(st.lists(st.tuples(st.sampled_from(["acquire", "release", "busy", "empty"]), st.integers(0, 7)), max_size=60))
def test_free_in_use_and_recovering_add_up(steps: list[tuple[str, int]]) -> None:
    tracker, held = SlotTracker(count=8), set[int]()
    for action, slot in steps:
        if action == "acquire":
            free = tracker.free_count
            taken = tracker.acquire()
            assert (taken is None) == (free == 0)
            if taken is not None:
                assert taken not in held
                held.add(taken)
        elif action == "release" and slot in held:
            held.discard(slot)
            tracker.release(slot)
        elif action in ("busy", "empty") and slot not in held:
            tracker.recover(slot, 5, empty=action == "empty")
        assert tracker.free_count + tracker.in_use_count + tracker.recovering_count == 8
        assert tracker.in_use_count == len(held)


# --- prompt space ---


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=80), st.randoms(use_true_random=False))
def test_live_prompts_never_overlap_and_space_comes_back(steps: list[tuple[bool, int]], random) -> None:  # type: ignore[no-untyped-def]
    area, live = PromptArea(100), dict[int, int]()
    for grow, tokens in steps:
        if grow:
            offset = area.allocate(tokens)
            if offset is not None:
                assert 0 <= offset <= 100 - tokens
                assert all(offset + tokens <= o or o + n <= offset for o, n in live.items())
                live[offset] = tokens
        elif live:
            offset = random.choice(list(live))
            del live[offset]
            area.free(offset)
    for offset in list(live):
        area.free(offset)
    assert area.allocate(100) == 0


def test_what_can_never_fit_and_what_is_not_stored_is_refused() -> None:
    area = PromptArea(100)
    with pytest.raises(ValueError, match="a prompt of 101 tokens cannot be stored: 1 to 100"):
        area.allocate(101)
    with pytest.raises(ValueError, match="no prompt is stored at token 3"):
        area.free(3)


# --- bursts ---


def frontend(capacity: int = 10_000) -> tuple[SlotTracker, Submitter, RequestTracker]:
    slots, prompts = SlotTracker(), PromptArea(capacity)
    return slots, Submitter(slots, prompts, 256, burst_max=64), RequestTracker(slots, prompts)


def test_a_burst_of_neighbours_is_three_writes_in_the_order_of_the_protocol() -> None:
    _, submitter, _ = frontend()
    for request_id in range(40):
        submitter.add(Submission(request_id, 10, 20))
    burst = submitter.post()
    assert burst is not None
    assert [write.region for write in burst.writes] == [Region.PROMPT, Region.DESCRIPTOR, Region.STATUS]
    assert [write.size_bytes for write in burst.writes] == [40 * 10 * 4, 40 * 64, 39 * 16 + 8]
    assert [slot for _, slot, _ in burst.submitted] == list(range(40))


def test_the_writes_of_a_burst_make_the_ring_show_the_requests() -> None:
    _, submitter, _ = frontend()
    for request_id in (5, 6):
        submitter.add(Submission(request_id, 10, 20, temperature=0.5, seed=9))
    burst = submitter.post()
    assert burst is not None
    ring = Ring.in_memory(boot_id=1)
    for write in burst.writes:
        if write.region is Region.DESCRIPTOR:
            assert write.data is not None
            ring.write_descriptors(write.offset_bytes, write.data)
        elif write.region is Region.STATUS:
            assert write.data is not None
            assert ring.write_status(write.offset_bytes, write.data) == [0, 1]
    assert ring.descriptor_is_whole(1)
    descriptor = ring.descriptor(1)
    assert (descriptor.request_id, descriptor.prompt_offset, descriptor.prompt_tokens) == (6, 10, 10)
    assert (descriptor.output_offset, descriptor.temperature, descriptor.seed) == (256, 0.5, 9)
    assert Ctl.unpack(ring.word(1)) == Ctl(SlotState.PREFILL_PENDING)
    assert ring.state(2) == SlotState.EMPTY


def test_token_ids_travel_in_one_write() -> None:
    _, submitter, _ = frontend()
    for request_id, tokens in enumerate(([1, 2, 3], [4, 5])):
        submitter.add(Submission(request_id, len(tokens), 4, tokens=np.array(tokens, "<u4").tobytes()))
    burst = submitter.post()
    assert burst is not None
    assert burst.writes[0].data == np.array([1, 2, 3, 4, 5], "<u4").tobytes()


def test_a_burst_skips_slots_in_use_and_splits_its_writes_there() -> None:
    slots, submitter, tracker = frontend()
    for request_id in range(4096):
        submitter.add(Submission(request_id, 1, 1))
    while submitter.post():
        pass
    assert slots.free_count == 0
    for slot in (0, 1, 4):
        tracker.submitted(slot, layout.Descriptor(slot, 0, 0, slot, 1, 0, 1, 1))
        tracker.recycle(slot)
    for request_id in range(3):
        submitter.add(Submission(5000 + request_id, 1, 1))
    burst = submitter.post()
    assert burst is not None
    assert [slot for _, slot, _ in burst.submitted] == [0, 1, 4]
    assert sum(write.region is Region.STATUS for write in burst.writes) == 2
    assert burst.submitted[0][2].generation == 1


def test_the_head_of_the_queue_waits_for_space_and_nobody_passes_it() -> None:
    _, submitter, _ = frontend(capacity=100)
    for request_id, tokens in enumerate((60, 60, 10)):
        submitter.add(Submission(request_id, tokens, 1))
    burst = submitter.post()
    assert burst is not None and [s.request_id for s, _, _ in burst.submitted] == [0]
    assert submitter.post() is None
    assert len(submitter) == 2
    assert submitter.withdraw(1) and not submitter.withdraw(1)
    burst = submitter.post()
    assert burst is not None and [s.request_id for s, _, _ in burst.submitted] == [2]


# --- requests ---


def test_cancel_names_the_generation_and_is_written_once() -> None:
    slots, submitter, tracker = frontend()
    submitter.add(Submission(77, 5, 5))
    burst = submitter.post()
    assert burst is not None
    tracker.submitted(0, burst.submitted[0][2])
    cancelled = tracker.cancel(77, now_ns=123)
    assert cancelled is not None
    entry, write = cancelled
    assert entry.cancelled_ns == 123
    assert (write.region, write.offset_bytes, write.size_bytes) == (Region.DESCRIPTOR, 0x38, 8)
    assert write.data is not None
    assert layout.cancel_generation(int.from_bytes(write.data, "little")) == slots.generation(0)
    assert tracker.cancel(77, now_ns=124) is None
    assert tracker.cancel(78, now_ns=124) is None


# --- polls ---


@given(st.integers(1, 3000), st.integers(0, 60_000), st.integers(1, 20_000), st.lists(st.integers(0, 500_000)))
def test_the_first_poll_that_can_see_an_event_is_the_one_that_stepping_finds(
    gap_min: int, more: int, cycle: int, offsets: list[int]
) -> None:
    schedule = PollSchedule(gap_min, gap_min + more, cycle)
    for wanted in offsets:
        post, idle = schedule.gap_ns(0), 0
        while post < wanted:
            idle += 1
            post += cycle + schedule.gap_ns(idle)
        assert schedule.first_at_or_after(wanted) == (post, idle)


def test_gaps_double_up_to_the_bound() -> None:
    schedule = PollSchedule(1000, 5000, 100)
    assert [schedule.gap_ns(n) for n in range(5)] == [1000, 2000, 4000, 5000, 5000]
    with pytest.raises(ValueError, match="are no schedule"):
        PollSchedule(5, 4, 100)


def words(**slots: Ctl) -> np.ndarray:
    snapshot = np.full(SLOT_COUNT, Ctl(SlotState.EMPTY).pack(), np.uint64)
    for name, ctl in slots.items():
        snapshot[int(name[1:])] = ctl.pack()
    return snapshot


def decoding(count: int, generation: int = 0) -> Ctl:
    return Ctl(SlotState.DECODE_PROCESSING, generation=generation, token_count=count)


def test_new_slots_are_read_first() -> None:
    reader = TokenReader(reads_max=10)
    for slot in (2, 5, 9):
        reader.watch(slot, 0)
    news = reader.on_status(words(s2=decoding(1)))
    assert news is not None
    reader.on_tokens(news)
    news = reader.on_status(words(s2=decoding(3), s5=decoding(1), s9=decoding(1)))
    assert news is not None
    assert news.slots.tolist() == [5, 9, 2]
    assert news.urgent_count == 2
    assert news.token_from.tolist() == [0, 0, 1] and news.token_count.tolist() == [1, 1, 3]


def test_a_word_of_another_generation_says_nothing() -> None:
    reader = TokenReader(reads_max=10)
    reader.watch(4, 8)
    assert reader.on_status(words(s4=decoding(3, generation=7))) is None
    assert reader.on_status(words(s5=decoding(3, generation=8))) is None
    assert reader.on_status(words(s4=decoding(3, generation=8))) is not None


def test_a_stale_snapshot_never_takes_tokens_back() -> None:
    reader = TokenReader(reads_max=10)
    reader.watch(4, 0)
    for count, expected in ((5, True), (3, False), (5, False), (6, True)):
        news = reader.on_status(words(s4=decoding(count)))
        assert (news is not None) is expected
        if news:
            reader.on_tokens(news)
    assert reader.handed_over(4) == 6


def test_a_completion_without_new_tokens_is_news_with_its_status() -> None:
    reader = TokenReader(reads_max=10)
    reader.watch(4, 0)
    news = reader.on_status(words(s4=Ctl(SlotState.DECODE_COMPLETED, SlotStatus.CANCELLED)))
    assert news is not None
    assert news.completed.tolist() == [True] and news.status.tolist() == [SlotStatus.CANCELLED]


def test_work_in_a_cycle_is_bounded_and_what_is_left_over_is_found_again_in_turn() -> None:
    reader = TokenReader(reads_max=2)
    for slot in range(5):
        reader.watch(slot, 0)
    first = reader.on_status(words(**{f"s{slot}": decoding(1) for slot in range(5)}))
    assert first is not None and first.slots.tolist() == [0, 1] and reader.deferred_count == 3
    reader.on_tokens(first)
    snapshot = words(**{f"s{slot}": decoding(2) for slot in range(5)})
    seen = []
    while (news := reader.on_status(snapshot)) is not None:
        seen.append(news.slots.tolist())
        reader.on_tokens(news)
    assert seen == [[2, 3], [4, 0], [1]]
    assert reader.deferred_count == 0


@given(st.sets(st.integers(0, SLOT_COUNT - 1), min_size=1, max_size=20), st.integers(1, 6), st.integers(0, 3))
def test_steps_at_once_are_the_same_as_cycle_after_cycle(slots: set[int], steps: int, later: int) -> None:
    order = np.array(sorted(slots))
    one, many = TokenReader(reads_max=64), TokenReader(reads_max=64)
    for reader in (one, many):
        for slot in slots:
            reader.watch(slot, 0)
        news = reader.on_status(words(**{f"s{slot}": decoding(1) for slot in slots}))
        assert news is not None
        reader.on_tokens(news)
    for step in range(steps):
        news = one.on_status(words(**{f"s{slot}": decoding(2 + step) for slot in slots}))
        assert news is not None and news.slots.tolist() == order.tolist()
        one.on_tokens(news)
    many.on_steps(order, steps)
    snapshot = words(**{f"s{slot}": decoding(1 + steps + later) for slot in slots})
    left, right = one.on_status(snapshot), many.on_status(snapshot)
    assert (left is None) == (right is None) == (later == 0)
    if left is not None and right is not None:
        assert left.token_from.tolist() == right.token_from.tolist()
        assert left.token_count.tolist() == right.token_count.tolist()


# --- the ring over bytes ---


def test_the_ring_refuses_an_illegal_move_of_either_side_before_a_byte_changes() -> None:
    ring = Ring.in_memory(boot_id=1)
    before = ring.word(3)
    with pytest.raises(IllegalTransitionError, match="gpu may not move a slot from empty to prefill_processing"):
        ring.move(3, SlotState.PREFILL_PROCESSING)
    with pytest.raises(IllegalTransitionError, match="frontend may not move a slot from empty to decode_completed"):
        ring.write_status(3 * 16, Ctl(SlotState.DECODE_COMPLETED).pack().to_bytes(8, "little"))
    with pytest.raises(IllegalTransitionError, match="slot 3 is empty, its batch is decode_processing"):
        ring.add_tokens(np.array([3]), 1, 0)
    assert ring.word(3) == before


def test_a_claim_compares_the_whole_word() -> None:
    ring = Ring.in_memory(boot_id=1)
    ring.write_status(0, Ctl(SlotState.PREFILL_PENDING, generation=4).pack().to_bytes(8, "little"))
    stale = Ctl(SlotState.PREFILL_PENDING, generation=3).pack()
    assert not ring.compare_and_swap(0, stale, SlotState.PREFILL_PROCESSING)
    assert ring.compare_and_swap(0, ring.word(0), SlotState.PREFILL_PROCESSING)
    assert Ctl.unpack(ring.word(0)) == Ctl(SlotState.PREFILL_PROCESSING, generation=4)


def test_last_tokens_and_statuses_are_one_store() -> None:
    ring = Ring.in_memory(boot_id=1)
    for slot in (1, 2):
        ring.ctl[slot] = Ctl(SlotState.DECODE_PROCESSING, generation=7, token_count=3).pack()
    ring.add_tokens(np.array([1, 2]), 4, step=9, ended={1: SlotStatus.LENGTH})
    assert Ctl.unpack(ring.word(1)) == Ctl(SlotState.DECODE_PROCESSING, 0, 0, 7, 7)
    assert Ctl.unpack(ring.word(2)) == Ctl(SlotState.DECODE_COMPLETED, SlotStatus.LENGTH, 0, 7, 7)
    assert int(ring.pulse[2]) == layout.pack_pulse(7, 9)


def test_buffers_of_the_wrong_size_are_refused() -> None:
    with pytest.raises(ValueError, match="the status array has 8 bytes, the layout says 65536"):
        Ring(bytearray(8), bytearray(layout.DESCRIPTOR_ARRAY_BYTES), bytearray(layout.HEADER_BYTES))
