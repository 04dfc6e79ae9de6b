"""A sweep on the terminal: the answer, a line a curve, the objectives, and each curve's rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from blink.report.comparison_plot import NAMES
from blink.report.comparison_sections import milliseconds, number, percent, ratio
from blink.report.sweep_words import named

WIDTH_MAX = 110
STYLES = {"saturated": "bold red", "tight": "yellow", "free": "green", "kept": "green"}

Data = dict[str, Any]

COLUMNS: tuple[tuple[str, str, Any], ...] = (
    ("delivered_tokens_per_s", "tok/s", number),
    ("served_share", "served", percent),
    ("median_ttft_ms", "TTFT P50", milliseconds),
    ("p99_ttft_ms", "TTFT P99", milliseconds),
    ("p99_tpot_ms", "TPOT P99", milliseconds),
    ("energy_mj_per_token", "mJ/tok", number),
    ("cost_usd_per_million_tokens", "$/M tok", ratio),
)


def print_sweep(data: Data, console: Console) -> None:
    """Print the tables, no wider than the console."""
    width = min(WIDTH_MAX, console.width)
    console.print(Padding(sweep_table(data), (1, 0)), width=width)


def sweep_table(data: Data) -> RenderableType:
    """The whole sweep as a rich renderable."""
    parts: list[RenderableType] = [Text.assemble((data["scenario"], "bold"), "  ", setting(data))]
    if data["partial"]:
        parts.append(
            Text(f"Stopped: {data['done_count']:,} of {data['point_count']:,} runs are done.", style="bold yellow")
        )
    parts += [Text(), Text(data["answer"], style="bold")]
    if any(curve["load"] for curve in data["curves"]):
        parts += [_rule("Load, requests/s"), _loads(data)]
    if data["classes"] and any(curve["load"] for curve in data["curves"]):
        parts += [
            _rule(f"Goodput: up to which rate {data['attainment']:.0%} of requests keep an objective"),
            _classes(data),
        ]
    parts += _each(data) if any(curve["load"] for curve in data["curves"]) else _side_by_side(data)
    parts += [Text(), Text(legend(data), style="dim"), *(Text(f"Note: {note}", style="dim") for note in data["notes"])]
    return Group(*parts)


def _each(data: Data) -> list[RenderableType]:
    """A table over the rates for each curve."""
    parts: list[RenderableType] = []
    for curve in data["curves"]:
        verdict = curve["verdict"]
        parts += [_rule(curve["label"]), Text(verdict["sentence"], style=STYLES.get(verdict["state"], ""))]
        if curve["points"]:
            parts.append(_points("req/s", [(_rate(point), point) for point in curve["points"]]))
            parts += [Text(f"Not run: {reason}", style="dim") for reason in curve["failed"]]
    return parts


def _side_by_side(data: Data) -> list[RenderableType]:
    """Without rates, or with nothing that says where one ends: a line a condition."""
    lines = [(curve["label"], point) for curve in data["curves"] for point in curve["points"]]
    parts: list[RenderableType] = [_rule("The scenario's load"), _points("", lines)] if lines else []
    if data["classes"] and lines:
        parts += [_rule("Goodput"), _kept(data)]
    failed = [(curve["label"], reason) for curve in data["curves"] for reason in curve["failed"]]
    return parts + [Text(f"{label}: not run: {reason}", style="dim") for label, reason in failed]


def _kept(data: Data) -> RenderableType:
    table = _grid("", "objective", "kept by", "goodput req/s")
    for curve in data["curves"]:
        for asked in data["classes"] if curve["points"] else ():
            one = curve["points"][0]["goodput"][asked["name"]]
            table.add_row(
                curve["label"], objective(asked), _mean(one["attainment"], percent), _mean(one["request_rate"], number)
            )
    return table


def setting(data: Data) -> str:
    """What all curves have in common."""
    seeds = data["seeds"]
    span = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    shared = [named(name, values[0]) for name, values in data["axes"].items() if len(values) == 1 and name not in SHOWN]
    model, gpu = (str(data["axes"].get(name, [data[name]])[0]) for name in ("model", "gpu"))
    several = [name for name in ("model", "gpu") if len(data["axes"].get(name, [])) > 1]
    bound = [value for name, value in (("model", model), ("gpu", gpu)) if name not in several]
    return ", ".join((*bound, *shared, span))


UNSURE = " Ratios are paired by seed; ~: the seeds do not show a difference."
LABEL_MAX = 22
BESIDE_NAMES = 6
"""So many of COLUMNS have room beside the names of curves."""
SHOWN = ("model", "gpu", "system", "rate")


def legend(data: Data) -> str:
    """How the figures are meant."""
    over = (
        "Means over seeds."
        if len(data["seeds"]) > 1
        else "One seed: there are no confidence intervals; --seeds 3 gives them."
    )
    return (
        f"{over} Served: tokens delivered over tokens asked for, in the time in which requests are sent less its first "
        f"quarter. Serviceable: at least {data['serviceable_share']:.0%} served. Saturation: where the line of the "
        f"offered load meets the plateau.{UNSURE if first_label(data) else ''}"
    )


def _loads(data: Data) -> RenderableType:
    first = first_label(data)
    ratios = [f"over {first}"] if first else []
    # Long names leave no room for the verdict, which stands at each curve.
    brief = max(len(curve["label"]) for curve in data["curves"]) > LABEL_MAX
    more = () if brief else ("headroom", "")
    table = _grid("", "saturation", *ratios, "serviceable", "plateau tok/s", *more)
    for curve in data["curves"]:
        load = curve["load"]
        if load is None:
            continue
        state = curve["verdict"]["state"]
        verdict = () if brief else (headroom(curve["verdict"]), Text(state, style=STYLES.get(state, "")))
        cells = [saturation(load), *([over_first(curve)] if first else []), _plain(load["serviceable_rate"])]
        table.add_row(curve["label"], *cells, _mean(load["plateau_tokens_per_s"], number), *verdict)
    return table


def saturation(load: Data) -> str:
    """The saturation point with half its interval, or that it is beyond what was run."""
    end = load["saturation_rate"]
    if end is None:
        top = load["serviceable_rate"]
        return "-" if top is None else f"> {top:g}"
    return f"{number(end['mean'])}{half(end)}"


def first_label(data: Data) -> str:
    """The system that others are held against; empty if there is one alone."""
    systems = data["axes"].get("system", ())
    return NAMES.get(systems[0], systems[0]) if len(systems) > 1 else ""


def over_first(curve: Data) -> str:
    """Its saturation point over that of the first system; ~ if the seeds do not show a difference."""
    found = curve.get("over_first")
    return "" if found is None else f"{found['ratio']:.3f}{'~' if found['significant'] is False else ''}"


def half(estimate: Data) -> str:
    """Half an interval with two digits that count, such as " ±0.31"; nothing where there is none."""
    if estimate["low"] is None:
        return ""
    width = (estimate["high"] - estimate["low"]) / 2
    return f" ±{float(f'{width:.2g}'):g}"


def headroom(verdict: Data) -> str:
    """In percent of the load; with > if no rate that was run is too much."""
    found = verdict.get("headroom")
    return "-" if not found else f"{'> ' if found['at_least'] else ''}{found['share']:+.0%}"


def _classes(data: Data) -> RenderableType:
    table = _grid("", "objective", "rate", "best goodput", "at rate")
    for curve in data["curves"]:
        for one, asked in zip(curve["classes"], data["classes"], strict=True):
            if not curve["points"]:
                continue
            best = one["goodput_max"]
            table.add_row(
                curve["label"], objective(asked), rate_within(one), _mean(best, number), _plain(one["goodput_max_rate"])
            )
    return table


def objective(asked: Data) -> str:
    """A class in words: `chat: TTFT 500, TPOT 30 ms`."""
    bounds = [f"{name.removesuffix('_ms').upper()} {value:g}" for name, value in asked.items() if name != "name"]
    return f"{asked['name']}: {', '.join(bounds)} ms"


def rate_within(one: Data) -> str:
    """Up to which rate the objective is kept."""
    if one["rate_within"] is None:
        return "none"
    return f"{'' if one['bounded'] else '>= '}{one['rate_within']:g}"


def _points(first: str, lines: Sequence[tuple[str, Data]]) -> RenderableType:
    """A line a point, dimmed where the system does not keep up."""
    columns = COLUMNS if first else COLUMNS[:BESIDE_NAMES]
    table = _grid(first, *(heading for _, heading, _ in columns))
    for name, point in lines:
        cells = [_mean(point["figures"].get(figure), write) for figure, _, write in columns]
        table.add_row(name, *cells, style="dim" if point["serviceable"] is False else "")
    return table


def _rate(point: Data) -> str:
    """The rate that was asked for, or the one that was offered."""
    rate = point["rate"]
    return _plain((point["figures"]["offered_request_rate"] or {}).get("mean") if rate is None else rate)


def _grid(*headings: str) -> Table:
    table = Table.grid(padding=(0, 2), expand=False)
    for index, heading in enumerate(headings):
        left = index == 0 or heading in ("", "objective")
        wide = LABEL_MAX if index == 0 and not heading else None
        side: Any = "left" if left and heading != "req/s" else "right"
        table.add_column(justify=side, no_wrap=not left, min_width=wide)
    table.add_row(*(Text(heading, style="dim") for heading in headings))
    return table


def _rule(words: str) -> RenderableType:
    return Padding(Rule(Text(words, style="bold"), align="left", style="dim"), (1, 0, 0, 0))


def _mean(estimate: Data | None, write: Any) -> str:
    return "-" if estimate is None else str(write(estimate["mean"]))


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
