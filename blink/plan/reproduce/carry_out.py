"""Carries the runs out, several at once, and evaluates the facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from blink.common.errors import InputError
from blink.plan.point import PointResult, Progress, run_points
from blink.plan.reproduce.disturbed import DISTURBED
from blink.plan.reproduce.evidence import Evidence, NoEvidenceError
from blink.plan.reproduce.facts import Fact, load_facts, load_reasons
from blink.plan.reproduce.loaded import LOADED
from blink.plan.reproduce.predict import Prediction, Registry
from blink.plan.reproduce.profiled import PROFILED
from blink.plan.reproduce.testbed import Key, Run, Testbed
from blink.plan.reproduce.verdict import Verdict, judge
from blink.plan.reproduce.window import Figures

EVALUATIONS: Registry = {**PROFILED, **LOADED, **DISTURBED}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """All that came of it. `partial`: stopped before every run was made."""

    bed: Testbed
    evidence: Evidence
    verdicts: tuple[Verdict, ...]
    run_count: int
    partial: bool


def chosen_facts(patterns: Sequence[str]) -> tuple[Fact, ...]:
    """The facts whose id matches one of the shell patterns; all without one. InputError for one that matches none."""
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
    results = run_points(runs, workers=workers, progress=progress, stop=stop)
    evidence = Evidence(bed, by_point(runs, results))
    reasons = load_reasons()
    verdicts = [verdict for fact in facts for verdict in judge(fact, predictions(fact, evidence), reasons)]
    return Reproduction(bed, evidence, tuple(verdicts), len(runs), len(results) < len(runs))


def predictions(fact: Fact, evidence: Evidence) -> dict[str, Prediction]:
    """What the twin has for each quantity; where the runs do not say it, why."""
    try:
        return EVALUATIONS[fact.id].evaluate(evidence)
    except NoEvidenceError as error:
        return {quantity.name: Prediction(absent=str(error)) for quantity in fact.quantities}


def by_point(runs: Sequence[Run], results: Sequence[PointResult]) -> dict[Key, list[Figures]]:
    """The figures of each point, one entry a seed; runs without a result are left out."""
    found = {result.key: result.summary for result in results}
    points: dict[Key, list[Figures]] = {}
    for run in runs:
        if run.key in found:
            points.setdefault(run.at, []).append({**dict(run.key[1:]), **found[run.key]})
    return points
