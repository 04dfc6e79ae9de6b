"""Autoscaling that follows the day with lag: as many replicas as the load wants, and each rise at its true speed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blink.common.config import Scenario, parse_scenario
from blink.common.units import NS_PER_S
from blink.plan.capacity.levels import Span
from blink.plan.capacity.over_time import OverTime
from blink.plan.capacity.question import HOURS_A_DAY, Follow
from blink.plan.capacity.search import CapacitySearch, Trial

SECONDS_AN_HOUR = 3600.0
RISES_MAX = 4
"""Rises that are run, the steepest ones: each takes as long as some levels."""
MORE_S = 60.0
"""For how long a rise is run at least after the new replica is there."""


@dataclass(frozen=True, slots=True)
class Rise:
    """An hour at which the rate rises through what `replicas` are meant for; `slope`: share of the peak an hour."""

    replicas: int
    hour: float
    slope: float


def target_of(follow: Follow, time: OverTime, fewest: dict[float, int]) -> float:
    """Requests under way a replica: those asked for, or as many as there are in the busiest hour that fewer carry."""
    if follow.target is not None:
        return follow.target
    load = {moment.level: float(time.figures(moment, time.count)["under_way"]) for moment in time.moments}
    carried = [
        max((load[level] for level in time.levels if fewest[level] <= count), default=0.0) / count
        for count in range(1, time.count)
    ]
    known = [one for one in carried if one > 0]
    return min(known, default=max(1e-6, max(load.values()) / time.count))


def wanted(follow: Follow, time: OverTime, target: float) -> dict[float, int]:
    """By level, the replicas that its load wants, within the fleet's number."""
    found = {}
    for moment in time.moments:
        asked = math.ceil(float(time.figures(moment, time.count)["under_way"]) / target - 1e-9)
        found[moment.level] = min(max(asked, follow.replicas_min, 1), time.count)
    return found


def rises(follow: Follow, time: OverTime, target: float) -> list[Rise]:
    """The steepest rise through what each number of replicas is meant for, the steepest first."""
    found = []
    for count in range(follow.replicas_min, time.count):
        through = [rise for span in time.spans if (rise := _through(span, time, count, target))]
        if through:
            found.append(max(through, key=lambda rise: rise.slope))
    return sorted(found, key=lambda rise: -rise.slope)[:RISES_MAX]


def _through(span: Span, time: OverTime, count: int, target: float) -> Rise | None:
    low, high = (float(time.figures(moment, time.count)["under_way"]) for moment in (span.begin, span.end))
    if not low <= count * target < high:
        return None
    at = span.begin.at + span.length * (count * target - low) / (high - low)
    return Rise(count, at, (span.end.factor - span.begin.factor) / span.length)


def run_rises(
    search: CapacitySearch, trial: Trial, time: OverTime, follow: Follow, target: float, warm_up_ns: int
) -> list[dict[str, Any]]:
    """Each rise at the speed of the curve, with the replicas of before it, which become more with lag and warm-up."""
    chosen = rises(follow, time, target)
    after_s = follow.interval_s + follow.lag_s + warm_up_ns / NS_PER_S + MORE_S
    points = []
    for place, rise in enumerate(chosen):
        seed = search.seeds[0] + place
        scenario = _rising(trial.candidate.fleet(rise.replicas, seed), search, time, follow, rise, target, after_s)
        points.append(
            search.point_of(
                trial.candidate, scenario, (("replicas", rise.replicas), ("rise", rise.hour), ("seed", seed))
            )
        )
    return [
        {
            "hour": rise.hour,
            "replicas": rise.replicas,
            "started": figures["started"],
            "meets": search.meets(figures),
            "figures": {objective.name: figures[objective.name] for objective in search.objectives},
        }
        for rise, figures in zip(chosen, search.run_all(points), strict=True)
    ]


def _rising(
    fleet: Scenario, search: CapacitySearch, time: OverTime, follow: Follow, rise: Rise, target: float, after_s: float
) -> Scenario:
    """From a while before the rise, in which the fleet fills, until a while after the new replica is there."""
    before_s = after_s / 2
    begin, end = rise.hour - before_s / SECONDS_AN_HOUR, rise.hour + after_s / SECONDS_AN_HOUR
    peak = search.question.traffic.peak_rate or 0.0
    points = [(SECONDS_AN_HOUR * (hour - begin), peak * factor) for hour, factor in _curve(time.spans, begin, end)]
    document = fleet.resolved()
    document["workload"].update(
        arrivals={"kind": "curve", "points": [list(point) for point in points]}, duration_s=before_s + after_s
    )
    document["fleet"]["autoscale"] = {
        "replicas_min": rise.replicas,
        "replicas_max": time.count,
        "target": target,
        "interval_s": follow.interval_s,
        "lag_s": follow.lag_s,
        "down_after_s": follow.down_after_s,
    }
    return parse_scenario(document, fleet.name)


def _curve(spans: Sequence[Span], begin: float, end: float) -> list[tuple[float, float]]:
    """(hour, share of the peak) from one hour to another, which may lie before the day or after it."""
    found = []
    for day in (-HOURS_A_DAY, 0.0, HOURS_A_DAY):
        for span in spans:
            low, high = max(begin, span.begin.at + day), min(end, span.end.at + day)
            if low < high:
                found += [(hour, _between(span, hour - day)) for hour in (low, high)]
    kept = [found[0], *(point for last, point in itertools.pairwise(found) if point[0] > last[0] + 1e-9)]
    return [(0.0 + hour, factor) for hour, factor in kept]


def _between(span: Span, hour: float) -> float:
    share = (hour - span.begin.at) / span.length
    return span.begin.factor + (span.end.factor - span.begin.factor) * share


def kept_hours(follow: Follow, spans: Sequence[Span], replicas: Sequence[int], warm_up_ns: int) -> float:
    """Replica-hours of a day beside those by span: warm-ups, and the wait before one is drained."""
    more = 0.0
    for index, count in enumerate(replicas):
        change = count - replicas[index - 1]  # before the first hour is the last of the day before
        more += max(0, change) * warm_up_ns / NS_PER_S / SECONDS_AN_HOUR
        more += max(0, -change) * follow.down_after_s / SECONDS_AN_HOUR
    return more
