"""The scheduler's decisions: each rule at its edge."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common import policy
from blink.common.events import GraphKind
from blink.common.policy import Action, Blocked, GraphShape, GraphTable, Limits, Pending
from blink.common.states import SlotStatus

PREFILL = GraphTable(GraphKind.PREFILL, (1, 2, 4), (64, 128, 256), 512, GraphShape(GraphKind.PREFILL, 1, 1024))
LIMITS = Limits(
    batch_max=4,
    prefill_batch_max=2,
    block_tokens=16,
    window=120,
    prefill_padding_tokens_max=110,
    resume_after_tokens=50,
)


def prompt(request_id: int, tokens: int = 10, output: int = 6, slot: int | None = None) -> Pending:
    return Pending(request_id, request_id if slot is None else slot, tokens, output)


def decide(running: int, waiting: list[Pending], blocks: int = 100, left: int = 120, prefilled: int = 0):  # type: ignore[no-untyped-def]
    return policy.decide(running, waiting, blocks, left, prefilled, LIMITS, PREFILL)


def test_the_line_is_ordered_by_request_then_slot() -> None:
    line = [prompt(3), prompt(1, slot=9), prompt(1, slot=2)]
    assert [(p.request_id, p.slot) for p in policy.arrival_order(line)] == [(1, 2), (1, 9), (3, 3)]


@given(st.permutations(range(20)))
def test_a_relaunched_scheduler_rebuilds_the_same_line(order: list[int]) -> None:
    assert policy.arrival_order(prompt(i) for i in order) == [prompt(i) for i in range(20)]


def test_graph_lookup_takes_the_smallest_captured_shape_that_holds_the_batch() -> None:
    assert PREFILL.choose(1, 1) == GraphShape(GraphKind.PREFILL, 1, 64)
    assert PREFILL.choose(2, 64) == GraphShape(GraphKind.PREFILL, 2, 64)
    assert PREFILL.choose(2, 65) == GraphShape(GraphKind.PREFILL, 2, 128)
    assert PREFILL.choose(3, 128) == GraphShape(GraphKind.PREFILL, 4, 128)


def test_what_no_shape_of_the_grid_holds_takes_the_largest_shape_or_is_refused() -> None:
    assert PREFILL.choose(1, 257) == PREFILL.fallback
    assert PREFILL.dense(3, 200) is None  # 4 x 256 tokens are more than the grid's limit
    with pytest.raises(ValueError, match="no captured prefill graph holds 3 sequences of 200 tokens"):
        PREFILL.choose(3, 200)
    with pytest.raises(ValueError, match="the largest is 1 of 1024"):
        PREFILL.choose(1, 1025)


def test_graphs_are_counted_once_each() -> None:
    # 1 x 3 lengths, 2 x 3, 4 x 2 (4 x 256 exceeds 512 tokens), and the largest shape
    assert PREFILL.count() == 3 + 3 + 2 + 1


def test_default_grids_reach_the_published_number_of_graphs() -> None:
    batches, sequences = policy.default_decode_batches(128), policy.default_decode_sequences(8192)
    prefill = policy.default_prefill_sequences(8192)
    assert batches[:4] == (1, 2, 4, 8) and batches[-1] == 128
    assert len(sequences) == 32 and sequences[-1] == 8192
    assert prefill[0] == 64 and prefill[-1] == 8192
    table = GraphTable(GraphKind.PREFILL, tuple(range(1, 9)), prefill, 8192, GraphShape(GraphKind.PREFILL, 1, 8192))
    assert 650 <= table.count() + len(batches) * len(sequences) <= 1000


@given(st.integers(1, 200_000))
def test_default_grids_end_at_the_context(context: int) -> None:
    for grid in (policy.default_prefill_sequences(context), policy.default_decode_sequences(context)):
        assert grid[-1] == context
        assert list(grid) == sorted(set(grid))


@pytest.mark.parametrize(("prompt_tokens", "output", "blocks"), [(1, 1, 1), (15, 1, 1), (16, 1, 2), (100, 28, 8)])
def test_a_claim_reserves_blocks_for_everything_it_may_need(prompt_tokens: int, output: int, blocks: int) -> None:
    assert policy.kv_blocks_needed(prompt_tokens, output, 16) == blocks


@given(st.lists(st.integers(1, 5), max_size=30), st.randoms(use_true_random=False))
def test_blocks_are_never_shared_nor_lost(needs: list[int], random) -> None:  # type: ignore[no-untyped-def]
    free = list(range(39, -1, -1))
    held: list[list[int]] = []
    for need in needs:
        if need <= len(free):
            held.append(policy.take_blocks(free, need))
        elif held:
            policy.return_blocks(free, held.pop(random.randrange(len(held))))
        together = free + [block for blocks in held for block in blocks]
        assert sorted(together) == list(range(40))


def test_blocks_come_off_the_end_and_too_many_are_refused() -> None:
    free = [4, 3, 2, 1, 0]
    assert policy.take_blocks(free, 2) == [1, 0]
    assert free == [4, 3, 2]
    with pytest.raises(ValueError, match="4 KV blocks wanted, 3 free"):
        policy.take_blocks(free, 4)
    assert free == [4, 3, 2]


def test_nothing_to_do() -> None:
    assert decide(0, []).action is Action.IDLE


def test_decode_goes_on_while_nobody_waits_and_relaunches_when_the_window_is_spent() -> None:
    assert decide(2, []).action is Action.DECODE
    assert decide(2, [], left=1).action is Action.DECODE
    assert decide(2, [], left=0).action is Action.RELAUNCH


def test_the_three_conditions_of_a_pause() -> None:
    assert decide(2, [prompt(1)]).action is Action.PREFILL
    assert decide(2, []).action is Action.DECODE  # (i) nobody waits
    full = decide(4, [prompt(1)])  # (ii) no room in the batch
    assert (full.action, full.blocked) == (Action.DECODE, Blocked.BATCH)
    tight = decide(2, [prompt(1)], blocks=0)  # (ii) no KV blocks
    assert (tight.action, tight.blocked) == (Action.DECODE, Blocked.KV)
    late = decide(2, [prompt(1)], left=1)  # (iii) the resumed decode would not fit into the window
    assert (late.action, late.blocked) == (Action.DECODE, Blocked.WINDOW)
    assert decide(2, [prompt(1)], left=2).action is Action.PREFILL


@pytest.mark.parametrize("left", [0, 1])
def test_an_idle_scheduler_relaunches_before_a_prefill_that_its_window_does_not_hold(left: int) -> None:
    assert decide(0, [prompt(1)], left=left).action is Action.RELAUNCH


def test_the_decode_that_pauses_interrupt_goes_on_after_enough_prompt_tokens() -> None:
    assert decide(2, [prompt(1)], prefilled=49).action is Action.PREFILL
    turn = decide(2, [prompt(1)], prefilled=50)
    assert (turn.action, turn.blocked) == (Action.DECODE, Blocked.TURN)
    assert decide(0, [prompt(1)], prefilled=50).action is Action.PREFILL  # all of them ended at their first token
    assert decide(2, [prompt(1)], prefilled=50, left=0).action is Action.RELAUNCH
    each = replace(LIMITS, resume_after_tokens=1)
    assert policy.decide(2, [prompt(1)], 100, 120, 1, each, PREFILL).action is Action.DECODE


def test_prefilled_tokens_are_counted_up_to_where_they_matter() -> None:
    assert policy.prefilled(0, 10, LIMITS) == 10
    assert policy.prefilled(45, 10, LIMITS) == 50


def test_prompts_share_a_prefill_only_while_its_padding_stays_small() -> None:
    alike = [prompt(1, tokens=60), prompt(2, tokens=50)]  # 2 x 64 holds them with 18 tokens of padding
    assert policy.claimable(alike, 4, 100, LIMITS, PREFILL) == (2, Blocked.NOT)
    unlike = [prompt(1, tokens=120), prompt(2, tokens=20)]  # 2 x 128 would have 116
    assert policy.claimable(unlike, 4, 100, LIMITS, PREFILL) == (1, Blocked.TURN)
    assert policy.claimable(unlike, 4, 100, replace(LIMITS, prefill_padding_tokens_max=116), PREFILL) == (
        2,
        Blocked.NOT,
    )
    # Alone a prompt is claimed whatever its own padding is.
    alone = replace(LIMITS, prefill_padding_tokens_max=0)
    assert policy.claimable([prompt(1, tokens=65)], 4, 100, alone, PREFILL) == (1, Blocked.NOT)


def test_a_prefill_claims_from_the_head_of_the_line_only() -> None:
    waiting = [prompt(1), prompt(2, tokens=900), prompt(3)]
    # 2 and 1 need the shape 2 x 900, which was not captured: 3 may not pass it.
    assert policy.claimable(waiting, 4, 100, LIMITS, PREFILL) == (1, Blocked.TURN)
    assert policy.claimable(waiting, 4, 1, LIMITS, PREFILL) == (1, Blocked.KV)
    assert policy.claimable(waiting, 1, 100, LIMITS, PREFILL) == (1, Blocked.BATCH)
    assert policy.claimable(waiting[1:], 4, 100, LIMITS, PREFILL) == (1, Blocked.TURN)  # alone it takes the largest
    assert policy.claimable([prompt(i) for i in range(5)], 4, 100, LIMITS, PREFILL) == (2, Blocked.TURN)
    assert policy.claimable([prompt(1), prompt(2)], 4, 100, LIMITS, PREFILL) == (2, Blocked.NOT)


@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.integers(1, 1024), st.integers(1, 64)), max_size=6),
    st.integers(0, 80),
    st.integers(0, 120),
    st.integers(0, 50),
)
def test_every_decision_is_allowed(
    running: int, prompts: list[tuple[int, int]], blocks: int, left: int, prefilled: int
) -> None:
    waiting = [prompt(i, tokens, output) for i, (tokens, output) in enumerate(prompts)]
    decision = decide(running, waiting, blocks, left, prefilled)
    claimed = waiting[: decision.claim_count]
    if decision.action is Action.PREFILL:
        assert claimed and left >= policy.LAUNCHES_FOR_PAUSE and running + len(claimed) <= LIMITS.batch_max
        assert sum(policy.kv_blocks_needed(p.prompt_tokens, p.output_tokens_max, 16) for p in claimed) <= blocks
        shape = PREFILL.choose(len(claimed), max(p.prompt_tokens for p in claimed))
        if len(claimed) > 1:
            padding = shape.batch * shape.sequence - sum(p.prompt_tokens for p in claimed)
            assert padding <= LIMITS.prefill_padding_tokens_max
        assert not (prefilled >= LIMITS.resume_after_tokens and running)
    else:
        assert not claimed
    if decision.action is Action.DECODE:
        assert running and left
    if decision.action is Action.RELAUNCH:
        assert left < policy.LAUNCHES_FOR_PAUSE


@pytest.mark.parametrize(
    ("count", "eos_at", "most", "capacity", "status"),
    [
        (1, 5, 5, 5, SlotStatus.NONE),
        (5, 5, 9, 9, SlotStatus.STOP),
        (5, 9, 5, 9, SlotStatus.LENGTH),
        (5, 9, 9, 5, SlotStatus.LENGTH),
        (5, 5, 5, 5, SlotStatus.STOP),
    ],
)
def test_why_a_request_ends(count: int, eos_at: int, most: int, capacity: int, status: SlotStatus) -> None:
    assert policy.end_status(count, eos_at, most, capacity) is status


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_the_end_count_is_the_first_that_ends(eos_at: int, most: int, capacity: int) -> None:
    end = policy.end_count(eos_at, most, capacity)
    assert policy.end_status(end, eos_at, most, capacity) is not SlotStatus.NONE
    assert all(policy.end_status(n, eos_at, most, capacity) is SlotStatus.NONE for n in range(1, end))
