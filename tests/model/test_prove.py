"""The search of the protocol: every configuration holds with the counts that it declares, and none vacuously."""

from __future__ import annotations

import gc
import time
from collections import deque

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common.states import Actor, SlotState, SlotStatus
from blink.common.transitions import LEGAL_TRIPLES, TRANSITIONS
from blink.prove import explorer, gpu, properties, wire
from blink.prove.action import Action
from blink.prove.campaign import prove
from blink.prove.configurations import CONFIGURATION_BY_NAME, CONFIGURATIONS, LAST_GENERATION, Configuration
from blink.prove.drain import Drain, components, drain_of
from blink.prove.explorer import distances, search
from blink.prove.model import ACTIONS, moves
from blink.prove.mutants import Mutant
from blink.prove.properties import INVARIANTS, row_of, store_breach
from blink.prove.recording import is_shown
from blink.prove.rules import SWITCHES, Rules
from blink.prove.state import (
    COMPLETED,
    DECODING,
    PAUSED,
    PENDING,
    PREFILLING,
    Phase,
    State,
    generation_of,
    initial,
    is_idle,
    state_of,
    status_of,
    word_of,
)

SLOW_STATES = 100_000
QUICK = [row for row in CONFIGURATIONS if row.states < SLOW_STATES]


def sized(row: Configuration) -> object:
    return pytest.param(row, id=row.name, marks=pytest.mark.slow if row.states >= SLOW_STATES else ())


@pytest.mark.parametrize("configuration", [sized(row) for row in CONFIGURATIONS])
def test_every_invariant_holds_and_the_counts_are_those_declared(configuration: Configuration) -> None:
    (proof,) = prove([configuration], time.perf_counter_ns)
    found = proof.search
    assert found.counterexample is None
    counts = (found.states, found.transitions, found.depth, found.drain_bound)
    declared = (configuration.states, configuration.transitions, configuration.depth, configuration.drain_bound)
    assert counts == declared
    assert proof.holds
    assert 0 < found.drain_depth <= {1: 20, 2: 31}[configuration.slots]
    assert found.drain_depth <= found.drain_bound <= {1: 42, 2: 80}[configuration.slots]


def test_the_configurations_are_as_large_as_the_specification_expects() -> None:
    def states(name: str) -> int:
        return CONFIGURATION_BY_NAME[name].states

    assert 1_000 <= states("one-slot") < 10_000
    assert 10_000 <= states("one-slot-faults") < 100_000
    assert 100_000 <= states("two-slots") < 1_000_000
    assert len(CONFIGURATION_BY_NAME) == len(CONFIGURATIONS)
    assert list(CONFIGURATIONS) == sorted(CONFIGURATIONS, key=lambda row: (row.large, row.states))


def test_drift_is_seen() -> None:
    (proof,) = prove([Configuration("drifted", "", requests=1, tokens=1, states=54)], time.perf_counter_ns)
    assert proof.drift is not None and "(53, 94, 17, 19)" in proof.drift
    assert not proof.holds


class Coverage:
    """What occurred in a search."""

    def __init__(self) -> None:
        self.actions: set[str] = set()
        self.transitions: set[str] = set()
        self.statuses: set[SlotStatus] = set()
        self.failed_swaps = 0
        self.races: set[str] = set()
        self.generations: set[int] = set()

    def __call__(self, before: State, action: Action, place: int, after: State) -> None:
        self.actions.add(action.name)
        for slot, (old, new) in enumerate(zip(before.memory, after.memory, strict=True)):
            if old.ctl != new.ctl:
                self._stored(old.ctl, new.ctl, action)
            if old.cancel != new.cancel and new.cancel == generation_of(new.ctl):
                self.races.add(f"cancel lands in {SlotState(state_of(new.ctl)).label}")
            if before.epoch != after.epoch:
                self.races.add(f"epoch changes in {SlotState(state_of(new.ctl)).label}")
            if action is gpu.RELAUNCH:
                self.races.add(f"relaunch in {SlotState(state_of(new.ctl)).label}")
            self.generations.add(generation_of(new.ctl))
            read = before.wire.tokens[slot]
            if action is wire.LAND and read is not None:
                self.races.add("a WRITE overtakes a READ of tokens")
        if action is gpu.CLAIM and before.memory[place] is after.memory[place]:
            self.failed_swaps += 1
        if action is wire.LAND and before.wire.read:
            self.races.add("a WRITE overtakes a READ of the status array")

    def _stored(self, old: int, new: int, action: Action) -> None:
        row = row_of(old, new, Actor.FRONTEND if action.actor is None else action.actor)
        assert row is not None
        self.transitions.add(row.name)
        self.statuses.add(SlotStatus(status_of(new)))


def test_every_transition_status_and_race_occurs() -> None:
    seen = Coverage()
    for configuration in QUICK:
        search(Rules.of(configuration), observe=seen)
    assert seen.transitions == {row.name for row in TRANSITIONS}
    # A descriptor is bad only if the hardware corrupts it, or in a mutant.
    assert seen.statuses == set(SlotStatus) - {SlotStatus.BAD_DESCRIPTOR}
    # Nothing of an old connection ever lands: only a mutant leaves it alive.
    assert seen.actions == {action.name for action in ACTIONS} - {"land_late"}
    gpus = ("prefill_pending", "prefill_processing", "decode_processing", "decode_paused")
    for state in gpus:
        assert {f"cancel lands in {state}", f"epoch changes in {state}", f"relaunch in {state}"} <= seen.races
    assert "cancel lands in decode_completed" in seen.races
    assert {"a WRITE overtakes a READ of the status array", "a WRITE overtakes a READ of tokens"} <= seen.races
    assert {LAST_GENERATION, 0, 1} <= seen.generations
    assert seen.failed_swaps == 0  # why a claim without CAS is equivalent


def test_whatever_is_not_in_the_table_breaks_i1() -> None:
    for source in SlotState:
        for target in SlotState:
            for actor in Actor:
                for status in SlotStatus:
                    old, new = word_of(source, SlotStatus.NONE, 0, 4, 1), word_of(target, status, 0, 4, 1)
                    breach = store_breach(old, new, actor, 9)
                    rows = [
                        row
                        for row in TRANSITIONS
                        if source in row.sources and (target, actor) == (row.target, row.actor)
                    ]
                    known = [row for row in rows if status in row.statuses]
                    assert bool(rows) == ((source, target, actor) in LEGAL_TRIPLES)
                    assert (breach is not None and breach.invariant == "I1") == (not known)


def test_generation_count_and_limit_are_judged_by_the_row_of_the_table() -> None:
    for old, new, status, actor, expected in (
        ((DECODING, 1, 1), (COMPLETED, 1, 2), SlotStatus.STOP, Actor.GPU, None),
        ((DECODING, 1, 1), (COMPLETED, 1, 1), SlotStatus.STOP, Actor.GPU, "I5"),
        ((DECODING, 1, 1), (DECODING, 1, 3), SlotStatus.NONE, Actor.GPU, "I5"),
        ((DECODING, 1, 1), (DECODING, 1, 0), SlotStatus.NONE, Actor.GPU, "I5"),
        ((DECODING, 1, 2), (DECODING, 1, 3), SlotStatus.NONE, Actor.GPU, "I6"),
        ((PENDING, 1, 0), (PREFILLING, 2, 0), SlotStatus.NONE, Actor.GPU, "I3"),
        ((COMPLETED, LAST_GENERATION, 2), (0, 0, 0), SlotStatus.NONE, Actor.FRONTEND, None),
        ((COMPLETED, 1, 2), (0, 3, 0), SlotStatus.NONE, Actor.FRONTEND, "I3"),
    ):
        before, after = word_of(old[0], SlotStatus.NONE, 0, *old[1:]), word_of(new[0], status, 0, *new[1:])
        breach = store_breach(before, after, actor, 2)
        assert (None if breach is None else breach.invariant) == expected


def test_a_second_claim_of_a_generation_breaks_i4() -> None:
    rules = Rules.of(CONFIGURATION_BY_NAME["one-request"])
    state = initial(rules.configuration)
    for _ in range(100):
        choices = [(a, p) for a, p in moves(rules, state) if a.name in ("submit", "land", "see")]
        if not choices:
            break
        action, place = choices[0]
        state = action.effect(rules, state, place)
    first = gpu.claim(rules, state, 0)
    assert properties.breach_of(rules, state, gpu.CLAIM, 0, first) is None
    again = state._replace(memory=(state.memory[0]._replace(claims=1),))
    breach = properties.breach_of(rules, again, gpu.CLAIM, 0, gpu.claim(rules, again, 0))
    assert breach is not None and breach.invariant == "I4"


def test_a_slot_in_use_that_is_empty_breaks_i9() -> None:
    state = initial(CONFIGURATION_BY_NAME["one-request"])
    assert properties.state_breach(state) is None
    views = (state.frontend.views[0]._replace(phase=Phase.IN_USE),)
    breach = properties.state_breach(state._replace(frontend=state.frontend._replace(views=views)))
    assert breach is not None and breach.invariant == "I9"
    views = (state.frontend.views[0]._replace(generation=7),)
    breach = properties.state_breach(state._replace(frontend=state.frontend._replace(views=views)))
    assert breach is not None and breach.invariant == "I9"


def test_every_invariant_of_the_specification_is_a_property() -> None:
    assert list(INVARIANTS) == [f"I{number}" for number in range(1, 11)] + ["L1", "L2"]


def test_every_mutant_is_a_switch() -> None:
    assert {mutant.switch for mutant in Mutant} == SWITCHES
    assert is_idle(initial(CONFIGURATION_BY_NAME["two-slots"]))


edges = st.integers(1, 12).flatmap(
    lambda count: st.tuples(
        st.lists(st.booleans(), min_size=count, max_size=count),
        st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=40),
    )
)


@given(edges)
def test_distances_are_those_of_a_plain_search(graph: tuple[list[bool], list[tuple[int, int]]]) -> None:
    goal, arcs = graph
    expected = [-1] * len(goal)
    queue = deque(index for index, is_goal in enumerate(goal) if is_goal)
    for index in queue:
        expected[index] = 0
    while queue:
        target = queue.popleft()
        for source, end in arcs:
            if end == target and expected[source] < 0:
                expected[source] = expected[target] + 1
                queue.append(source)
    sources = np.array([source for source, _ in arcs], np.int32)
    targets = np.array([target for _, target in arcs], np.int32)
    assert distances(np.array(goal), sources, targets).tolist() == expected


# --- L2 -------------------------------------------------------------------------------------------------------------


def drain(count: int, edges: list[tuple[int, int, int]], goal: int = 0) -> Drain:
    """Of a graph with the edges (source, target, label)."""
    sources, targets, labels = np.array(sorted(edges), np.int32).reshape(-1, 3).T
    return drain_of(np.arange(count) == goal, sources, targets, labels)


def test_the_bound_is_the_longest_way_down() -> None:
    assert drain(1, []) == Drain(0, 1, -1)
    assert drain(4, [(1, 0, 1), (2, 1, 1), (3, 2, 1), (3, 0, 2)]) == Drain(3, 1, -1)


def test_circling_is_no_progress_and_ends_where_one_event_is_possible_all_the_while() -> None:
    circle = [(1, 2, 1), (2, 1, 1)]
    assert drain(3, [*circle, (1, 0, 2), (2, 0, 2)]) == Drain(1, 2, -1)
    assert drain(3, [*circle, (1, 0, 2)]).trap == 1, "possible now and then is not possible all the while"
    assert drain(3, [*circle, (1, 0, 2), (2, 0, 3)]).trap == 1, "two events are not one"
    assert drain(3, circle).trap == 1
    assert drain(2, [(1, 1, 1)]).trap == 1
    assert drain(2, [(1, 1, 1), (1, 0, 2)]) == Drain(1, 1, -1)
    assert drain(3, [(1, 0, 1)]).trap == 2, "nothing leads out of a state that is not the goal"


@given(edges)
def test_components_are_those_of_networkx(graph: tuple[list[bool], list[tuple[int, int]]]) -> None:
    goal, arcs = graph
    arcs = sorted(arcs)
    begin = np.searchsorted(np.array([source for source, _ in arcs], np.int64), np.arange(len(goal) + 1)).tolist()
    found = components(begin, [target for _, target in arcs])
    whole = networkx.DiGraph(arcs)
    whole.add_nodes_from(range(len(goal)))
    expected = {frozenset(nodes) for nodes in networkx.strongly_connected_components(whole)}
    assert {frozenset(np.flatnonzero(np.array(found) == number).tolist()) for number in set(found)} == expected
    assert all(found[source] >= found[target] for source, target in arcs)


def test_a_scheduler_that_may_pause_for_ever_need_not_drain() -> None:
    """Why pauses count among what has to stop: L1 holds with them, and L2 does not."""
    numbers: dict[State, int] = {}
    arcs: list[tuple[int, int, int]] = []

    def observe(before: State, action: Action, place: int, after: State) -> None:
        source, target = (numbers.setdefault(state, len(numbers)) for state in (before, after))
        if action.drains or action is gpu.PAUSE:
            arcs.append((source, target, 64 * ACTIONS.index(action) + place))

    search(Rules.of(CONFIGURATION_BY_NAME["one-request-cancel"]), observe=observe)
    arcs.sort()
    sources, targets, labels = np.array(arcs, np.int32).T
    goal = np.array([is_idle(state) for state in numbers])
    assert (distances(goal, sources, targets) >= 0).all()
    trap = drain_of(goal, sources, targets, labels).trap
    assert trap >= 0
    cell = list(numbers)[trap].memory[0]
    assert state_of(cell.ctl) in (DECODING, PAUSED)


def test_a_trap_is_a_counterexample_of_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "drain_of", lambda *_: Drain(5, 3, 7))
    found = search(Rules.of(CONFIGURATION_BY_NAME["one-request"])).counterexample
    assert found is not None
    assert found.breach.invariant == "L2"
    assert len(found.steps) > 0
    assert is_shown(Rules.of(CONFIGURATION_BY_NAME["one-request"]), found), "a slot that never comes back"


def test_an_interrupted_search_leaves_the_collector_on() -> None:
    def interrupt(states: int, depth: int) -> None:
        raise KeyboardInterrupt

    assert gc.isenabled()
    with pytest.raises(KeyboardInterrupt):
        search(Rules.of(CONFIGURATION_BY_NAME["one-slot"]), progress=interrupt)
    assert gc.isenabled()
