"""Drills on the simulator: hundreds of seeds without a complaint, and planted bugs that the same checks find."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blink.common.drill import Drill
from blink.common.faults import DESCRIPTOR_BITS, Fault, FaultKind, Moment
from blink.common.layout import STATE_MASK, Buffer
from blink.common.results import Outcome
from blink.common.states import SLOT_COUNT, SlotState, SlotStatus
from blink.frontend.prompt_area import PromptArea
from blink.frontend.recovery import HeartbeatWatch, Left, Recovery
from blink.frontend.token_reader import TokenReader
from blink.sim.clock import at
from blink.sim.connection import Connection
from blink.sim.drill import RING_DEAD_AFTER_NS, SPAN_NS, drill
from blink.sim.event_reader import EventReader
from blink.workload.drill import FAULTS_MAX, RING_ENDS_MAX, Case, Shape, draw_case, draw_more, draw_plan, merged
from blink.workload.streams import Stream, generator

SMALL = (Shape.STEADY, Shape.BURSTS, Shape.KV)


def done(case: Case) -> Drill:
    """One drill; its traces are judged and thrown away."""
    with TemporaryDirectory() as folder:
        result = drill(case, Path(folder))
        result.complaints = result.judge()
    return result


def case_of(seed: int, *faults: Fault, shapes: tuple[Shape, ...] = SMALL) -> Case:
    """The load of a seed under these faults and no others."""
    return replace(draw_case(seed, SPAN_NS, shapes), plan=faults)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**31))
def test_chaos_heals_and_drains(seed: int) -> None:
    """Trace, slots, tokens, answers, time: nothing to complain about, whatever the seed draws."""
    result = done(draw_case(seed, SPAN_NS, SMALL))
    assert result.complaints == [], (result.load, [fault.text() for fault in result.plan])


def test_one_seed_is_one_drill() -> None:
    """The same seed twice: the same trace to the byte, the same counts."""
    runs = []
    for _ in range(2):
        with TemporaryDirectory() as folder:
            result = drill(draw_case(3, SPAN_NS, SMALL), Path(folder))
            runs.append((result.to_json(), [life.trace.read_bytes() for life in result.lives]))
    assert runs[0] == runs[1]


def test_more_requests_than_slots_wait_and_all_are_served() -> None:
    result = done(case_of(5, shapes=(Shape.SLOTS,)))
    assert result.complaints == []
    assert result.counts["slots exhausted"] == 1
    assert len(result.rows) > SLOT_COUNT


@given(st.integers(0, 2**31))
def test_a_plan_stays_within_its_bounds(seed: int) -> None:
    plan = draw_plan(np.random.default_rng(seed), SPAN_NS)
    assert 0 < len(plan) <= FAULTS_MAX
    assert [fault.at_ns for fault in plan] == sorted(fault.at_ns for fault in plan)
    assert sum(fault.kind.ends_the_ring for fault in plan) <= RING_ENDS_MAX
    assert all(0 < fault.at_ns + fault.duration_ns < 1.25 * SPAN_NS for fault in plan)


@given(st.integers(0, 2**31))
def test_further_faults_leave_a_seeds_plan_as_it_was(seed: int) -> None:
    more = draw_more(generator(seed, Stream.MORE_FAULTS), SPAN_NS)
    assert {fault.kind for fault in more} <= MORE and len(more) <= len(MORE)
    assert all(0 < fault.at_ns + fault.duration_ns < 1.25 * SPAN_NS for fault in more)
    plan = draw_case(seed, SPAN_NS).plan
    assert plan == merged(tuple(fault for fault in plan if fault.kind not in MORE), more)


def test_every_kind_of_fault_is_drawn() -> None:
    assert {fault.kind for seed in range(100) for fault in draw_case(seed, SPAN_NS).plan} == set(FaultKind)


# --- each fault by itself ---

MORE = {FaultKind.BAD_DESCRIPTOR, FaultKind.TIME_LIMIT}

MIDDLE = SPAN_NS // 3


@pytest.mark.parametrize("moment", Moment)
def test_a_frontend_that_crashes_fails_its_requests_and_leaks_nothing(moment: Moment) -> None:
    counts: Counter[str] = Counter()
    for seed in range(8):
        result = done(case_of(seed, Fault(MIDDLE, FaultKind.FRONTEND_CRASH, 500_000, 50, moment)))
        assert result.complaints == [], seed
        counts.update(result.counts)
        counts["fenced"] += sum(coverage["statuses"]["fenced"] for coverage in result.coverage)
    assert counts["fenced"] > 0
    assert counts["frontend crash"] >= 6
    assert counts["requests failed by a frontend crash"] > 0
    assert counts["slots recovered"] > 0
    if moment is Moment.WRITES:
        assert counts["WRITEs lost in a crash"] > 0
    if moment is Moment.RECOVERY:
        assert counts["frontend crashes before the ring was adopted"] > 0


def test_a_dead_scheduler_is_noticed_within_the_bound_and_every_client_gets_an_error() -> None:
    for seed in range(3):
        result = done(case_of(seed, Fault(MIDDLE, FaultKind.SCHEDULER_CRASH), shapes=(Shape.STEADY,)))
        assert result.complaints == [], seed
        assert result.counts["rings declared dead by their heartbeat"] == 1
        assert [life.ended_by for life in result.lives] == ["the scheduler's heart stands still", ""]
        failed = [row for row in result.rows if row.outcome is Outcome.FAILED]
        assert len(failed) == result.counts["requests failed by a dead ring"] > 0
        late = [row for row in result.rows if row.outcome is Outcome.COMPLETED and row.sent_ns > MIDDLE]
        assert late  # served by the ring that took its place
        assert min(row.sent_ns for row in late) < SPAN_NS
    assert RING_DEAD_AFTER_NS < SPAN_NS // 50


def test_a_stuck_graph_ends_as_engine_and_its_ring_still_drains() -> None:
    for seed in range(3):
        result = done(case_of(seed, Fault(MIDDLE, FaultKind.STUCK_GRAPH), shapes=(Shape.STEADY,)))
        assert result.complaints == [], seed
        assert result.counts["watchdog gave a graph up"] == 1
        assert sum(coverage["statuses"]["engine"] for coverage in result.coverage) > 0
        assert result.lives[0].slots["free"] == SLOT_COUNT
        assert result.lives[0].drains


@pytest.mark.parametrize("bit", [0, 63, 64, 64 + 31, 128, 8 * 0x20, DESCRIPTOR_BITS - 1])
def test_a_damaged_descriptor_fails_its_request_and_no_other(bit: int) -> None:
    result = done(case_of(2, Fault(MIDDLE, FaultKind.BAD_DESCRIPTOR, size=bit), shapes=(Shape.STEADY,)))
    assert result.complaints == []
    assert result.counts["bad descriptor"] == result.counts["requests ended as bad_descriptor"] == 1
    failed = [row for row in result.rows if row.outcome is Outcome.FAILED]
    assert [row.status for row in failed] == [SlotStatus.BAD_DESCRIPTOR]


def test_a_damaged_descriptor_whose_frontend_dies_is_recovered() -> None:
    """The next frontend cannot tell whose it is, and frees its slot all the same."""
    ended = 0
    for seed in range(12):
        damage = Fault(MIDDLE, FaultKind.BAD_DESCRIPTOR, size=3)
        crash = Fault(MIDDLE, FaultKind.FRONTEND_CRASH, 500_000, 100, Moment.WRITES)
        result = done(case_of(seed, damage, crash, shapes=(Shape.BURSTS,)))
        assert result.complaints == [], seed
        ended += result.counts["requests ended as bad_descriptor"] if result.counts["slots recovered"] else 0
    assert ended > 0


def test_a_time_limit_ends_what_lives_too_long_and_nothing_after_it() -> None:
    for seed in range(3):
        limit = Fault(MIDDLE, FaultKind.TIME_LIMIT, SPAN_NS // 4, 1_000)
        result = done(case_of(seed, limit, shapes=(Shape.KV,)))
        assert result.complaints == [], seed
        ended = [row for row in result.rows if row.status == SlotStatus.TIME_LIMIT]
        assert len(ended) > 0
        assert result.counts["requests ended as time_limit"] >= len(ended)
        assert all(row.sent_ns < MIDDLE + SPAN_NS // 4 for row in ended)


@pytest.mark.parametrize("kind", [FaultKind.STALE_READS, FaultKind.REORDERED_READS])
def test_late_and_reordered_reads_lose_and_repeat_nothing(kind: FaultKind) -> None:
    counts: Counter[str] = Counter()
    for seed in range(3):
        result = done(case_of(seed, Fault(0, kind, SPAN_NS, 800)))
        assert result.complaints == [], seed
        assert not result.outcomes()["failed"]
        counts.update(result.counts)
    stale, wrong = counts["status READs stale"], counts["status READs out of order"]
    assert (stale if kind is FaultKind.STALE_READS else wrong) > 100


def test_a_storm_of_cancels_frees_every_slot() -> None:
    result = done(case_of(8, Fault(MIDDLE, FaultKind.CANCEL_STORM, size=100), shapes=(Shape.KV,)))
    assert result.complaints == []
    assert result.counts["requests cancelled by a storm"] > 0


# --- planted bugs ---

CRASHES = tuple(
    Fault(at, FaultKind.FRONTEND_CRASH, 300_000, 30, Moment.WRITES) for at in range(MIDDLE // 4, SPAN_NS, MIDDLE // 4)
)
"""Many crashes: whatever a restart does wrong, it does it often enough."""


def complaints(plan: tuple[Fault, ...], seeds: int) -> list[str]:
    """What the checks say under a planted bug; a refusal by the ring itself counts."""
    found = []
    for seed in range(seeds):
        try:
            found += done(case_of(seed, *plan)).complaints
        except Exception as error:  # the model refuses what the protocol forbids
            found.append(f"refused: {error}")
    return found


def frees_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restart that frees everything."""

    def adopt(self: Recovery, words: Any, descriptors: Buffer) -> list[Left]:
        self.adopted = True
        for slot in self._slots.slots:
            self._slots.recover(slot, int(words[slot]) >> 16 & 0xFFFFFF, empty=True)
        return []

    monkeypatch.setattr(Recovery, "adopt", adopt)


def recycles_undrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A completion is recycled before its tokens are read."""
    digest = EventReader._digest

    def hasty(self: EventReader, words: Any, ended: list[int], left: Any) -> Any:
        completed = [
            slot
            for slot in self._by_slot
            if int(words[slot]) & STATE_MASK == SlotState.DECODE_COMPLETED
            and int(words[slot]) >> 16 & 0xFFFFFF == self._reader._generation[slot]
            and self._by_slot[slot].outcome is Outcome.UNFINISHED
        ]
        for slot in completed:
            self._end(self._by_slot[slot], 1, self._reader.handed_over(slot))
            self._reader.forget(slot)
        if completed:
            self.recycle(completed)
        return digest(self, words, ended, left)

    monkeypatch.setattr(EventReader, "_digest", hasty)


def keeps_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No epoch bump: the new frontend goes on under the old one's epoch."""
    start = Recovery.__init__

    def stay(self: Recovery, slots: Any, prompts: Any, header_epoch: int) -> None:
        start(self, slots, prompts, header_epoch - 1)

    monkeypatch.setattr(Recovery, "__init__", stay)


def writes_no_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new frontend serves under a new epoch that it never tells the gpu."""
    begin = Recovery.begin
    monkeypatch.setattr(
        Recovery, "begin", lambda self: begin(self)._replace(data=(self.epoch - 1).to_bytes(8, "little"))
    )


def old_connection_left_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """WRITEs of the dead frontend land whenever they like."""
    deliver = Connection.deliver

    def late(self: Connection, posted_ns: int, arrived_ns: int, land: Callable[[], None]) -> None:
        def arrive() -> None:
            if self._died_ns is None:
                land()
            else:
                at(self._env, self._env.now + 400_000, land)

        deliver(self, posted_ns, arrived_ns, arrive)

    monkeypatch.setattr(Connection, "destroy", lambda self: None)
    monkeypatch.setattr(Connection, "deliver", late)


def gives_old_prompts_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt area counts as empty after a restart."""
    monkeypatch.setattr(Recovery, "_keep_prompts", lambda self, descriptors: None)
    monkeypatch.setattr(PromptArea, "free_somewhere", lambda self: None)
    recycle = Recovery.recycle

    def without_room(self: Recovery, slot: int) -> Any:
        left = self._left[slot]
        self._left[slot] = Left(left.slot, left.generation, left.request_id, left.state, None)
        return recycle(self, slot)

    monkeypatch.setattr(Recovery, "recycle", without_room)


def hands_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursors go back when an old snapshot completes late."""
    on_status = TokenReader.on_status

    def forgetful(self: TokenReader, words: Any) -> Any:
        seen = words >> np.uint64(40) & np.uint64(0xFFFFF)
        watched = self._generation >= 0
        self._count[watched] = np.minimum(self._count, seen.astype(np.int64))[watched]
        return on_status(self, words)

    monkeypatch.setattr(TokenReader, "on_status", forgetful)


def nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frontend trusts the scheduler to be there."""
    monkeypatch.setattr(HeartbeatWatch, "look", lambda self, heartbeat, now_ns: True)


STALE = (Fault(0, FaultKind.REORDERED_READS, SPAN_NS, 900),)
DEAD = (Fault(MIDDLE, FaultKind.SCHEDULER_CRASH),)


@pytest.mark.parametrize(
    ("bug", "plan", "named", "seeds"),
    [
        (frees_everything, CRASHES, ("I1", "I2", "refused", "hang"), 3),
        (recycles_undrained, STALE, ("I7",), 2),
        (keeps_the_epoch, CRASHES, ("I8",), 2),
        (writes_no_epoch, CRASHES, ("I8", "heal"), 3),
        (old_connection_left_alive, CRASHES, ("I1", "I2", "refused"), 4),
        (gives_old_prompts_away, CRASHES, ("I6",), 6),
        (hands_over_again, STALE, ("I7", "second time"), 3),
        (nobody_watches, DEAD, ("hang",), 1),
    ],
)
def test_planted_bugs_are_found(
    bug: Callable[[pytest.MonkeyPatch], None],
    plan: tuple[Fault, ...],
    named: tuple[str, ...],
    seeds: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert complaints(plan, seeds) == []
    bug(monkeypatch)
    found = complaints(plan, seeds)
    assert any(name in text for name in named for text in found), found[:5]
