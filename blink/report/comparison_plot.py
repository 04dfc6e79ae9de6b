"""The figure of a comparison: lines over threads or rates where there are several, else a dot a condition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blink.report.comparison_sections import condition, setting, words
from blink.report.plot import BLUE, GREEN, GRID, INK, MUTED, ORANGE, RED, named, plain_log, save_figure

COLOURS = {"blink": BLUE, "trtllm": ORANGE, "vllm": GREEN, "sglang": RED, "cpu-resident": "#7a5aa8"}
NAMES = {
    "blink": "Blink",
    "trtllm": "TensorRT-LLM",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "cpu-resident": "Blink on the CPU",
}
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 1.5, 1, 1.5)))
MARKERS = ("o", "D", "s", "^", "v", "P")

# Figure, title, whether its axis is logarithmic.
PANELS = (
    ("output_throughput", "Output throughput, tokens/s", False),
    ("median_ttft_ms", "P50 TTFT, ms", True),
    ("p99_ttft_ms", "P99 TTFT, ms", True),
    ("p99_tpot_ms", "P99 TPOT, ms", True),
    ("p99_itl_ms", "P99 ITL, ms", True),
    ("energy_mj_per_token", "Energy a token, mJ", False),
)
LINE_INCHES = (12.0, 6.6)
DOT_WIDTH_INCHES, DOT_FRAME_INCHES, ROW_INCHES = 12.0, 2.9, 0.42


def plot_comparison(comparison: dict[str, Any], out: Path) -> None:
    """Draw the comparison into `out`, .svg or .png. Raises InputError as `save_figure` does."""
    axis = line_axis(comparison)
    if axis is not None:
        save_figure(out, LINE_INCHES, lambda figure: _lines(figure, comparison, axis))
        return
    rows = len(_dot_rows(comparison))
    inches = (DOT_WIDTH_INCHES, DOT_FRAME_INCHES + 2 * ROW_INCHES * rows)
    save_figure(out, inches, lambda figure: _dots(figure, comparison))


def line_axis(comparison: dict[str, Any]) -> str | None:
    """The axis with a scale: threads or rates, if there are three values or more."""
    axes = comparison["axes"]
    return next((name for name in ("threads", "rate") if len(axes.get(name, ())) > 2), None)


def _lines(figure: Any, comparison: dict[str, Any], axis: str) -> None:
    """A colour a system, a dash pattern a condition, a band for the confidence interval."""
    others = _others(comparison, axis)
    panels = figure.subplots(2, 3)
    for axes, (name, title, logarithmic) in zip(panels.flat, PANELS, strict=True):
        for system in comparison["axes"]["system"]:
            for other, dash in zip(others, _cycled(DASHES, len(others)), strict=True):
                _line(axes, _cells(comparison, system, other, axis), name, axis, dash)
        if logarithmic:
            axes.set_yscale("log")
            _log(axes.yaxis)
        else:
            axes.set_ylim(0, None)
            axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xticks(comparison["axes"][axis])
        axes.set_xticks([], minor=True)
        named(axes, title, "interferer threads" if axis == "threads" else "requests/s")
    _frame(figure, comparison, _line_keys(comparison, others))


def _line(axes: Any, cells: list[dict[str, Any]], name: str, axis: str, dash: Any) -> None:
    drawn = [(cell["key"][axis], cell["figures"][name]) for cell in cells if cell["figures"][name]]
    if not drawn:
        return
    colour = COLOURS[cells[0]["key"]["system"]]
    at = [value for value, _ in drawn]
    axes.plot(at, [found["mean"] for _, found in drawn], color=colour, linestyle=dash, linewidth=1.6)
    axes.plot(at, [found["mean"] for _, found in drawn], "o", color=colour, markersize=3.2)
    if all(found["low"] is not None for _, found in drawn):
        # A latency is not negative, whatever its interval says; nor has a logarithmic axis room for it.
        low = [max(found["low"], min(found["values"]) / 2) for _, found in drawn]
        axes.fill_between(at, low, [found["high"] for _, found in drawn], color=colour, alpha=0.14, linewidth=0)


def _line_keys(comparison: dict[str, Any], others: list[dict[str, Any]]) -> list[Any]:
    from matplotlib.lines import Line2D

    keys = [
        Line2D([], [], color=COLOURS[system], linewidth=1.6, marker="o", markersize=3.2, label=NAMES[system])
        for system in comparison["axes"]["system"]
    ]
    if len(others) > 1:
        for other, dash in zip(others, _cycled(DASHES, len(others)), strict=True):
            label = ", ".join(words(name, value) for name, value in other.items())
            keys.append(Line2D([], [], color=MUTED, linewidth=1.6, linestyle=dash, label=label))
    return keys


def _dots(figure: Any, comparison: dict[str, Any]) -> None:
    """A row a system (and mitigation, and rate), a marker a level of other jobs, joined by a line."""
    rows, level = _dot_rows(comparison), _level(comparison)
    panels = figure.subplots(2, 3, sharey=True)
    for axes, (name, title, logarithmic) in zip(panels.flat, PANELS, strict=True):
        for place, row in enumerate(rows):
            _dot_row(axes, place, _cells(comparison, row["system"], row, level), name, level, comparison)
        axes.set_yticks(range(len(rows)), [_row_label(row, comparison) for row in rows])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        if logarithmic:
            axes.set_xscale("log")
            _log(axes.xaxis)
        else:
            axes.set_xlim(0, axes.get_xlim()[1])
            axes.xaxis.set_major_formatter("{x:,.0f}")
        named(axes, title)
    _frame(figure, comparison, _dot_keys(comparison, level))


def _dot_row(
    axes: Any, place: int, cells: list[dict[str, Any]], name: str, level: str, comparison: dict[str, Any]
) -> None:
    levels = comparison["axes"][level]
    drawn = [(levels.index(cell["key"][level]), cell["figures"][name]) for cell in cells if cell["figures"][name]]
    if not drawn:
        return
    colour = COLOURS[cells[0]["key"]["system"]]
    means = [found["mean"] for _, found in drawn]
    axes.axhline(place, color=GRID, linewidth=0.7, zorder=0)
    axes.plot((min(means), max(means)), (place, place), color=colour, linewidth=2.4, alpha=0.35, solid_capstyle="butt")
    for index, found in drawn:
        if found["low"] is not None:
            low = max(found["low"], min(found["values"]) / 2)
            axes.plot((low, found["high"]), (place, place), color=colour, linewidth=1)
        axes.plot(found["mean"], place, color=colour, zorder=3, **_marker(index, len(levels), colour))


def _dot_keys(comparison: dict[str, Any], level: str) -> list[Any]:
    from matplotlib.lines import Line2D

    levels = comparison["axes"][level]
    return [
        Line2D([], [], color=MUTED, linestyle="none", label=words(level, value), **_marker(index, len(levels), MUTED))
        for index, value in enumerate(levels)
    ]


def _marker(index: int, count: int, colour: str) -> dict[str, Any]:
    """The first of several levels is a ring, wide enough that another in the same place shows inside it."""
    look: dict[str, Any] = {"marker": MARKERS[index % len(MARKERS)], "markeredgecolor": colour}
    if index == 0 and count > 1:
        return {**look, "markerfacecolor": "none", "markersize": 9.5, "markeredgewidth": 1.5}
    return {**look, "markerfacecolor": colour, "markersize": 5.5, "markeredgewidth": 0}


def _log(axis: Any) -> None:
    """At least a decade, so that a few percent do not look like a large difference; if short, labels at 1, 2, 5."""
    from matplotlib.ticker import LogLocator

    low, high = axis.get_view_interval()
    if high / low < 10:
        middle = (low * high) ** 0.5
        low, high = middle / 10**0.5, middle * 10**0.5
        axis.set_view_interval(low, high, ignore=True)
    if high / low < 200:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    plain_log(axis)


def _frame(figure: Any, comparison: dict[str, Any], keys: list[Any]) -> None:
    stopped = ", stopped before its end" if comparison["partial"] else ""
    title = f"{comparison['scenario']}: {setting(comparison)}{stopped}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.legend(handles=keys, loc="outside lower left", ncols=len(keys), frameon=False, fontsize=9)
    if len(comparison["seeds"]) > 1:
        share = f"{comparison['confidence']:.0%}"
        figure.supxlabel(f"Means over seeds, {share} confidence intervals", x=0.99, ha="right", fontsize=8, color=MUTED)


def _dot_rows(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """What tells the rows apart: all of a key but the level of other jobs."""
    return _distinct(comparison, (_level(comparison),))


def _others(comparison: dict[str, Any], axis: str) -> list[dict[str, Any]]:
    return _distinct(comparison, (axis, "system"))


def _distinct(comparison: dict[str, Any], without: tuple[str, ...]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for cell in comparison["cells"]:
        row = {name: value for name, value in cell["key"].items() if name not in without}
        if row not in found:
            found.append(row)
    return found


def _cells(comparison: dict[str, Any], system: str, fixed: dict[str, Any], free: str) -> list[dict[str, Any]]:
    """The cells of a system along the free axis."""
    wanted = {"system": system, **fixed}
    return [
        cell
        for cell in comparison["cells"]
        if {name: value for name, value in cell["key"].items() if name != free} == wanted
    ]


def _row_label(row: dict[str, Any], comparison: dict[str, Any]) -> str:
    more = condition(row, comparison["axes"])
    name = NAMES[row["system"]]
    if not more:
        return name
    return f"{name}, {more}" if len(comparison["axes"]["system"]) > 1 else more


def _level(comparison: dict[str, Any]) -> str:
    return "threads" if "threads" in comparison["axes"] else "interference"


def _cycled(values: tuple[Any, ...], count: int) -> list[Any]:
    return [values[index % len(values)] for index in range(count)]
