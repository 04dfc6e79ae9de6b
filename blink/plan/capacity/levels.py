"""Levels of a traffic: its rate at each moment of the day, or of its growth, over that at the busiest time.

A moment is run as a load that stands at its rate. That is what a fleet sees of a curve which changes over hours, while
a request stays for seconds; and it is no less than what it sees while the rate rises, since fewer requests have been
sent by then. Between two moments the rate lies between theirs, so what is true of both is taken for what lies between.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from blink.common.config import Scenario, parse_scenario
from blink.plan.capacity.question import HOURS_A_DAY, Traffic
from blink.plan.sweep.point import WARMUP_PARTS
from blink.plan.variant import with_duration, with_rate

LEVELS_MAX = 48
"""Rates that are run at most; those of a finer curve are rounded up to them."""
JUDGED_MIN = 200
"""Requests that a run judges at least, if an hour has so many: a P99 of a handful says nothing."""
RUN_S_MAX = 3600.0
DIGITS = 9


@dataclass(frozen=True, slots=True)
class Moment:
    """A time, in hours of the day or in months, and the rate there over the busiest one; `level` is what is run."""

    at: float
    factor: float
    level: float


@dataclass(frozen=True, slots=True)
class Span:
    """From one moment to the next."""

    begin: Moment
    end: Moment

    @property
    def length(self) -> float:
        """In hours, or in months."""
        return self.end.at - self.begin.at

    @property
    def mean_factor(self) -> float:
        """Mean rate over the busiest one."""
        return (self.begin.factor + self.end.factor) / 2


def day_spans(traffic: Traffic) -> list[Span]:
    """The day from hour to hour, and from each point of the curve; none without a curve."""
    if traffic.curve is None:
        return []
    peak = max(rate for _, rate in traffic.curve)
    times = {float(hour) for hour in range(int(HOURS_A_DAY) + 1)} | {hour for hour, _ in traffic.curve}
    return _spans([(hour, rate_at(traffic.curve, hour) / peak) for hour in sorted(times)])


def growth_spans(traffic: Traffic) -> list[Span]:
    """The busiest hour of each month, from today on; none for a traffic that does not grow."""
    if traffic.growth_per_month <= 0 or not traffic.months:
        return []
    times = [*map(float, range(math.ceil(traffic.months))), traffic.months]
    return _spans([(month, (1.0 + traffic.growth_per_month) ** (month - traffic.months)) for month in times])


def _spans(points: Sequence[tuple[float, float]]) -> list[Span]:
    distinct = {round(factor, DIGITS) for _, factor in points}
    moments = [Moment(at, factor, _level(factor, len(distinct))) for at, factor in points]
    return [Span(one, other) for one, other in itertools.pairwise(moments)]


def _level(factor: float, count: int) -> float:
    return round(factor, DIGITS) if count <= LEVELS_MAX else math.ceil(round(factor * LEVELS_MAX, DIGITS)) / LEVELS_MAX


def rate_at(curve: Sequence[tuple[float, float]], hour: float) -> float:
    """On the straight line between two points; between the last and the first over midnight."""
    around = [*curve, (curve[0][0] + HOURS_A_DAY, curve[0][1])]
    hour = hour if hour >= curve[0][0] else hour + HOURS_A_DAY
    for (start, low), (end, high) in itertools.pairwise(around):
        if start <= hour <= end:
            return low + (high - low) * (hour - start) / (end - start)
    return curve[-1][1]


def at_level(scenario: Scenario, level: float, peak_rate: float | None) -> Scenario:
    """The scenario of the busiest time under this share of its rate, for so long that there is something to judge."""
    if peak_rate is None:
        document = scenario.resolved()
        document["workload"]["trace"]["rate_scale"] *= level
        return parse_scenario(document, scenario.name)
    rate, window_s = peak_rate * level, scenario.workload.duration_s or 0.0
    judged = (WARMUP_PARTS - 1) / WARMUP_PARTS
    return with_duration(with_rate(scenario, rate), max(window_s, min(RUN_S_MAX, JUDGED_MIN / rate / judged)))
