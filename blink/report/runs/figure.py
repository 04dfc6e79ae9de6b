"""Two runs as a figure: the distributions of their latencies over each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blink.common.errors import InputError
from blink.common.results import I64
from blink.common.units import NS_PER_MS
from blink.report.plot import BLUE, ORANGE, POINTS_MAX, named, plain_log, save_figure
from blink.report.runs.measured import LATENCIES, AnyRun
from blink.report.table import LATENCIES as WORDS

WIDTH_INCHES, HEIGHT_INCHES = 4.2, 3.6


def plot_runs(a: AnyRun, b: AnyRun, out: Path) -> None:
    """Draw every latency of which both runs have samples. Raises InputError if there is none, and as save_figure."""
    shown = [name for name in LATENCIES if len(a.samples.get(name, ())) and len(b.samples.get(name, ()))]
    if not shown:
        raise InputError(f"--figure {out}: the runs have no samples of a common latency: there is nothing to draw")
    inches = (WIDTH_INCHES * len(shown), HEIGHT_INCHES)
    save_figure(out, inches, lambda figure: _draw(figure, a, b, shown))


def _draw(figure: Any, a: AnyRun, b: AnyRun, shown: list[str]) -> None:
    words = {key: label for key, label, _ in WORDS}
    for axes, name in zip(np.atleast_1d(figure.subplots(1, len(shown))), shown, strict=True):
        for run, colour, label in ((a, BLUE, f"A: {a.name}, {a.made_by}"), (b, ORANGE, f"B: {b.name}, {b.made_by}")):
            _curve(axes, run.samples[name], colour, label)
        axes.set_xscale("log")
        plain_log(axes.xaxis)
        axes.set_ylim(0, 101)
        named(axes, f"{words[name]}: share that was as fast, %", "ms")
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False)


def _curve(axes: Any, samples: I64, colour: str, label: str) -> None:
    ordered = np.sort(samples) / NS_PER_MS
    share = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
    kept = np.unique(np.linspace(0, len(ordered) - 1, POINTS_MAX // 4).astype(np.int64))
    axes.step(ordered[kept], share[kept], where="post", color=colour, linewidth=1.6, label=label)
