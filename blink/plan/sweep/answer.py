"""What a sweep says, as plain data: a curve a condition with its verdict, and the answer in a sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from blink.plan.comparison import ratio
from blink.plan.interval import CONFIDENCE, ratio_interval
from blink.plan.sweep.curve import curve
from blink.plan.sweep.question import Question
from blink.plan.sweep.row import SUMMARY, Row
from blink.plan.sweep.run import Made
from blink.report.sweep_words import answer, label, told

Data = dict[str, Any]

_NUMBER = re.compile(r"\d+")


def answered(question: Question, made: Made) -> Data:
    """Everything that is printed, reported and kept in sweep.json; the same for the same rows."""
    scenario, axes = question.scenario, question.grid.axes()
    curves = []
    for condition in question.grid.conditions():
        key = dict(condition)
        rows = [row for row in made.rows if all(row[name] == value for name, value in condition)]
        found = {"key": key, "label": label(key, axes, scenario.system.kind), **curve(question, rows)}
        found["verdict"]["sentence"] = told(found)
        curves.append(found)
    _over_first(curves, axes)
    definition = question.definition()
    data: Data = {
        "version": definition["version"],
        "scenario": scenario.name,
        "description": scenario.description,
        "model": scenario.model.profile or scenario.model.hf_config,
        "gpu": scenario.gpu.profile,
        "host": scenario.host.profile,
        "partial": made.partial,
        "point_count": made.point_count,
        "done_count": len(made.rows),
        "confidence": CONFIDENCE,
        **{name: definition[name] for name in ("seeds", "axes", "classes", "attainment", "serviceable_share")},
        "operating_rate": question.operating_rate,
        "notes": notes(made.rows),
        "curves": curves,
    }
    return {**data, "answer": answer(data)}


def _over_first(curves: Sequence[Data], axes: Mapping[str, Sequence[Any]]) -> None:
    """Each saturation point over that of the first system under the same condition, paired by seed.

    Seeds send the same requests to all systems, so that a ratio is known better than either of its rates.
    """
    systems = axes.get("system", ())
    by_key = {tuple(one["key"].items()): one for one in curves}
    for one in curves:
        key = one["key"] | ({"system": systems[0]} if systems else {})
        one["over_first"] = _over(one, by_key[tuple(key.items())])


def _over(one: Data, base: Data) -> Data | None:
    ends: list[Any] = [(curve["load"] or {}).get("saturation_rate") for curve in (one, base)]
    if one is base or not all(ends) or len(ends[0]["values"]) != len(ends[1]["values"]):
        return None
    return ratio(ratio_interval(ends[0]["values"], ends[1]["values"]))


WINDOW_REQUESTS_MIN = 100
"""With fewer in its window, a run does not say within some percent whether a system keeps up."""


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know of the runs; alike but for numbers is said once."""
    said: dict[str, str] = {}
    for row in rows:
        for note in json.loads(row[SUMMARY])["blink"]["notes"] if row[SUMMARY] else ():
            said.setdefault(_NUMBER.sub("0", note), note)
    return [*_short(rows), *said.values()]


def _short(rows: Sequence[Row]) -> list[str]:
    known = [row["window_requests"] for row in rows if row["window_requests"] is not None]
    few = [count for count in known if count < WINDOW_REQUESTS_MIN]
    if not few:
        return []
    told = f"{len(few)} of {len(known)} runs had fewer than {WINDOW_REQUESTS_MIN} requests in their window"
    return [f"{told}, the least {min(few)}: whether a system keeps up is uncertain there; --duration makes runs longer"]
