"""What one curve over the rates says: where it leaves the line, how high it gets, what load it can serve.

All rates here are requests/s, and the shares are pooled over seeds: what was delivered in all windows over what was
asked for in them.

- A rate is *serviceable* if 95 % of the tokens that were asked for are delivered. The serviceable load is the highest
  such rate: a lower one that is not, by the chance of a short run, does not lessen it.
- The *plateau* is the most that is delivered at any rate that was run, once some rate is no longer serviceable.
- The *saturation point* is the end of the linear part: the rate at which the line of what is offered reaches the
  plateau. By seed it is the served share at the plateau times its rate; the interval is over the seeds.
- *Headroom* is how much the load may grow before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from blink.plan.comparison import FIGURES, estimate, rounded
from blink.plan.interval import mean_interval
from blink.plan.sweep.question import SERVICEABLE_SHARE, Question
from blink.plan.sweep.row import ERROR, RATES, Row, within

Data = dict[str, Any]
TIGHT = 0.2
"""With less headroom than this a load is called tight: what a busy hour takes over the mean of the day."""


def curve(question: Question, rows: Sequence[Row]) -> Data:
    """All that the rows of one condition say, whatever rates and seeds are there. Rows that failed are left out."""
    good = [row for row in rows if not row[ERROR]]
    rates: list[float | None] = sorted({row["rate"] for row in good}) if question.grid.rates else [None]
    points = [_point(question, rate, [row for row in good if row.get("rate") == rate]) for rate in rates if good]
    load = _load(points, good) if question.grid.rates and points else None
    for point in points:
        point["headroom"] = _headroom(load, point["rate"])
    return {
        "points": points,
        "load": load,
        "classes": [_class_load(one.name, points, question) for one in question.classes],
        "verdict": verdict(load, points, question.operating_rate),
        "failed": sorted({row[ERROR] for row in rows if row[ERROR]}),
    }


def _point(question: Question, rate: float | None, rows: Sequence[Row]) -> Data:
    """One rate: every figure with its interval, and whether the system keeps up."""
    share = _share(rows)
    return {
        "rate": rate,
        "figures": {name: _estimate([row[name] for row in rows]) for name in (*FIGURES, *RATES)},
        "served_share": None if share is None else rounded(share),
        "serviceable": None if share is None else share >= SERVICEABLE_SHARE,
        "goodput": {one.name: _goodput(one.name, rows) for one in question.classes},
    }


def _goodput(name: str, rows: Sequence[Row]) -> Data:
    """Requests/s that keep an objective, and the share of those that were sent in the window."""
    counted = [row for row in rows if row["window_requests"]]
    return {
        "request_rate": _estimate([row[within(name)] / row["window_s"] for row in counted]),
        "attainment": _estimate([row[within(name)] / row["window_requests"] for row in counted]),
    }


def _load(points: Sequence[Data], rows: Sequence[Row]) -> Data:
    """Saturation, plateau and serviceable load. Without a rate that is too much they are lower bounds."""
    known = [point for point in points if point["served_share"] is not None]
    held = _upto(known, lambda point: bool(point["serviceable"]))
    over = known[len(held)]["rate"] if len(held) < len(known) else None
    found: Data = {
        "saturated": over is not None,
        "serviceable_rate": held[-1]["rate"] if held else None,
        "unserviceable_rate": over,
        "saturation_rate": None,
        "plateau_tokens_per_s": None,
        "plateau_rate": None,
        "plateau_kept": None,
    }
    if over is None:
        return found
    delivered = {point["rate"]: point["figures"]["delivered_tokens_per_s"]["mean"] for point in known}
    peak = max(delivered, key=lambda rate: (delivered[rate], -rate))
    at_peak = [row for row in rows if row["rate"] == peak and row["served_share"] is not None]
    ends = [min(row["served_share"] * peak, max(peak, over)) for row in at_peak]
    top = known[-1]["rate"]
    return {
        **found,
        "saturation_rate": _estimate(ends),
        "plateau_tokens_per_s": _estimate([row["delivered_tokens_per_s"] for row in at_peak]),
        "plateau_rate": peak,
        # What is left of it under the highest load: an engine may do less the more it is asked.
        "plateau_kept": rounded(delivered[top] / delivered[peak]) if delivered[peak] else None,
    }


def _class_load(name: str, points: Sequence[Data], question: Question) -> Data:
    """Up to which rate an objective is kept by the share of requests that is asked for, and the best goodput."""
    known = [point for point in points if point["goodput"][name]["attainment"]]
    kept = _upto(known, lambda point: point["goodput"][name]["attainment"]["mean"] >= question.attainment)
    best = max(known, key=lambda point: point["goodput"][name]["request_rate"]["mean"], default=None)
    return {
        "name": name,
        "rate_within": kept[-1]["rate"] if kept else None,
        "bounded": len(kept) < len(known),
        "goodput_max": best["goodput"][name]["request_rate"] if best else None,
        "goodput_max_rate": best["rate"] if best else None,
    }


def verdict(load: Data | None, points: Sequence[Data], rate: float | None) -> Data:
    """How a load of `rate` stands: `saturated`, `tight`, `free`, or `unknown`; `sure` if the interval agrees.

    Without rates in the sweep the scenario's own load is judged by what it delivered: it keeps up, or it does not.
    """
    if load is None:
        served = points[0]["serviceable"] if points else None
        return {"rate": rate, "state": "unknown" if served is None else "kept" if served else "saturated", "sure": None}
    found = _headroom(load, rate)
    if found is None:
        return {"rate": rate, "state": "unknown", "sure": None}
    room = found["share"]
    state = "saturated" if room < 0 else "tight" if room < TIGHT else "free"
    return {"rate": rate, "state": state, "headroom": found, "sure": _sure(load, rate)}


def _headroom(load: Data | None, rate: float | None) -> Data | None:
    """By which share a load of `rate` may grow until saturation; `at_least` if no rate that was run is too much."""
    if load is None or rate is None:
        return None
    if load["saturation_rate"]:
        return {"share": rounded(load["saturation_rate"]["mean"] / rate - 1), "at_least": False}
    top = load["serviceable_rate"]
    return None if top is None or top < rate else {"share": rounded(top / rate - 1), "at_least": True}


def _sure(load: Data, rate: float | None) -> bool | None:
    """Whether the interval of the saturation point leaves the rate out; None without an interval."""
    end = load["saturation_rate"]
    if not end or end["low"] is None or rate is None:
        return None
    return not end["low"] <= rate <= end["high"]


def _upto(points: Sequence[Data], holds: Callable[[Data], bool]) -> Sequence[Data]:
    """The points up to the last that holds."""
    last = max((place for place, point in enumerate(points) if holds(point)), default=-1)
    return points[: last + 1]


def _share(rows: Sequence[Mapping[str, Any]]) -> float | None:
    asked = math.fsum(row["window_asked_tokens"] or 0 for row in rows)
    return math.fsum(row["window_delivered_tokens"] or 0 for row in rows) / asked if asked else None


def _estimate(values: Sequence[float | None]) -> Data | None:
    return estimate(mean_interval(values), values)
