"""The report of a plan: the fleet, by how much it keeps its objectives, what binds, the frontier, every candidate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from blink.report import plan_words as words
from blink.report.comparison_plot import COLOURS, NAMES
from blink.report.html.chart import inline_svg, variable
from blink.report.html.page import Page, Section, charts, details, dots, items, note, pre, table
from blink.report.plan_folder import read_plan
from blink.report.plot import BLUE, GREEN, INK, MUTED, named

Data = dict[str, Any]
HOURS = 24
HOW = (
    "Bounds hold without simulating: a request takes at least its own prefill and its own decode steps, and a GPU runs "
    "one graph at a time (docs/plan.md). A fleet meets the objectives if it does in every run; margins are of the mean "
    "over the seeds, and the brackets are 95 % confidence intervals over them."
)
PANELS = (("wall_kw", "Wall power, kW"), ("p99_ttft_ms", "P99 TTFT, ms"), ("p99_tpot_ms", "P99 TPOT, ms"))


def page(folder: Path) -> Page:
    """The report of a plan's folder. Raises InputError if it is none."""
    stored = read_plan(folder)
    data = stored.data
    best = data["best"]
    sections = [*(_found(data) if best else []), _candidates(data)]
    said = details(f"{len(data['notes'])} notes of the runs", items(data["notes"])) if data["notes"] else ""
    sections.append(Section("How to read this", note(HOW) + said))
    asked = note(data["description"] or "") + details("question.toml", pre(stored.question))
    return Page(
        title=f"{data['name']}: which fleet carries it",
        setting=f"{words.setting(data)}; {data['run_count']:,} simulated runs",
        answer=data["answer"],
        tiles=_tiles(data) if best else (),
        sections=[*sections, Section("The question", asked)],
    )


def _tiles(data: Data) -> list[tuple[str, str]]:
    best = data["best"]
    margins = [one["margin"] for one in best["objectives"] if one["margin"] is not None]
    return [
        (f"{best['replicas']}", "replicas"),
        (f"{best['gpus']}", f"GPUs in {best['hosts']} host{'s' if best['hosts'] > 1 else ''}"),
        (f"{best['usd_per_month']:,.0f}", "USD a month"),
        (f"{best['wall_kw']:.2f}", "kW at the busiest time"),
        (f"{best['reserved_threads']}", "hardware threads kept for it"),
        (f"{min(margins):+.0%}", "least margin to an objective"),
    ]


def _found(data: Data) -> list[Section]:
    fleets = [data["best"], *([data["runner_up"]] if data["runner_up"] else [])]
    body = _fleets(data, [words.fleet_row(one, data) for one in fleets])
    if data["runner_up"]:
        body += note(f"Why the second lost: {data['runner_up']['sentence']}")
    binds = note(data["binds"]["sentence"])
    if rows := words.relief_rows(data):
        binds += table(("one replica less, with", "as much", "figure", ""), _escaped(rows), words=(0, 3), folds=True)
    sections = [
        Section("The cheapest fleet, and the runner-up", body),
        Section("By how much each objective is kept", _objectives(data)),
        Section("What binds", binds),
        Section("Cost, power and latency", _frontier(data)),
        Section("The price of isolation", _isolation(data)),
    ]
    for title, found in words.over_time(data):
        drawn = _day_charts(data) if found is data["day"] else ""
        sections.append(Section(title, note(found["sentence"]) + drawn))
    return sections


def _day_charts(data: Data) -> str:
    panels = [("replicas_by_hour", "Replicas that would do by the hour; line: the fleet", GREEN)]
    if "kw_by_hour" in data["day"]:
        panels.append(("kw_by_hour", "Wall power of the fleet, kW", BLUE))
    drawn = [
        inline_svg(f"day-{name}", title, partial(_draw_day, data=data, name=name, title=title, colour=colour))
        for name, title, colour in panels
    ]
    return charts(drawn)


def _objectives(data: Data) -> str:
    rows = []
    for objective, one in zip(data["objectives"], data["best"]["objectives"], strict=True):
        value = one["value"]
        unit = f" {objective['unit']}" if objective["unit"] else ""
        each = ", ".join(_shown(objective, item) for item in value["values"])
        interval = "" if value["low"] is None else _interval(objective, value)
        rows.append(
            [
                words.bound(objective),
                _shown(objective, value["mean"]) + unit,
                interval,
                each,
                f"{one['margin']:+.0%}",
                "outside the interval" if one["sure"] else "inside the interval",
            ]
        )
    return table(("objective", "mean", "95 %", "each run", "margin", "bound"), _escaped(rows), words=(0, 5), folds=True)


def _interval(objective: Data, value: Data) -> str:
    """No further than the figure itself can go: an interval over few seeds reaches below 0 ms or over 100 %."""
    low, high = max(0.0, value["low"]), value["high"] if objective["unit"] else min(1.0, value["high"])
    return f"{_shown(objective, low)} to {_shown(objective, high)}"


def _shown(objective: Data, value: float) -> str:
    return f"{value:,.1f}" if objective["unit"] else f"{value:.1%}"


def _frontier(data: Data) -> str:
    figures = [
        inline_svg(f"frontier-{name}", f"{title} over cost", partial(_draw, data=data, name=name, title=title))
        for name, title in PANELS
        if name == "wall_kw" or any(one["name"] == name for one in data["objectives"])
    ]
    marks = [(NAMES.get(name, name), variable(_colour(name)), True) for name in _systems(data)]
    marks += [("not on the frontier", variable(MUTED), False), ("the answer has a ring", variable(INK), False)]
    under = data["question"].get("limits", {}).get("power_kw_max")
    said = "" if under is None else note(f"Under the cap of {under:g} kW: {_under(data)}")
    return dots(marks) + charts(figures) + _fleets(data, words.frontier_rows(data)) + said


def _under(data: Data) -> str:
    count = len(data["frontier_under_cap"] or ())
    return f"{count} fleet{'s' if count != 1 else ''} on the frontier."


def _draw(figure: Any, data: Data, name: str, title: str) -> None:
    axes = figure.subplots()
    for place, fleet in enumerate(data["fleets"]):
        colour = _colour(_system(fleet))
        filled = colour if place in data["frontier"] else "none"
        axes.plot(fleet["usd_per_month"] / 1000, _figure(fleet, name), "o", mfc=filled, mec=colour, mew=1.2, ms=6)
    best = data["best"]
    axes.plot(best["usd_per_month"] / 1000, _figure(best, name), "o", ms=12, mfc="none", mec=INK, mew=1.3)
    limit = _limit(data, name)
    if limit is not None:
        axes.axhline(limit, color=MUTED, lw=1, ls="--")
    named(axes, title, "thousand USD a month")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_ylim(0, 1.12 * max(limit or 0.0, *(_figure(fleet, name) for fleet in data["fleets"])))


def _limit(data: Data, name: str) -> float | None:
    """What the question allows of a figure."""
    if name == "wall_kw":
        most = data["question"].get("limits", {}).get("power_kw_max")
        return None if most is None else float(most)
    return next((float(one["bound"]) for one in data["objectives"] if one["name"] == name), None)


def _systems(data: Data) -> list[str]:
    return list(dict.fromkeys(_system(fleet) for fleet in data["fleets"]))


def _system(fleet: Data) -> str:
    return str(fleet["key"].get("system", ""))


def _colour(system: str) -> str:
    return COLOURS.get(system, BLUE)


def _figure(fleet: Data, name: str) -> float:
    if name == "wall_kw":
        return float(fleet["wall_kw"])
    return float(next(one for one in fleet["objectives"] if one["name"] == name)["value"]["mean"])


def _draw_day(figure: Any, data: Data, name: str, title: str, colour: str) -> None:
    axes = figure.subplots()
    axes.bar(range(HOURS), data["day"][name], width=0.9, color=colour, align="edge")
    named(axes, title, "hour of the day")
    axes.set_xlim(0, HOURS)
    axes.set_xticks(range(0, HOURS + 1, 6))
    if name == "replicas_by_hour":
        axes.axhline(data["best"]["replicas"], color=BLUE, lw=1)
        axes.yaxis.get_major_locator().set_params(integer=True)


def _isolation(data: Data) -> str:
    rows = [
        [
            f"{row['replicas']} x {row['label']}",
            f"{row['reserved_threads']}",
            f"{row['reserved_usd_per_month']:,.0f}",
            f"{row['free_threads']}",
            f"{row['free_usd_per_month']:,.0f}" if row["shared"] else "0, kept free of other work",
            f"{row['usd_per_month']:,.0f}",
            f"{row['net_usd_per_month']:,.0f}",
        ]
        for row in data["isolation"]["rows"]
    ]
    headings = ("fleet", "kept threads", "USD/month", "other threads", "worth to other work", "cost", "net")
    return note(data["isolation"]["sentence"]) + table(headings, _escaped(rows), words=(0,), folds=True)


def _candidates(data: Data) -> Section:
    rows = [words.candidate_row(one) for one in data["candidates"]]
    out = [place for place, one in enumerate(data["candidates"]) if one["state"] != "stands"]
    return Section("Candidates", table(words.CANDIDATE_COLUMNS, _escaped(rows), words=(0, 1, 5), over=out, folds=True))


def _fleets(data: Data, rows: Sequence[Sequence[str]]) -> str:
    columns = [*words.FLEET_COLUMNS, *words.objective_columns(data)]
    if rows and len(rows[0]) > len(columns):
        columns.append("")
    return table(columns, _escaped(rows), words=(0,), folds=True)


def _escaped(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[escape(cell) for cell in row] for row in rows]
