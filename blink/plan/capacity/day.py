"""What was found over the day and over the months of growth, as plain data and in words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from blink.common.units import NS_PER_S
from blink.plan.capacity.follow import kept_hours, run_rises, target_of, wanted
from blink.plan.capacity.levels import Span
from blink.plan.capacity.measure import P99, Objective
from blink.plan.capacity.over_time import OverTime, mean_over
from blink.plan.capacity.question import HOURS_A_DAY, Follow
from blink.plan.capacity.search import CapacitySearch, Trial, shown
from blink.plan.capacity.settle import clock
from blink.plan.comparison import rounded
from blink.sim.fleet.run import warm_up_ns

Data = dict[str, Any]


def over_day(search: CapacitySearch, trial: Trial, time: OverTime) -> Data:
    """The fleet at each hour, what it would save to follow the hours, and whether autoscaling with lag keeps up."""
    fixed = [time.count] * len(time.spans)
    warm_ns = warm_up_ns(trial.candidate.fleet(time.count, search.seeds[0]))
    fewest = time.fewest()
    by_hour = time.schedule(fewest)
    more = kept_hours(Follow(down_after_s=0.0), time.spans, by_hour, warm_ns)
    data: Data = {
        "moments": _moments(search, time),
        "mean_over_peak": rounded(mean_over(time.spans, [span.mean_factor for span in time.spans])),
        "within": {name: rounded(share) for name, share in time.within(fixed).items()},
        "worst": _worst(time, fixed),
        "fixed": _cost(trial, time, fixed, 0.0),
        "by_hour": _schedule(trial, time, by_hour, more),
        "replicas_by_hour": [int(count) for count in _hours(time, by_hour)],
        "kw_by_hour": _hours(time, time.mean_kw(fixed)),
        "autoscale": None,
    }
    if search.question.autoscale is not None:
        data["autoscale"] = _autoscale(search, trial, time, fewest, warm_ns)
    return {**data, "saved_share": data["by_hour"]["saved_share"], "sentence": _day_words(search, time, data)}


def over_growth(search: CapacitySearch, trial: Trial, time: OverTime) -> Data:
    """The fleet at the busiest hour of each month, and what it would save to buy replicas as the traffic grows."""
    fixed = [time.count] * len(time.spans)
    by_month = time.schedule(time.fewest())
    whole, grown = _cost(trial, time, fixed, 0.0), _schedule(trial, time, by_month, 0.0)
    months = time.spans[-1].end.at
    saved = (whole["usd_per_month"] - grown["usd_per_month"]) * months
    data: Data = {
        "moments": _moments(search, time),
        "worst": _worst(time, fixed),
        "fixed": whole,
        "by_month": grown,
        "replicas_by_month": by_month,
        "saved_usd": rounded(saved),
    }
    bought = _steps([(f"month {span.begin.at:g}", count) for span, count in zip(time.spans, by_month, strict=True)])
    one = len(set(by_month)) == 1
    then = "All of them are needed from today on" if one else f"Bought as it grows: {bought}"
    money = "" if one else f", {saved:,.0f} USD less over {months:g} months than all from today on"
    text = (
        f"While the traffic grows, the busiest hour of each month keeps every objective with {_replicas(time.count)}. "
        f"{then}{money}; run at each month"
    )
    return {**data, "sentence": f"{text}."}


def _moments(search: CapacitySearch, time: OverTime) -> list[Data]:
    peak = search.question.traffic.peak_rate
    least = time.fewest()
    found = []
    for moment in time.moments:
        figures = time.figures(moment, time.count)
        found.append(
            {
                "at": rounded(moment.at),
                "rate": None if peak is None else rounded(peak * moment.factor),
                "level": rounded(moment.level),
                "replicas": least[moment.level],
                "meets": time.meets(moment, time.count),
                "wall_kw": rounded(figures["wall_kw"]),
                "requests": figures["requests"],
                "figures": {one.name: _rounded(figures[one.name]) for one in search.objectives},
                "within": {name: rounded(share) for name, share in figures["within"].items()},
            }
        )
    return found


def _worst(time: OverTime, replicas: Sequence[int]) -> Data:
    found = time.worst(replicas)
    return {**found, **{name: rounded(found[name]) for name in ("at", "value", "margin")}}


def _cost(trial: Trial, time: OverTime, replicas: Sequence[int], more_hours: float) -> Data:
    """Of so many replicas by span, and so many replica-hours beside them."""
    kw = time.mean_kw(replicas)
    mean_kw = mean_over(time.spans, kw)
    mean = mean_over(time.spans, [float(count) for count in replicas]) + more_hours / HOURS_A_DAY
    return {
        "mean_replicas": rounded(mean),
        "mean_kw": rounded(mean_kw),
        "kw_max": rounded(max(kw)),
        "kwh_per_day": rounded(mean_kw * HOURS_A_DAY),
        "usd_per_month": rounded(trial.candidate.usd_per_month(mean, mean_kw)),
    }


def _schedule(trial: Trial, time: OverTime, replicas: Sequence[int], more_hours: float) -> Data:
    cost = _cost(trial, time, replicas, more_hours)
    return {
        **cost,
        "replicas": list(replicas),
        "missed": [rounded(span.begin.at) for span in time.missed(replicas)],
        "saved_share": rounded(1 - cost["mean_replicas"] / time.count),
    }


def _autoscale(search: CapacitySearch, trial: Trial, time: OverTime, fewest: dict[float, int], warm_ns: int) -> Data:
    follow = search.question.autoscale
    assert follow is not None
    target = target_of(follow, time, fewest)
    replicas = time.schedule(wanted(follow, time, target))
    more = kept_hours(follow, time.spans, replicas, warm_ns)
    return {
        **_schedule(trial, time, replicas, more),
        "target": rounded(target),
        "lag_s": follow.lag_s,
        "warm_up_s": rounded(warm_ns / NS_PER_S),
        "rises": [_rise(one) for one in run_rises(search, trial, time, follow, target, warm_ns)],
    }


def _rise(found: Data) -> Data:
    figures = {name: _rounded(value) for name, value in found["figures"].items()}
    return {**found, "hour": rounded(found["hour"]), "figures": figures}


def _hours(time: OverTime, values: Sequence[float]) -> list[float]:
    """By hour of the day: the most of the spans in it."""
    return [
        rounded(max(value for span, value in zip(time.spans, values, strict=True) if _in(span, hour)))
        for hour in range(int(HOURS_A_DAY))
    ]


def _in(span: Span, hour: int) -> bool:
    return span.begin.at < hour + 1 and span.end.at > hour


def _rounded(value: float | None) -> float | None:
    return None if value is None else rounded(value)


# --- words ---


def _day_words(search: CapacitySearch, time: OverTime, data: Data) -> str:
    worst, fixed, hours = data["worst"], data["fixed"], data["by_hour"]
    kept = " and ".join(_kept(one, data["within"][one.name]) for one in search.objectives if one.name in data["within"])
    objective = next(one for one in search.objectives if one.name == worst["objective"])
    text = (
        f"Run once at each hour, {_replicas(time.count)} keep{'s' if time.count == 1 else ''} every objective all day: "
        f"{kept}. The worst hour is {clock(worst['at'])}: {objective.says} is {shown(objective, worst['value'])}. "
        f"{fixed['mean_kw']:.2f} kW on average, {fixed['kw_max']:.2f} at most, {fixed['kwh_per_day']:,.0f} kWh a day. "
    )
    if time.count == 1:
        return text + "With one replica there is nothing to save by the hour."
    by_hour = _steps(
        [(clock(span.begin.at), count) for span, count in zip(time.spans, hours["replicas"], strict=True)], around=True
    )
    text += (
        f"By the hour {by_hour} would do, warm-ups paid: {hours['saved_share']:.0%} fewer replica-hours, "
        f"{hours['usd_per_month']:,.0f} USD a month, {hours['mean_kw']:.2f} kW on average"
    )
    if hours["missed"]:
        text += f" (but {_missed(hours['missed'])})"
    return f"{text}.{_autoscale_words(data['autoscale'])}"


def _missed(since: Sequence[float]) -> str:
    return f"an objective is missed in {len(since)} of the hours, first from {clock(since[0])}"


def _autoscale_words(found: Data | None) -> str:
    if found is None:
        return ""
    missed = [rise for rise in found["rises"] if not rise["meets"]]
    text = (
        f" Autoscaling at {found['target']:.3g} requests under way a replica, with {found['lag_s']:g} s of lag and "
        f"{found['warm_up_s']:.0f} s of warm-up, saves {found['saved_share']:.0%}: {found['usd_per_month']:,.0f} USD a "
        f"month"
    )
    if found["missed"]:
        text += f", but {_missed(found['missed'])}"
    if not found["rises"]:
        return f"{text}; the number never rises."
    steepest = found["rises"][0]
    count = len(found["rises"])
    which = "The steepest rise" if count == 1 else f"The {count} steepest rises"
    text += f". {which}, from {clock(steepest['hour'])} at true speed, "
    if missed:
        hours = " and ".join(clock(one["hour"]) for one in missed)
        return f"{text}miss{'es' if count == 1 else ''} an objective at {hours}."
    return f"{text}keep{'s' if count == 1 else ''} every objective."


def _kept(objective: Objective, share: float) -> str:
    if not objective.unit:
        return f"{objective.says} {share:.2%}"
    asked = P99 / 1000
    return (
        f"{share:.2%} of the requests within {objective.bound:g} ms of {objective.says.split()[-1]} ({asked:.0%} asked)"
    )


def _replicas(count: int) -> str:
    return f"{count} replica{'s' if count > 1 else ''}"


def _steps(values: Sequence[tuple[str, int]], *, around: bool = False) -> str:
    """`1 replica from 00:00, 2 from 08:00`: where the number changes."""
    runs = [(count, next(group)[0]) for count, group in itertools.groupby(values, key=lambda one: one[1])]
    if len(runs) == 1:
        return _replicas(runs[0][0])
    if around and runs[0][0] == runs[-1][0]:
        runs = runs[1:]
    words = [f"{count} from {since}" for count, since in runs]
    return _replicas_first(words)


def _replicas_first(words: list[str]) -> str:
    first = words[0].split(" ", 1)
    head = f"{first[0]} replica{'s' if first[0] != '1' else ''} {first[1]}"
    return ", ".join([head, *words[1:]])
