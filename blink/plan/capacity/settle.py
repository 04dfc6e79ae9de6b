"""Which fleet is the answer: the cheapest that holds with one replica more, misses with one less, and keeps the day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blink.plan.capacity.levels import Moment, day_spans, growth_spans
from blink.plan.capacity.order import confirm
from blink.plan.capacity.over_time import OverTime
from blink.plan.capacity.search import CapacitySearch, Trial, shown


@dataclass(frozen=True)
class Settled:
    """The fleet, and what was run of it over the day and over the months of growth; None where there is no such."""

    best: Trial | None = None
    day: OverTime | None = None
    growth: OverTime | None = None


def settle(search: CapacitySearch) -> Settled:
    """Verify the cheapest fleet; where it misses over time it becomes larger, and may no longer be the cheapest.

    It ends: with each turn a fleet has a replica more, of which there are so many at most, or a candidate is out.
    """
    while True:
        best = next((trial for trial in ranked(search) if within_caps(search, trial)), None)
        if best is None:
            return Settled()
        search.tell(f"one replica more and less: {best.replicas}")
        confirm(search, best)
        day, growth = _over(search, best, "day"), _over(search, best, "growth")
        missed = [
            (what, time, moment)
            for what, time in (("hour", day), ("month", growth))
            if time is not None
            for moment in time.run_fleet()
        ]
        if not missed:
            return Settled(best, day, growth)
        best.raised.append(_missed_words(search, best, *missed[0]))
        _raise(search, best)


def _over(search: CapacitySearch, trial: Trial, what: str) -> OverTime | None:
    traffic = search.question.traffic
    spans = day_spans(traffic) if what == "day" else growth_spans(traffic)
    return OverTime(search, trial, spans) if spans else None


def _missed_words(search: CapacitySearch, trial: Trial, what: str, time: OverTime, moment: Moment) -> str:
    figures = time.figures(moment, time.count)
    value = next(
        (shown(one, figures[one.name]) for one in time.judged(time.count) if not one.met(figures[one.name])),
        "nothing is served",
    )
    when = clock(moment.at) if what == "hour" else f"month {moment.at:g}"
    return f"{trial.replicas} meet the busiest time and miss at {when} ({value})"


def _raise(search: CapacitySearch, trial: Trial) -> None:
    """To the next number that stands; out if there is none."""
    assert trial.replicas is not None
    count = trial.replicas + 1
    while count <= trial.candidate.replicas_max:
        search.run_more([(trial, count)])
        if search.stands(trial, count):
            trial.replicas = count
            return
        count += 1
    trial.replicas = None
    trial.drop("impossible", f"{trial.raised[-1]}, and limits.gpus_max leaves no more that hold")


def within_caps(search: CapacitySearch, trial: Trial) -> bool:
    """Whether its power and its cost are allowed."""
    caps = search.question.limits
    kw_ok = caps.power_kw_max is None or search.wall_kw(trial) <= caps.power_kw_max
    return kw_ok and (caps.usd_per_month_max is None or search.usd_per_month(trial) <= caps.usd_per_month_max)


def ranked(search: CapacitySearch) -> list[Trial]:
    """All that meet the objectives, by cost; of two that cost the same, the one that shares its hosts first."""
    return sorted(search.standing(), key=lambda trial: _rank(search, trial))


def _rank(search: CapacitySearch, trial: Trial) -> tuple[Any, ...]:
    shared = dict(trial.candidate.key)["interference"] != "none"
    free = trial.candidate.free_threads(trial.replicas or 1) * shared
    return (search.usd_per_month(trial), -free, trial.candidate.index)


def clock(hour: float) -> str:
    """An hour of the day, as `07:40`."""
    minutes = round(hour * 60) % (24 * 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
