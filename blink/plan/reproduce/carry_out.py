"""Carries the runs out, several at once, and evaluates the facts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from fnmatch import fnmatchcase

from blink.common.errors import InputError
from blink.plan.reproduce.disturbed import DISTURBED
from blink.plan.reproduce.evidence import Evidence, NoEvidenceError
from blink.plan.reproduce.facts import Fact, load_facts, load_reasons
from blink.plan.reproduce.loaded import LOADED
from blink.plan.reproduce.predict import Prediction, Registry
from blink.plan.reproduce.profiled import PROFILED
from blink.plan.reproduce.testbed import Key, Run, Testbed
from blink.plan.reproduce.verdict import Verdict, judge
from blink.plan.reproduce.window import Figures, figures

DRAIN_RATIO = 2
"""A run is followed for so many times the length of its load. What was begun during the load is over by then, and what was
not begun by then is no part of any figure."""
EVALUATIONS: Registry = {**PROFILED, **LOADED, **DISTURBED}
Progress = Callable[[int, int], None]
"""Called with the number of runs that are done, and of all."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All that came of it. `partial`: stopped before every run was made."""

    bed: Testbed
    evidence: Evidence
    verdicts: tuple[Verdict, ...]
    run_count: int
    partial: bool


def chosen_facts(patterns: Sequence[str]) -> tuple[Fact, ...]:
    """The facts whose id matches one of the shell patterns; all without one. InputError for a pattern without a fact."""
    facts = load_facts()
    for pattern in patterns:
        if not any(fnmatchcase(fact.id, pattern) for fact in facts):
            raise InputError(f"--facts {pattern}: matches no fact; such as {', '.join(fact.id for fact in facts[:4])}")
    return tuple(fact for fact in facts if not patterns or any(fnmatchcase(fact.id, one) for one in patterns))


def kinds_of(facts: Sequence[Fact], *, everything: bool) -> frozenset[str]:
    """The kinds of runs that these facts need; `everything` adds those that only a figure shows."""
    needed = frozenset(kind for fact in facts for kind in EVALUATIONS[fact.id].kinds)
    return needed | {"sweep"} if everything else needed


def reproduce(
    bed: Testbed,
    facts: Sequence[Fact],
    kinds: frozenset[str],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Reproduction:
    """Make the runs and judge the facts. Once `stop()` is true no further run begins, and the result is partial."""
    runs = bed.runs(kinds)
    done = carry_out(runs, workers or os.cpu_count() or 1, progress, stop)
    gathered: dict[Key, list[Figures]] = {}
    for run, found in zip(runs, done, strict=True):
        if found is not None:
            gathered.setdefault(run.key, []).append(found)
    evidence = Evidence(bed, gathered)
    reasons = load_reasons()
    verdicts = [verdict for fact in facts for verdict in judge(fact, predictions(fact, evidence), reasons)]
    return Reproduction(bed, evidence, tuple(verdicts), len(runs), any(found is None for found in done))


def predictions(fact: Fact, evidence: Evidence) -> dict[str, Prediction]:
    """What the twin has for each quantity; where the runs do not say it, why."""
    try:
        return EVALUATIONS[fact.id].evaluate(evidence)
    except NoEvidenceError as error:
        return {quantity.name: Prediction(absent=str(error)) for quantity in fact.quantities}


def carry_out(
    runs: Sequence[Run], workers: int, progress: Progress | None = None, stop: Callable[[], bool] | None = None
) -> list[Figures | None]:
    """The figures of each run in the order of the runs, whatever the number of workers; None for what was not made."""
    found: list[Figures | None] = [None] * len(runs)
    if workers == 1:
        for index, run in enumerate(runs):
            if stop and stop():
                break
            found[index] = one_run(run)
            if progress:
                progress(index + 1, len(runs))
        return found
    with ProcessPoolExecutor(workers, initializer=_leave_interrupts_to_the_parent) as pool:
        waiting = {pool.submit(one_run, run): index for index, run in enumerate(runs)}
        try:
            _collect(waiting, found, progress, stop)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return found


def _collect(
    waiting: dict[Future[Figures], int],
    found: list[Figures | None],
    progress: Progress | None,
    stop: Callable[[], bool] | None,
) -> None:
    open_runs = set(waiting)
    while open_runs:
        done, open_runs = wait_for(open_runs, timeout=0.5, return_when="FIRST_COMPLETED")
        for future in done:
            found[waiting[future]] = future.result()
        if progress:
            progress(len(found) - len(open_runs), len(found))
        if stop and stop():
            return


def one_run(run: Run) -> Figures:
    """Simulate one run and take its figures. InputError names the run."""
    from blink.sim.run import simulate
    from blink.workload.build import build_load

    now_ns = 0

    def advanced(_completed: int, _total: int, at_ns: int) -> None:
        nonlocal now_ns
        now_ns = at_ns

    def seen_enough() -> bool:
        return run.duration_ns is not None and now_ns > DRAIN_RATIO * run.duration_ns

    try:
        scenario, requests = build_load(run.scenario)
        result = simulate(scenario, requests, progress=advanced, stop=seen_enough)
        return figures(result, run.duration_ns, run.warmup_ns)
    except InputError as error:
        raise InputError(f"{' '.join(run.key)}, seed {run.seed}: {error}") from None


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
