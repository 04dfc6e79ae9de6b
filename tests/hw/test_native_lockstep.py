"""The compiled scheduler in lock-step by itself: what it leaves behind, what it asks of the step model, special ends.

That its decisions are those of blink.common.policy is the business of tests/conformance.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from blink.common.checker import check_trace
from blink.common.events import Event
from blink.common.lockstep import StepDecision
from blink.common.policy import Action
from blink.common.request import Request
from blink.common.results import Outcome
from blink.common.states import SlotStatus
from blink.hw.native.lockstep import Arrival, Cancel, LockStep
from tests.hw.native_help import needs_compiler, small_settings, trace_recorder

pytestmark = needs_compiler


@st.composite
def loads(draw: st.DrawFn) -> list[Arrival | Cancel]:
    """Up to 14 requests at up to 30 steps, some of them cancelled around their life."""
    operations: list[Arrival | Cancel] = []
    step = 0
    for request_id in range(draw(st.integers(1, 14))):
        step += draw(st.sampled_from([0, 0, 0, 1, 2, 7]))
        arrival = Arrival(
            step, request_id, draw(st.integers(1, 40)), draw(st.integers(1, 16)), draw(st.integers(1, 20))
        )
        operations.append(arrival)
        if draw(st.booleans()):
            operations.append(Cancel(step + draw(st.integers(0, 8)), request_id))
    return operations


@settings(max_examples=150, deadline=None)
@given(
    operations=loads(),
    batch_max=st.integers(1, 5),
    prefill_batch_max=st.integers(1, 3),
    window=st.integers(3, 9),
    kv_block_count=st.integers(14, 40),
    padding=st.integers(0, 12),
    resume=st.integers(1, 40),
)
def test_tokens_blocks_and_ranges_are_what_the_decisions_say(
    operations: list[Arrival | Cancel],
    batch_max: int,
    prefill_batch_max: int,
    window: int,
    kv_block_count: int,
    padding: int,
    resume: int,
) -> None:
    scheduler = small_settings(
        batch_max=batch_max,
        prefill_batch_max=prefill_batch_max,
        window=window,
        kv_block_count=kv_block_count,
        prefill_padding_tokens_max=padding,
        resume_after_tokens=resume,
    )
    with LockStep(scheduler) as native:
        decisions = native.run(operations)
        assert native.frontend.counters.wrong_tokens == 0
        assert native.instance.state()["free_block_count"] == kv_block_count
        assert native.asked(whole=True) == _asked(native.requests, decisions)
        assert "kv_tokens" not in native.asked(whole=False)


def _asked(requests: dict[int, Request], decisions: list[StepDecision]) -> dict[str, tuple[int, int]]:
    """Shapes, and the KV tokens of a decode: prompts and the tokens before it of all that get one more."""
    found: dict[str, list[int]] = {}
    for decision in decisions:
        if decision.graph is None:
            continue
        if decision.action is Action.DECODE:
            given = [row for row in decision.events if row[0] in (Event.TOKEN, Event.FINISH)]
            kv_tokens = sum(requests[row[2]].prompt_tokens + row[3] - 1 for row in given)
            noted = {"batch": decision.graph.batch, "kv_tokens": kv_tokens}
        else:
            tokens = decision.graph.batch * decision.graph.sequence
            noted = {"sequence": decision.graph.sequence, "tokens": tokens}
        for name, value in noted.items():
            found.setdefault(name, []).append(value)
    return {name: (min(values), max(values)) for name, values in found.items()}


def test_the_trace_of_a_lock_step_run_conforms(tmp_path: Path) -> None:
    operations: list[Arrival | Cancel] = [
        Arrival(i // 3, i, 1 + 5 * i % 37, 1 + i % 16, 1 + 7 * i % 19) for i in range(40)
    ]
    operations += [Cancel(4, 9), Cancel(9, 20), Cancel(13, 39)]
    recorder = trace_recorder(tmp_path / "trace.ndjson")
    with LockStep(small_settings(window=3), recorder=recorder) as native:
        decisions = native.run(operations)
        slots = native.frontend.slots
        recorder.close({"free": slots.free_count, "in_use": 0, "recovering": 0}, complete=True, idle_status_reads=0)
    verdict = check_trace(tmp_path / "trace.ndjson")
    assert verdict.code == 0, verdict
    assert sum(decision.action is Action.RELAUNCH for decision in decisions) > 5


def test_blocks_are_taken_from_the_end_of_a_stack_and_come_back_in_order() -> None:
    scheduler = small_settings(kv_block_count=14, prefill_batch_max=1)
    with LockStep(scheduler) as native:
        decisions = native.run([Arrival(0, 0, 4, 8, 1), Arrival(0, 1, 8, 4, 99), Arrival(0, 2, 4, 4, 99)])
    blocks = [claim.blocks for decision in decisions for claim in decision.claimed]
    assert blocks == [(2, 1, 0), (2, 1, 0), (4, 3)]  # the first ends at its first token


def test_a_prompt_that_no_graph_holds_is_a_bad_descriptor() -> None:
    with LockStep(small_settings()) as native:
        decisions = native.run([Arrival(0, 0, 60, 16, 5), Arrival(0, 1, 4, 4, 4)])
        assert native.requests[0].status == SlotStatus.BAD_DESCRIPTOR
        assert native.requests[1].outcome is Outcome.COMPLETED
    assert decisions[0].events[0] == (Event.REJECT, 0, 0, 0, SlotStatus.BAD_DESCRIPTOR)


def test_a_request_that_outlives_its_time_is_aborted() -> None:
    with LockStep(small_settings(time_limit_ns=3_000), step_ns=1_000) as native:
        decisions = native.run([Arrival(0, 0, 4, 16, 16)])
        request = native.requests[0]
        assert (request.status, request.outcome) == (SlotStatus.TIME_LIMIT, Outcome.FAILED)
    # Claimed at 1,000 ns, it has a token at each of three steps; the fourth boundary is 3,000 ns later.
    assert decisions[-1].events[0] == (Event.ABORT, 0, 0, 3, SlotStatus.TIME_LIMIT)


def test_a_new_epoch_fences_what_was_submitted_before() -> None:
    with LockStep(small_settings(batch_max=1, prefill_batch_max=1)) as native:
        native.apply([Arrival(0, 0, 4, 9, 9), Arrival(0, 1, 4, 9, 9)])
        native.step()
        native.instance.library.set_epoch(native.instance.base, 1)
        decision = native.step()
    ends = [event for event in decision.events if event[0] in (Event.REJECT, Event.ABORT)]
    assert ends == [(Event.REJECT, 1, 1, 0, SlotStatus.FENCED), (Event.ABORT, 0, 0, 1, SlotStatus.FENCED)]
