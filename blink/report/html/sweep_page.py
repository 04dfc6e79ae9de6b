"""The report of a sweep: which load each system bears, its curves over the rate, objectives, energy and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from blink.report.comparison_plot import COLOURS
from blink.report.comparison_sections import milliseconds, number, percent, ratio
from blink.report.html.chart import PURPLE, inline_svg, variable
from blink.report.html.page import Page, Section, badge, charts, details, items, legend, note, pre, table
from blink.report.plot import BLUE, GREEN, MUTED, ORANGE, RED, named, plain_log
from blink.report.sweep_folder import read_sweep
from blink.report.sweep_table import first_label, headroom, objective, over_first, rate_within, saturation, setting
from blink.report.sweep_table import legend as how_measured

Data = dict[str, Any]
Curves = Sequence[Data]

OTHERS = (BLUE, ORANGE, GREEN, RED, PURPLE)
DASHES: tuple[tuple[Any, str], ...] = (("-", "solid"), ((0, (5, 2)), "dashed"), ((0, (1.2, 1.6)), "dotted"))
"""Of matplotlib, and of the legend's CSS."""
STYLED = ("system",)
FACETS = ("model", "gpu")
"""Axes with a set of charts for each value: their curves lie too far apart for one scale."""

PANELS: tuple[tuple[str, str, bool], ...] = (
    ("delivered_tokens_per_s", "Output throughput, tokens/s", False),
    ("p99_ttft_ms", "P99 TTFT, ms", True),
    ("median_ttft_ms", "P50 TTFT, ms", True),
    ("p99_tpot_ms", "P99 TPOT, ms", True),
    ("energy_mj_per_token", "Energy an output token, mJ", True),
    ("cost_usd_per_million_tokens", "Cost of a million output tokens, $", True),
)
BOUNDS = {"p99_ttft_ms": "ttft_ms", "p99_tpot_ms": "tpot_ms"}
COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("delivered_tokens_per_s", "tokens/s", number),
    ("served_share", "served", percent),
    ("median_ttft_ms", "P50 TTFT", milliseconds),
    ("p99_ttft_ms", "P99 TTFT", milliseconds),
    ("median_tpot_ms", "P50 TPOT", milliseconds),
    ("p99_tpot_ms", "P99 TPOT", milliseconds),
    ("p99_itl_ms", "P99 ITL", milliseconds),
    ("gpu_busy", "GPU busy", percent),
    ("wall_w", "wall W", number),
    ("energy_mj_per_token", "mJ a token", number),
    ("cost_usd_per_million_tokens", "$ a M tokens", ratio),
)


def page(folder: Path) -> Page:
    """The report of a sweep's folder. Raises InputError if it is none."""
    stored = read_sweep(folder)
    data = stored.data
    curves = data["curves"]
    return Page(
        title=f"{data['scenario']}: what load it can serve",
        setting=f"{setting(data)}; {data['done_count']:,} simulated runs",
        answer=data["answer"],
        tiles=_tiles(curves),
        warnings=_warnings(data),
        sections=[
            section
            for section in (
                _loads(data) if any(curve["load"] for curve in curves) else _side_by_side(curves),
                *_curves(data),
                _goodput(data),
                _points(curves) if any(curve["load"] for curve in curves) else None,
                Section("How to read this", note(how_measured(data)) + note(INTERVALS) + _notes(data)),
                Section("The scenario", _asked(data) + details("scenario.toml", pre(stored.scenario))),
            )
            if section
        ],
    )


INTERVALS = (
    "Bands and ± are 95 % confidence intervals over seeds: what another seed would change, not what the models "
    "get wrong."
)


def _tiles(curves: Curves) -> list[tuple[str, str]]:
    """The saturation point of each curve, if they are few enough to be read at a glance."""
    known = [curve for curve in curves if curve["load"]]
    if not known or len(known) > 8:
        return []
    return [(f"{saturation(curve['load'])} /s", f"{curve['label']}, before saturation") for curve in known]


def _warnings(data: Data) -> list[str]:
    said = []
    if data["partial"]:
        said.append(f"Stopped before its end: {data['done_count']:,} of {data['point_count']:,} runs are done.")
    reasons: dict[str, list[str]] = {}
    for curve in data["curves"]:
        for reason in curve["failed"]:
            reasons.setdefault(reason, []).append(curve["label"])
    said += [f"Not run: {'; '.join(labels)}: {reason}" for reason, labels in reasons.items()]
    return said


def _loads(data: Data) -> Section | None:
    """The table for the eye, and the verdicts as sentences; what could not run at all is among the warnings."""
    rows, first = [], first_label(data)
    ran = [curve for curve in data["curves"] if curve["points"] or not curve["failed"]]
    for curve in ran:
        load, state = curve["load"], badge(curve["verdict"]["state"])
        if load is None:
            rows.append([escape(curve["label"]), state, "", "", "", *([""] if first else []), ""])
            continue
        kept = "" if load["plateau_kept"] is None else f"{load['plateau_kept']:.0%}"
        plateau = "" if load["plateau_tokens_per_s"] is None else number(load["plateau_tokens_per_s"]["mean"])
        end = escape(saturation(load))
        over = [escape(over_first(curve))] if first else []
        rows.append([escape(curve["label"]), state, end, *over, _rate(load["serviceable_rate"]), plateau, kept])
    ratios = [f"over {first}"] if first else []
    headings = ("", "", "saturation /s", *ratios, "serviceable /s", "plateau tok/s", "kept at the top")
    said = [f"{curve['label']}: {curve['verdict']['sentence']}" for curve in ran]
    return Section("Load before saturation", table(headings, rows, folds=True) + items(said)) if rows else None


def _side_by_side(curves: Curves) -> Section | None:
    """Without rates: a line a condition."""
    rows = [
        [escape(curve["label"]), badge(curve["verdict"]["state"]), *_cells(point)]
        for curve in curves
        for point in curve["points"]
    ]
    headings = ("", "", *(heading for _, heading, _ in COLUMNS))
    return Section("The scenario's load", table(headings, rows, folds=True)) if rows else None


def _cells(point: Data) -> list[str]:
    return [_cell(point, name, write) for name, _, write in COLUMNS]


def _rate(value: float | None) -> str:
    return "none" if value is None else f"{value:g}"


def _curves(data: Data) -> list[Section]:
    """A set of charts for each model and GPU."""
    if len(data["axes"].get("rate", ())) < 2:
        return []
    facets: dict[tuple[Any, ...], list[Data]] = {}
    split = [name for name in FACETS if len(data["axes"].get(name, ())) > 1]
    for curve in data["curves"]:
        if curve["points"]:
            facets.setdefault(tuple(curve["key"][name] for name in split), []).append(curve)
    sections = []
    for index, (chosen, curves) in enumerate(facets.items()):
        styles = _styles(curves)
        shown = [
            inline_svg(f"c{index}{place}", title, _panel(curves, styles, panel, data))
            for place, panel in enumerate(PANELS)
            for title in (panel[1],)
        ]
        title = "Over the load" + (f": {', '.join(map(str, chosen))}" if chosen else "")
        entries = [
            (_bare(curve["label"], chosen), variable(colour), css)
            for curve, (colour, _, css) in zip(curves, styles, strict=True)
        ]
        sections.append(Section(title, legend(entries) + charts(shown) + note(CHART_NOTE)))
    return sections


GOODPUT = "Goodput counts the requests that keep every bound of an objective."
CHART_NOTE = (
    "Throughput: the grey line is what was offered; a ring marks the saturation point. "
    "Latencies: the thin line is the scenario's own objective. Beyond saturation a latency says how long the run was."
)


def _bare(label: str, chosen: Sequence[Any]) -> str:
    """A curve's name without what the heading says already."""
    return ", ".join(part for part in label.split(", ") if part not in chosen)


def _styles(curves: Curves) -> list[tuple[str, Any, str]]:
    """Colour, matplotlib dash and CSS border of each curve: a colour a system, a dash for all else."""
    systems = list(dict.fromkeys(curve["key"].get("system") for curve in curves))
    rests = list(dict.fromkeys(_rest(curve["key"]) for curve in curves))
    by_system = len(systems) > 1
    found = []
    for curve in curves:
        rest = rests.index(_rest(curve["key"]))
        if by_system:
            colour, dash = _own(str(curve["key"]["system"])), DASHES[rest % len(DASHES)]
        else:
            colour, dash = OTHERS[rest % len(OTHERS)], DASHES[rest // len(OTHERS) % len(DASHES)]
        found.append((colour, *dash))
    return found


def _own(system: str) -> str:
    return COLOURS.get(system, MUTED)


def _rest(key: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in key.items() if name not in (*STYLED, *FACETS))


def _panel(curves: Curves, styles: Sequence[Any], panel: tuple[str, str, bool], data: Data) -> Callable[[Any], None]:
    name, title, logarithmic = panel

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for curve, (colour, dash, _) in reversed(list(zip(curves, styles, strict=True))):
            _line(axes, curve, name, colour, dash)
        if name == "delivered_tokens_per_s":
            _offered(axes, curves)
        bound = next((one.get(BOUNDS.get(name, "")) for one in data["classes"] if one["name"] == "scenario"), None)
        if bound:
            axes.axhline(bound, color=MUTED, linewidth=0.8)
        _axes(axes, sorted({point["rate"] for curve in curves for point in curve["points"]}), logarithmic)
        named(axes, title, "requests/s")

    return draw


def _line(axes: Any, curve: Data, name: str, colour: str, dash: Any) -> None:
    drawn = [(point["rate"], found) for point in curve["points"] if (found := point["figures"][name])]
    if not drawn:
        return
    at = [rate for rate, _ in drawn]
    axes.plot(at, [found["mean"] for _, found in drawn], color=colour, linestyle=dash, linewidth=1.7)
    if all(found["low"] is not None for _, found in drawn):
        low = [max(found["low"], min(found["values"]) / 2) for _, found in drawn]
        axes.fill_between(at, low, [found["high"] for _, found in drawn], color=colour, alpha=0.14, linewidth=0)
    load = curve["load"]
    if name == "delivered_tokens_per_s" and load and load["saturation_rate"]:
        end, plateau = load["saturation_rate"]["mean"], load["plateau_tokens_per_s"]["mean"]
        axes.plot([end], [plateau], "o", markerfacecolor="none", markeredgecolor=colour, markersize=6.5)


def _offered(axes: Any, curves: Curves) -> None:
    """What was asked for, as far as the throughput reaches."""
    points = [point for point in curves[0]["points"] if point["figures"]["offered_tokens_per_s"]]
    offered = [(point["rate"], point["figures"]["offered_tokens_per_s"]["mean"]) for point in points]
    top = max(found["mean"] for curve in curves for point in curve["points"]
              if (found := point["figures"]["delivered_tokens_per_s"]))  # fmt: skip
    if offered:
        axes.plot(*zip(*offered, strict=True), color=MUTED, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    axes.set_ylim(0, 1.15 * top)


def _axes(axes: Any, rates: Sequence[float], logarithmic: bool) -> None:
    from matplotlib.ticker import LogLocator

    axes.set_xlim(0, rates[-1] * 1.03)
    if logarithmic:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        subs = (1.0,) if high > 300 * low else (1.0, 2.0, 5.0)
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        plain_log(axes.yaxis)
    else:
        axes.yaxis.set_major_formatter("{x:,.0f}")


def _goodput(data: Data) -> Section | None:
    if not data["classes"] or not any(curve["points"] for curve in data["curves"]):
        return None
    if not any(curve["load"] for curve in data["curves"]):
        return Section("Objectives", _kept(data) + note(GOODPUT))
    rows = []
    for curve in data["curves"]:
        for one, asked in zip(curve["classes"], data["classes"], strict=True):
            best = one["goodput_max"]
            if best is None:
                continue
            at = "" if one["goodput_max_rate"] is None else f"{one['goodput_max_rate']:g}"
            rows.append([escape(curve["label"]), escape(objective(asked)), rate_within(one), number(best["mean"]), at])
    headings = ("", "objective", f"{data['attainment']:.0%} keep it up to /s", "best goodput /s", "at /s")
    return Section("Objectives", table(headings, rows, words=(1,), folds=True) + note(GOODPUT))


def _kept(data: Data) -> str:
    """Without rates: which share of the requests keeps each objective."""
    rows = []
    for curve in data["curves"]:
        for asked in data["classes"] if curve["points"] else ():
            one = curve["points"][0]["goodput"][asked["name"]]
            shown = [_mean(one["attainment"], percent), _mean(one["request_rate"], number)]
            rows.append([escape(curve["label"]), escape(objective(asked)), *shown])
    return table(("", "objective", "kept by", "goodput /s"), rows, words=(1,), folds=True)


def _points(curves: Curves) -> Section:
    parts = []
    for curve in curves:
        if not curve["points"]:
            continue
        rows = [[_of_point(point), *_cells(point),
                 _room(point)] for point in curve["points"]]  # fmt: skip
        over = [index for index, point in enumerate(curve["points"]) if point["serviceable"] is False]
        headings = ("requests/s", *(heading for _, heading, _ in COLUMNS), "headroom")
        parts.append(details(curve["label"], table(headings, rows, over=over), opened=len(curves) == 1))
    return Section("Every rate", "".join(parts) + note("Means over seeds. Dimmed: more than the system can serve."))


def _of_point(point: Data) -> str:
    rate = point["rate"]
    if rate is None:
        rate = (point["figures"]["offered_request_rate"] or {}).get("mean")
    return "" if rate is None else f"{rate:.3g}"


def _cell(point: Data, name: str, write: Callable[[float], str]) -> str:
    return _mean(point["figures"].get(name), write)


def _mean(found: Data | None, write: Callable[[float], str]) -> str:
    return "" if found is None else write(found["mean"])


def _room(point: Data) -> str:
    return headroom(point)


def _notes(data: Data) -> str:
    return details(f"{len(data['notes'])} notes of the runs", items(data["notes"])) if data["notes"] else ""


def _asked(data: Data) -> str:
    parts = [f"{name}: {', '.join(f'{value:g}' if isinstance(value, float) else str(value) for value in values)}"
             for name, values in data["axes"].items()]  # fmt: skip
    return items([*([data["description"]] if data["description"] else []), *parts])
