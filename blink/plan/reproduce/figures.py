"""The figures: curves over load for every model, and the sweep of interference threads. Each as SVG text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from blink.plan.interval import mean_interval
from blink.plan.reproduce.evidence import BLINK, Evidence, NoEvidenceError
from blink.plan.reproduce.testbed import INTERFERED, ISOLATED, Key
from blink.plan.reproduce.window import Figures
from blink.report.plot import BLUE, GREEN, INK, MUTED, ORANGE, RED, plain_log, save_figure

COLOURS = {BLINK: BLUE, "trtllm": ORANGE, "vllm": GREEN, "sglang": RED}
NAMES = {BLINK: "Blink", "trtllm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang"}
LINES: dict[str, Any] = {ISOLATED: "-", INTERFERED: (0, (4, 2))}
LATENCIES = (("p99_ttft_ms", "P99 TTFT, ms"), ("p99_tpot_e2e_ms", "P99 TPOT, ms"), ("p50_ttft_ms", "P50 TTFT, ms"))
TOKENS = "output_tokens"
THROUGHPUT = "Output throughput, tokens/s"
CURVES_INCHES, SWEEP_INCHES = (13.5, 12.0), (13.5, 4.2)


def draw_curves(evidence: Evidence, out: Path) -> None:
    """Latencies and throughput over the request rate: a column a model, a colour a system, dashed beside other jobs."""
    save_figure(out, CURVES_INCHES, lambda figure: _curves(figure, evidence))


def draw_sweep(evidence: Evidence, out: Path) -> None:
    """Latency and throughput over interference threads, with 95 % confidence bands over the seeds."""
    save_figure(out, SWEEP_INCHES, lambda figure: _sweep(figure, evidence))


def _curves(figure: Any, evidence: Evidence) -> None:
    models = evidence.bed.models
    grid = figure.subplots(len(LATENCIES) + 1, len(models), sharex=True, squeeze=False)
    for column, model in enumerate(models):
        grid[0][column].set_title(model, loc="left", fontweight="bold", fontsize=10, pad=8)
        for row, (name, _) in enumerate(LATENCIES):
            _lines(grid[row][column], evidence, model, partial(evidence.figure, name=name))
            grid[row][column].set_yscale("log")
        _lines(grid[-1][column], evidence, model, evidence.throughput)
        grid[-1][column].set_ylim(0, None)
        grid[-1][column].set_xlabel("requests/s")
    for row, label in enumerate((*(label for _, label in LATENCIES), THROUGHPUT)):
        grid[row][0].set_ylabel(label, color=INK)
        for axes in grid[row]:
            _readable(axes.yaxis)
        if label != THROUGHPUT:
            _same_heights(grid[row])
    axes = grid[0][0]
    axes.set_xscale("log", base=2)
    axes.set_xticks([rate for rate in (1, 2, 4, 8, 16, 32) if rate <= max(evidence.bed.rates)])
    plain_log(axes.xaxis)
    _legend(figure, with_conditions=True)


def _lines(axes: Any, evidence: Evidence, model: str, value: Callable[[Key], float]) -> None:
    for system in reversed(evidence.bed.systems):  # Blink last, on top
        for condition, dashes in LINES.items():
            points = []
            for rate in evidence.bed.rates:
                try:
                    points.append((rate, value(evidence.at(model, system, condition, rate))))
                except NoEvidenceError:
                    continue
            width = 2.0 if system == BLINK else 1.3
            axes.plot(*zip(*points, strict=True), color=COLOURS[system], linestyle=dashes, linewidth=width)
    try:
        edge = evidence.before_saturation(model, ISOLATED)[-1]
    except NoEvidenceError:
        return
    axes.axvline(edge, color=MUTED, linewidth=1.0, linestyle=(0, (1, 2)), zorder=1)


def _same_heights(row: Any) -> None:
    """One scale for all panels of a row, written at the first."""
    low, high = min(axes.get_ylim()[0] for axes in row), max(axes.get_ylim()[1] for axes in row)
    for axes in row:
        axes.set_ylim(low, high)
    for axes in row[1:]:
        axes.tick_params(axis="y", which="both", labelleft=False)


def _sweep(figure: Any, evidence: Evidence) -> None:
    panels = (*LATENCIES[:2], (TOKENS, THROUGHPUT))
    for axes, (name, label) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for system in reversed(evidence.bed.systems):
            _band(axes, evidence, system, name)
        if name != TOKENS:
            axes.set_yscale("log")
        _readable(axes.yaxis)
        axes.set_title(label, loc="left", fontweight="bold", fontsize=10, pad=8)
        axes.set_xlabel("threads of other jobs")
        axes.set_xticks(evidence.bed.threads)
        if name == TOKENS:
            axes.set_ylim(0, None)
    _legend(figure, with_conditions=False)


def _band(axes: Any, evidence: Evidence, system: str, name: str) -> None:
    rows = []
    for threads in evidence.bed.threads:
        seeds = evidence.runs.get(("sweep", system, str(threads)), ())
        interval = mean_interval([_of(figures, name) for figures in seeds])
        if interval is not None:
            rows.append((threads, interval))
    if not rows:
        return
    at = [threads for threads, _ in rows]
    axes.plot(at, [row.estimate for _, row in rows], color=COLOURS[system], linewidth=2.0 if system == BLINK else 1.3)
    low = [max(row.low if row.low is not None else row.estimate, row.estimate / 10) for _, row in rows]
    high = [row.high if row.high is not None else row.estimate for _, row in rows]
    axes.fill_between(at, low, high, color=COLOURS[system], alpha=0.15, linewidth=0)


def _of(figures: Figures, name: str) -> float | None:
    value = figures[name]
    return value if value is None or name != TOKENS else value / (figures["seconds"] or 1.0)


def _legend(figure: Any, *, with_conditions: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, linewidth=2, label=NAMES[system]) for system, colour in COLOURS.items()]
    if with_conditions:
        handles += [
            Line2D([], [], color=INK, linestyle=LINES[ISOLATED], label="alone"),
            Line2D([], [], color=INK, linestyle=LINES[INTERFERED], label="beside 90 threads of other jobs"),
            Line2D([], [], color=MUTED, linestyle=(0, (1, 2)), linewidth=0.8, label="Blink's saturation, alone"),
        ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), frameon=False)


def _readable(axis: Any) -> None:
    """Plain numbers; on a log scale of about a decade also 2 and 5 times each power of ten."""
    from matplotlib.ticker import LogLocator

    if axis.get_scale() == "log":
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 50 * low else (1.0,)))
    plain_log(axis)
