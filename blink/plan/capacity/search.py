"""The search: for each candidate the fewest replicas that meet the objectives, by bounds, doubling and bisection.

1. A candidate's bound says how many replicas it needs at least. What cannot run, or cannot do it, is out, with why.
2. Rounds: the candidates that may still be cheapest each try one number of replicas, in one run with the first seed.
   A number that misses raises the lower end by one; one that meets is an upper end; between them the middle is next.
3. Where both ends meet, the number is run with all seeds. It stands if every seed meets the objectives there, and some
   seed misses them with one replica less. Else the number moves by one, and so on.
4. A candidate whose lower end is proven to cost `search.cost_ratio_max` times the cheapest fleet that stands, or more
   than a cap, is out.

That more replicas are not worse is how numbers between those tried are passed over; around the answer it is tried
(`order.py`), and so is the traffic over the day (`settle.py`).

It ends: a number of replicas is tried once with each seed, there are `limits.gpus_max` of them at most, and each round
tries at least one. Whatever the number of workers, the rounds are the same, and so is the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.perf.memory import DoesNotFitError
from blink.plan.capacity.bound import WORDS, Bound, bound_of
from blink.plan.capacity.candidate import Candidate
from blink.plan.capacity.measure import CapacityPoint, Objective, objectives_of
from blink.plan.capacity.options import option_words
from blink.plan.capacity.question import Question
from blink.plan.point import run_points

Figures = dict[str, Any]
Progress = Callable[[int, str], None]
"""Called with the number of runs that are done, and what goes on."""

TRIES_A_ROUND = 4
"""Candidates that are tried at the same time, whatever the number of workers: the answer must not depend on it."""
GUESS = 1.3
"""Replicas over the bound with which the search begins; the answer does not depend on it."""


class StoppedError(Exception):
    """The user asked to stop."""


@dataclass
class Trial:
    """What is known of a candidate. `low`: fewer replicas cannot do it. `high`: so many met it with the first seed."""

    candidate: Candidate
    bound: Bound | None = None
    low: int = 1
    high: int | None = None
    replicas: int | None = None  # of the fleet that stands
    out: str | None = None  # why it is out
    out_kind: str | None = None  # impossible, cost, power, dear
    excess: float = 1.0  # what it would need over what is allowed, where it is out
    proven: bool = True  # whether `low` follows from bounds alone
    raised: list[str] = field(default_factory=list)  # why it has more replicas than the busiest time needs
    misses_above: list[int] = field(default_factory=list)  # more replicas than the fleet has, which yet miss
    runs: dict[int, dict[int, Figures]] = field(default_factory=dict)  # replicas -> seed -> figures

    @property
    def open(self) -> bool:
        """Whether something is still to be tried."""
        return self.out is None and self.replicas is None

    @property
    def usd_low(self) -> float:
        """What it costs a month at least."""
        return self.candidate.usd_per_month(self.low, self.candidate.idle_kw(self.low))

    def drop(self, kind: str, why: str, excess: float = 1.0) -> None:
        """It is out."""
        self.out_kind, self.out, self.excess = kind, why, excess


class CapacitySearch:
    """The search for one question."""

    def __init__(
        self,
        question: Question,
        candidates: Sequence[Candidate],
        executor: Executor | None,
        progress: Progress | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.question, self._executor, self._progress, self._stop = question, executor, progress, stop
        self.trials = [Trial(candidate) for candidate in candidates]
        first = candidates[0].scenario.seed
        self.seeds = tuple(range(first, first + question.search.seeds))
        self.objectives = objectives_of(question.slo)
        self.run_count = 0

    def search(self) -> None:
        """Find the fleet of every candidate that may matter. Raises StoppedError if the user asked to stop."""
        for trial in self.trials:
            self.tell(f"bounds of {label(trial.candidate)}")
            self._begin(trial)
        while True:
            self._prune()
            tried = sorted((trial for trial in self.trials if trial.open), key=lambda one: one.usd_low)[:TRIES_A_ROUND]
            if not tried:
                return
            self._round(tried)

    # --- bounds ---

    def _begin(self, trial: Trial) -> None:
        try:
            bound = bound_of(trial.candidate, self.question.slo, self.seeds)
        except InputError as error:
            excess = error.factor if isinstance(error, DoesNotFitError) else math.inf
            trial.drop("impossible", " ".join(str(error).split()), excess)
            return
        trial.bound, trial.low = bound, bound.replicas
        if bound.impossible:
            trial.drop("impossible", bound.impossible, bound.excess)

    def _prune(self) -> None:
        caps, standing = self.question.limits, self.standing()
        cheapest = min((self.usd_per_month(trial) for trial in standing), default=None)
        for trial in self.trials:
            if not trial.open:
                continue
            kw, usd = trial.candidate.idle_kw(trial.low), trial.usd_low
            how = "needs" if trial.proven else "was found to need"
            need = f"{how} at least {trial.low} replica{'s' if trial.low > 1 else ''}"
            draw = f"which draw{'s' if trial.low == 1 else ''} {kw:.2f} kW even idle"
            if trial.low > trial.candidate.replicas_max:
                trial.drop("impossible", self._too_many(trial), 0.0)
            elif caps.power_kw_max is not None and kw > caps.power_kw_max:
                why = f"{need}, {draw}: the cap is {caps.power_kw_max:g} kW"
                trial.drop("power", why, kw / caps.power_kw_max)
            elif caps.usd_per_month_max is not None and usd > caps.usd_per_month_max:
                why = f"{need}, {usd:,.0f} USD a month: the cap is {caps.usd_per_month_max:,.0f}"
                trial.drop("cost", why, usd / caps.usd_per_month_max)
            elif cheapest is not None and usd >= self.question.search.cost_ratio_max * cheapest:
                trial.drop("dear", f"{need}, {usd:,.0f} USD a month: {usd / cheapest:.1f} times the cheapest fleet")

    def _too_many(self, trial: Trial) -> str:
        most = trial.candidate.replicas_max
        found = self.worst(trial, most)
        missed = "" if found is None else f": {found[0].says} is {shown(found[0], found[1])}"
        gpus = most * trial.candidate.gpus
        binds = f"; its GPUs' work is bound mostly by {WORDS[trial.bound.resource]}" if trial.bound else ""
        many = f"{gpus} GPU{'s' if gpus > 1 else ''}, all that limits.gpus_max leaves"
        return f"misses the objectives with {many}{missed}{binds}"

    # --- rounds ---

    def _round(self, trials: Sequence[Trial]) -> None:
        self._run([(trial, replicas, seed) for trial in trials for replicas, seed in self._next(trial)])
        for trial in trials:
            self._learn(trial)

    def _next(self, trial: Trial) -> list[tuple[int, int]]:
        """The runs that come next: (replicas, seed)."""
        if trial.high is None or trial.low < trial.high:
            return [(self._between(trial), self.seeds[0])]
        wanted = [(trial.high, seed) for seed in self.seeds]
        if trial.high > 1 and not self._proven_below(trial):
            # The first seed that misses there is enough; those after it are run only if it meets.
            below = trial.runs.get(trial.high - 1, {})
            more = self.seeds if all(self.meets(figures) for figures in below.values()) and below else self.seeds[:1]
            wanted += [(trial.high - 1, seed) for seed in more]
        return [(count, seed) for count, seed in wanted if seed not in trial.runs.get(count, {})]

    def _between(self, trial: Trial) -> int:
        if trial.high is not None:
            return (trial.low + trial.high - 1) // 2
        most, tried = trial.candidate.replicas_max, max(trial.runs, default=0)
        if not tried:
            return min(most, max(trial.low, round(trial.low * GUESS)))
        return min(most, max(trial.low, 2 * tried))

    def _proven_below(self, trial: Trial) -> bool:
        """Whether the bound alone says that one replica less cannot do it."""
        return trial.bound is not None and trial.high == trial.bound.replicas

    def _learn(self, trial: Trial) -> None:
        first = self.seeds[0]
        if trial.high is None or trial.low < trial.high:
            for replicas in sorted(trial.runs):
                if self.meets(trial.runs[replicas][first]):
                    trial.high = min(replicas, trial.high or replicas)
                elif replicas >= trial.low:
                    trial.low, trial.proven = replicas + 1, False
            return
        if not self.stands(trial, trial.high):
            trial.low, trial.proven = trial.high + 1, False
            trial.high = next((n for n in sorted(trial.runs) if n >= trial.low and self.first_meets(trial, n)), None)
        elif trial.high == 1 or self._proven_below(trial) or self.misses(trial, trial.high - 1):
            trial.replicas = trial.high
        elif self.stands(trial, trial.high - 1):
            trial.high -= 1
            trial.low = min(trial.low, trial.high)

    def misses(self, trial: Trial, replicas: int) -> bool:
        """Whether some run of so many replicas missed an objective."""
        return any(not self.meets(figures) for figures in trial.runs.get(replicas, {}).values())

    def first_meets(self, trial: Trial, replicas: int) -> bool:
        """Whether so many replicas meet the objectives with the first seed."""
        found = trial.runs.get(replicas, {}).get(self.seeds[0])
        return found is not None and self.meets(found)

    def run_first(self, trial: Trial, replicas: int) -> None:
        """Run so many replicas with the first seed, if that was not done yet."""
        if self.seeds[0] not in trial.runs.get(replicas, {}):
            self._run([(trial, replicas, self.seeds[0])])

    def run_more(self, wanted: Sequence[tuple[Trial, int]]) -> None:
        """Run so many replicas with every seed, where that was not done yet."""
        self._run(
            [
                (trial, replicas, seed)
                for trial, replicas in wanted
                for seed in self.seeds
                if seed not in trial.runs.get(replicas, {})
            ]
        )

    def _run(self, runs: Sequence[tuple[Trial, int, int]]) -> None:
        points = [
            self.point(trial.candidate, replicas, seed, (("replicas", replicas),)) for trial, replicas, seed in runs
        ]
        for (trial, replicas, seed), found in zip(runs, self.run_all(points), strict=True):
            trial.runs.setdefault(replicas, {})[seed] = found

    def point(self, candidate: Candidate, replicas: int, seed: int, more: tuple[Any, ...] = ()) -> CapacityPoint:
        """One run of a fleet."""
        return self.point_of(candidate, candidate.fleet(replicas, seed), (*more, ("seed", seed)))

    def point_of(self, candidate: Candidate, scenario: Scenario, more: tuple[Any, ...]) -> CapacityPoint:
        """One run of a scenario that was made of a candidate's fleet; `more` of its key says in what it differs."""
        return CapacityPoint((*candidate.key, *more), scenario, self.question.slo)

    def run_all(self, points: Sequence[CapacityPoint]) -> list[Figures]:
        """Run the points and return their figures in order. Raises StoppedError if that was asked for meanwhile."""
        if self._stop and self._stop():
            raise StoppedError
        if points:
            self.tell(label_of(points[0]))

        def each(_: int, __: Any) -> None:
            self.run_count += 1
            self.tell("")

        found = run_points(points, workers=1, executor=self._executor, stop=self._stop, each=each)
        if len(found) < len(points):
            raise StoppedError
        return [result.summary for result in found]

    def tell(self, words: str) -> None:
        """Say what goes on."""
        if self._progress:
            self._progress(self.run_count, words)

    # --- what the runs say ---

    def meets(self, figures: Figures) -> bool:
        """Whether a run meets every objective, and the cap on power."""
        return all(objective.met(figures[objective.name]) for objective in self.objectives)

    def stands(self, trial: Trial, replicas: int) -> bool:
        """Whether so many replicas meet every objective with every seed."""
        runs = trial.runs.get(replicas, {})
        return all(seed in runs and self.meets(runs[seed]) for seed in self.seeds)

    def worst(self, trial: Trial, replicas: int) -> tuple[Objective, float] | None:
        """The objective that is missed by most, or met by least, and its worst figure; None if it was not run."""
        runs = trial.runs.get(replicas, {})
        found = [
            (objective, figures[objective.name])
            for objective in self.objectives
            for figures in runs.values()
            if figures[objective.name] is not None
        ]
        return min(found, key=lambda pair: pair[0].margin(pair[1]), default=None)

    def standing(self) -> list[Trial]:
        """Candidates with a fleet that meets the objectives."""
        return [trial for trial in self.trials if trial.replicas is not None]

    def wall_kw(self, trial: Trial, replicas: int | None = None) -> float:
        """Mean wall power of its fleet over the seeds, at the busiest time."""
        runs = trial.runs[replicas or trial.replicas or 1]
        return math.fsum(figures["wall_kw"] for figures in runs.values()) / len(runs)

    def usd_per_month(self, trial: Trial, replicas: int | None = None) -> float:
        """What its fleet costs a month."""
        count = replicas or trial.replicas or 1
        return trial.candidate.usd_per_month(count, self.wall_kw(trial, count))


def shown(objective: Objective, value: float) -> str:
    """A figure with its bound, as `31.2 ms of 25 ms`."""
    if objective.unit:
        return f"{value:,.1f} {objective.unit}, allowed {objective.bound:g}"
    return f"{value:.1%}, asked {objective.bound:.1%}"


def label(candidate: Candidate) -> str:
    """A candidate in words: `vllm on 2 x h100-96gb, colocated`."""
    return words_of(dict(candidate.key))


def words_of(key: dict[str, Any]) -> str:
    """The same of a key as plain data."""
    beside = "" if key["interference"] == "none" else f", {key['interference']}"
    gpus = f"{key['tensor_parallel']} x " if key["tensor_parallel"] > 1 else ""
    return f"{key['system']}, {key['model']} on {gpus}{key['gpu']}{option_words(key)}{beside}"


def label_of(point: CapacityPoint) -> str:
    """A run in words."""
    key = dict(point.key)
    return f"{key['replicas']} x {words_of(key)}" if "replicas" in key else words_of(key)
