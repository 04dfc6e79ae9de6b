"""The answer over the day, and over the months of growth: each level of the traffic simulated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from blink.plan.capacity.levels import Moment, Span, at_level
from blink.plan.capacity.measure import KEEPS_UP, Objective
from blink.plan.capacity.search import CapacitySearch, Figures, Trial


class OverTime:
    """Runs of one candidate under the levels of the traffic. Each level is a load of its own draw, run once."""

    def __init__(self, search: CapacitySearch, trial: Trial, spans: Sequence[Span]) -> None:
        assert trial.replicas is not None
        self._search, self._trial = search, trial
        self.count = trial.replicas
        self.spans = spans
        self.levels = sorted({moment.level for span in spans for moment in (span.begin, span.end)})
        after = search.seeds[-1] + 1
        self._seed = {level: after + place for place, level in enumerate(self.levels)}
        self._runs: dict[tuple[float, int], Figures] = {}

    def run(self, wanted: Iterable[tuple[float, int]]) -> None:
        """Run so many replicas under these levels, where that was not done. The busiest was, by the answer's runs."""
        missing = []
        for level, replicas in dict.fromkeys(wanted):
            if (level, replicas) in self._runs:
                continue
            known = self._trial.runs.get(replicas, {}) if level == 1.0 else {}
            if known:
                self._runs[level, replicas] = known[self._search.seeds[0]]
            else:
                missing.append((level, replicas))
        candidate, peak = self._trial.candidate, self._search.question.traffic.peak_rate
        points = []
        for level, replicas in missing:
            seed = self._seed[level]
            scenario = at_level(candidate.fleet(replicas, seed), level, peak)
            points.append(
                self._search.point_of(candidate, scenario, (("replicas", replicas), ("level", level), ("seed", seed)))
            )
        for key, figures in zip(missing, self._search.run_all(points), strict=True):
            self._runs[key] = figures

    def figures(self, moment: Moment, replicas: int) -> Figures:
        """Of a run that was made."""
        return self._runs[moment.level, replicas]

    def meets(self, moment: Moment, replicas: int) -> bool:
        """Whether so many replicas keep every objective there."""
        figures = self.figures(moment, replicas)
        return all(objective.met(figures[objective.name]) for objective in self.judged(replicas))

    def judged(self, replicas: int) -> list[Objective]:
        """The objectives. The whole fleet keeps up with the busiest rate, and so with each below: that is not judged.

        In a short run of few requests the tokens delivered over those asked for say more of its ends than of a queue.
        """
        return [one for one in self._search.objectives if one.name != KEEPS_UP or replicas < self.count]

    def run_fleet(self) -> list[Moment]:
        """Run the whole fleet under each level; the moments at which it misses an objective."""
        self.run((level, self.count) for level in self.levels)
        return [moment for moment in self.moments if not self.meets(moment, self.count)]

    @property
    def moments(self) -> list[Moment]:
        """Each once, in order; the last of a day is its first."""
        return [*(span.begin for span in self.spans), self.spans[-1].end]

    def fewest(self) -> dict[float, int]:
        """By level: the fewest replicas that meet the objectives there, none fewer than under a lower level.

        By bisection, from the number in proportion to the level; that more are not worse is assumed between the tried.
        """
        low = dict.fromkeys(self.levels, 0)
        high = dict.fromkeys(self.levels, self.count)
        while open_levels := [level for level in self.levels if high[level] - low[level] > 1]:
            tries = {level: self._guess(level, low[level], high[level]) for level in open_levels}
            self.run(tries.items())
            for level, replicas in tries.items():
                if self._search.meets(self._runs[level, replicas]):
                    high[level] = replicas
                else:
                    low[level] = replicas
        most, found = 1, {}
        for level in self.levels:
            most = found[level] = max(most, high[level])
        return found

    def _guess(self, level: float, low: int, high: int) -> int:
        """Near the number in proportion, where little was tried yet; else next to what was."""
        near = math.ceil(self.count * level)
        if high < self.count:
            near = high - 1
        elif low > 0:
            near = low + 1
        return min(max(near, low + 1), high - 1)

    # --- over a schedule: replicas by span ---

    def schedule(self, wanted: dict[float, int]) -> list[int]:
        """By span, as many as either end of it wants; both ends are run with that number."""
        found = [max(wanted[span.begin.level], wanted[span.end.level]) for span in self.spans]
        self.run(
            (moment.level, replicas)
            for span, replicas in zip(self.spans, found, strict=True)
            for moment in (span.begin, span.end)
        )
        return found

    def missed(self, replicas: Sequence[int]) -> list[Span]:
        """The spans at an end of which an objective is missed."""
        return [
            span
            for span, count in zip(self.spans, replicas, strict=True)
            if not (self.meets(span.begin, count) and self.meets(span.end, count))
        ]

    def mean_kw(self, replicas: Sequence[int]) -> list[float]:
        """By span."""
        return [
            (self.figures(span.begin, count)["wall_kw"] + self.figures(span.end, count)["wall_kw"]) / 2
            for span, count in zip(self.spans, replicas, strict=True)
        ]

    def within(self, replicas: Sequence[int]) -> dict[str, float]:
        """By objective: which share of all requests of the time keeps its bound."""
        total = math.fsum(span.length * span.mean_factor for span in self.spans)
        kept: dict[str, list[float]] = {}
        for span, count in zip(self.spans, replicas, strict=True):
            for moment in (span.begin, span.end):
                for name, share in self.figures(moment, count)["within"].items():
                    kept.setdefault(name, []).append(share * moment.factor * span.length / 2)
        return {name: math.fsum(parts) / total for name, parts in kept.items()}

    def worst(self, replicas: Sequence[int]) -> dict[str, Any]:
        """The moment that keeps its objectives by least, or misses one by most."""
        found = [
            (objective.margin(value), moment.at, objective, value)
            for span, count in zip(self.spans, replicas, strict=True)
            for moment in (span.begin, span.end)
            for objective in self.judged(count)
            if (value := self.figures(moment, count)[objective.name]) is not None
        ]
        margin, at, objective, value = min(found, key=lambda one: one[:2])
        return {"at": at, "objective": objective.name, "says": objective.says, "value": value, "margin": margin}


def mean_over(spans: Sequence[Span], values: Sequence[float]) -> float:
    """Mean of values by span over the time."""
    whole = math.fsum(span.length for span in spans)
    return math.fsum(span.length * value for span, value in zip(spans, values, strict=True)) / whole
