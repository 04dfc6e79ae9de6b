"""The mutants: each is killed by the invariant that its wrong belief breaks, or is equivalent; traces show the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.common.checker import check_trace
from blink.common.events import EVIDENCE_OF
from blink.common.verdict import CONFORMS, STUCK, VIOLATES
from blink.prove import frontend, wire
from blink.prove.action import Move
from blink.prove.campaign import Trial, shown_counterexample, try_mutants
from blink.prove.configurations import CONFIGURATION_BY_NAME, CONFIGURATIONS, Configuration
from blink.prove.explorer import Step, search
from blink.prove.model import moves
from blink.prove.mutants import EQUIVALENT, Mutant
from blink.prove.recording import save, trace_of, trace_of_counterexample
from blink.prove.rules import Rules
from blink.prove.state import State, initial, is_idle
from blink.prove.story import story
from blink.report.proof import configurations_markdown, mutants_markdown
from tests.model.prove_paths import random_path
from tests.shared import ROOT

KILLED = {
    Mutant.FLAG_BEFORE_PAYLOAD: ("I2", "one-request", 3),
    Mutant.RELAXED_WRITE_ORDER: ("I2", "one-request", 3),
    Mutant.COUNT_PUBLISHED_BEFORE_TOKEN: ("I2", "one-request", 11),
    Mutant.COUNT_IN_A_SECOND_WORD: ("I7", "one-request", 16),
    Mutant.NO_GENERATION_CHECK: ("I7", "two-requests", 21),
    Mutant.TRUST_AN_EMPTY_SEEN_ON_THE_WIRE: ("I9", "one-request", 4),
    Mutant.GENERATION_NOT_BUMPED: ("I3", "one-request", 17),
    Mutant.RECYCLE_BEFORE_THE_READS_ARE_DONE: ("I7", "two-requests", 27),
    Mutant.CANCEL_THROUGH_CTL: ("I1", "one-request-cancel", 6),
    Mutant.CANCEL_IGNORED_WHILE_PAUSED: ("I10", "one-request-cancel", 17),
    Mutant.RELAUNCH_THAT_ADOPTS_NOTHING: ("L1", "one-request-relaunch", 7),
    Mutant.RESTART_THAT_FREES_EVERYTHING: ("I9", "one-request-crash", 10),
    Mutant.OLD_CONNECTION_LEFT_ALIVE: ("I9", "one-request-crash", 10),
    Mutant.NO_EPOCH_FENCE: ("I10", "one-request-crash", 11),
    Mutant.NO_CAPACITY_GUARD: ("I6", "one-request", 16),
    Mutant.NEVER_RESUME: ("L1", "one-request-cancel", 12),
}
"""By whom, in which configuration, after how many events."""

LADDER = [row for row in CONFIGURATIONS if not row.large]
QUICK = [row for row in LADDER if row.states < 10_000]


def tried(mutant: Mutant) -> Trial:
    (trial,) = try_mutants([mutant], QUICK, time.perf_counter_ns)
    return trial


@pytest.fixture(scope="module")
def trials() -> dict[Mutant, Trial]:
    """Every mutant in the configurations that take no time."""
    return {trial.mutant: trial for trial in try_mutants(list(Mutant), QUICK, time.perf_counter_ns)}


def test_every_mutant_is_killed_or_listed() -> None:
    assert set(KILLED) | EQUIVALENT == set(Mutant)
    assert not set(KILLED) & EQUIVALENT


@pytest.mark.parametrize("mutant", KILLED, ids=lambda mutant: mutant.label)
def test_a_mutant_is_killed_by_its_invariant(mutant: Mutant, trials: dict[Mutant, Trial]) -> None:
    trial = trials[mutant]
    assert trial.counterexample is not None and trial.configuration is not None
    found = trial.counterexample
    assert (found.breach.invariant, trial.configuration.name, len(found.steps)) == KILLED[mutant]
    assert trial.as_expected and trial.outcome == found.breach.invariant


@pytest.mark.parametrize("mutant", KILLED, ids=lambda mutant: mutant.label)
def test_no_smaller_configuration_kills_it(mutant: Mutant) -> None:
    """The configuration named for a kill has the fewest states of all that can."""
    limit = CONFIGURATION_BY_NAME[KILLED[mutant][1]].states
    for configuration in LADDER:
        if configuration.states < limit:
            assert search(Rules.of(configuration, [mutant])).counterexample is None


@pytest.mark.parametrize("mutant", sorted(EQUIVALENT, key=lambda mutant: mutant.name), ids=lambda mutant: mutant.label)
@pytest.mark.parametrize(
    "configuration",
    [pytest.param(row, id=row.name, marks=pytest.mark.slow if row.states > 100_000 else ()) for row in LADDER],
)
def test_an_equivalent_mutant_has_the_very_graph_of_the_protocol(mutant: Mutant, configuration: Configuration) -> None:
    found = search(Rules.of(configuration, [mutant]))
    assert found.counterexample is None
    counts = (found.states, found.transitions, found.depth)
    assert counts == (configuration.states, configuration.transitions, configuration.depth)


def test_a_survivor_is_a_surprise(trials: dict[Mutant, Trial]) -> None:
    (trial,) = try_mutants([Mutant.NEVER_RESUME], [CONFIGURATION_BY_NAME["one-request"]], time.perf_counter_ns)
    assert trial.counterexample is None and not trial.as_expected and trial.outcome == "survives"
    assert all(trial.as_expected for trial in trials.values())


def test_the_generation_in_a_cancel_stops_a_late_cancel() -> None:
    """Why the word carries a generation, which no single mutant shows: together with another one it breaks I8."""
    configuration = Configuration("late cancel", "", tokens=1, cancels=1, crashes=1)

    def breaks_i8(*mutants: Mutant) -> bool:
        rules = Rules.of(configuration, mutants)
        return search(rules, accept=lambda found: found.breach.invariant == "I8").counterexample is not None

    assert not breaks_i8(Mutant.OLD_CONNECTION_LEFT_ALIVE)
    assert not breaks_i8(Mutant.CANCEL_WITHOUT_GENERATION)
    assert breaks_i8(Mutant.OLD_CONNECTION_LEFT_ALIVE, Mutant.CANCEL_WITHOUT_GENERATION)


def test_a_count_before_its_token_hands_over_what_is_not_there() -> None:
    """The shortest story breaks I2 at the last token; where a token is not the last, a longer one breaks I7."""
    rules = Rules.of(CONFIGURATION_BY_NAME["one-request-cancel"], [Mutant.COUNT_PUBLISHED_BEFORE_TOKEN])
    found = search(rules, accept=lambda found: found.breach.invariant == "I7").counterexample
    assert found is not None
    assert found.breach.message == "token 0 that request 0 gets is not its own"


# --- stories and traces ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutant", KILLED, ids=lambda mutant: mutant.label)
def test_a_story_is_numbered_and_ends_with_the_invariant(mutant: Mutant, trials: dict[Mutant, Trial]) -> None:
    found = trials[mutant].counterexample
    assert found is not None
    lines = story(found)
    events = lines[:-2]
    assert [int(line.split()[0]) for line in events] == list(range(1, len(found.steps) + 1))
    assert all(line.split()[1] in ("frontend", "gpu", "wire") for line in events)
    assert lines[-2].startswith(f"{found.breach.invariant}: ")


@pytest.mark.parametrize("suffix", [".ndjson", ".parquet"])
@pytest.mark.parametrize("mutant", KILLED, ids=lambda mutant: mutant.label)
def test_the_checker_rejects_the_trace_for_the_same_reason(
    mutant: Mutant, suffix: str, trials: dict[Mutant, Trial], tmp_path: Path
) -> None:
    shown = shown_counterexample(trials[mutant], QUICK)
    assert shown is not None
    rules, found = shown
    assert found.breach.invariant == KILLED[mutant][0]
    path = tmp_path / f"counterexample{suffix}"
    save(path, trace_of_counterexample(rules, found))
    verdict = check_trace(path)
    assert verdict.code == (STUCK if found.breach.invariant == "L1" else VIOLATES)
    assert verdict.violations[0].invariant == found.breach.invariant
    assert verdict.unjudged == ()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("mutant", "column"),
    [(Mutant.RELAXED_WRITE_ORDER, "prompt_tag"), (Mutant.COUNT_PUBLISHED_BEFORE_TOKEN, "stored_count")],
    ids=str,
)
def test_without_its_evidence_the_order_of_stores_is_not_judged(
    mutant: Mutant, column: str, trials: dict[Mutant, Trial]
) -> None:
    """The events alone are those of a run in which nothing is wrong; the verdict says what it leaves open."""
    shown = shown_counterexample(trials[mutant], QUICK)
    assert shown is not None
    trace = trace_of_counterexample(*shown)
    bare = {name: np.full(len(trace), -1) if name in trace.header.evidence else v for name, v in trace.columns.items()}
    verdict = check_trace(replace(trace, header=replace(trace.header, evidence=()), columns=bare))
    assert verdict.code == CONFORMS
    assert any(EVIDENCE_OF[column].shows in clause for clause in verdict.unjudged)
    promised = check_trace(replace(trace, columns=bare))
    assert promised.code == VIOLATES, "a header that promises what the rows lack is no pass either"


def test_a_count_before_its_token_shows_in_a_trace_of_a_client_too() -> None:
    """The longer story, in which the client gets what lay there: the rows tell of it twice, each time as I7."""
    rules = Rules.of(CONFIGURATION_BY_NAME["one-request-cancel"], [Mutant.COUNT_PUBLISHED_BEFORE_TOKEN])
    found = search(rules, accept=lambda found: found.breach.invariant == "I7").counterexample
    assert found is not None
    verdict = check_trace(trace_of_counterexample(rules, found))
    assert [finding.invariant for finding in verdict.violations] == ["I7", "I7"]
    assert "publishes token count 1 with 0 of them stored" in verdict.violations[0].message
    assert "are not those of request 0" in verdict.violations[1].message


@given(st.sampled_from(CONFIGURATIONS), st.integers(0, 2**32 - 1), st.integers(0, 300))
@settings(max_examples=150, deadline=None)
def test_every_path_of_the_protocol_conforms(configuration: Configuration, seed: int, length: int) -> None:
    """The model and the executable specification of traces agree: what one reaches the other accepts."""
    rules, choices = Rules.of(configuration), np.random.default_rng(seed)
    steps = random_path(configuration, choices, length)
    assert check_trace(trace_of(rules, steps, drained=True)).code == CONFORMS
    cut = int(choices.integers(len(steps) + 1))
    assert check_trace(trace_of(rules, steps[:cut], drained=False)).code == CONFORMS


def double_crash(configuration: Configuration, *, landed: bool) -> list[Step]:
    """A crash, a restart, a second crash before or after the new epoch has landed, a restart, and then a drain."""
    rules, state, steps = Rules.of(configuration), initial(configuration), list[Step]()

    def go(wanted: Callable[[Move], bool]) -> None:
        nonlocal state
        action, place = next(move for move in moves(rules, state) if wanted(move))
        after = action.effect(rules, state, place)
        steps.append(Step(state, action, place, after))
        state = after

    go(lambda move: move[0] is frontend.SUBMIT)
    for _ in range(3):
        go(lambda move: move[0] is wire.LAND)
    for action in (frontend.CRASH, frontend.RESTART, *[wire.LAND] * landed, frontend.CRASH, frontend.RESTART):
        go(lambda move, action=action: move[0] is action)
    while not is_idle(state):
        go(lambda move: (move[0].drains and move[0] is not frontend.POLL) or not_waiting(rules, state))
    return steps


def not_waiting(rules: Rules, state: State) -> bool:
    """Whether nothing but polling is possible."""
    return all(move[0] is frontend.POLL or not move[0].drains for move in moves(rules, state))


@pytest.mark.parametrize("landed", [False, True])
def test_a_second_crash_is_safe_before_and_after_the_new_epoch_has_landed(landed: bool) -> None:
    steps = double_crash(CONFIGURATION_BY_NAME["one-slot-crashes"], landed=landed)
    epochs = [step.after.frontend.epoch for step in steps if step.action is frontend.RESTART]
    assert epochs == ([1, 2] if landed else [1, 1])
    rules = Rules.of(CONFIGURATION_BY_NAME["one-slot-crashes"])
    assert check_trace(trace_of(rules, steps, drained=True)).code == CONFORMS


# --- the page -------------------------------------------------------------------------------------------------------


def test_the_page_has_the_tables_of_the_code(trials: dict[Mutant, Trial]) -> None:
    page = (ROOT / "docs" / "proof.md").read_text(encoding="utf-8")
    assert configurations_markdown(CONFIGURATIONS) in page
    shown = []
    for mutant in Mutant:
        if mutant in EQUIVALENT:
            shown.append("-")
        else:
            shown.append("exit 4" if KILLED[mutant][0] == "L1" else "exit 2")
    assert mutants_markdown([trials[mutant] for mutant in Mutant], shown) in page
