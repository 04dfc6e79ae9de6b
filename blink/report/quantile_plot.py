"""Q-Q figure: quantiles of a predicted latency over those of the measured one; on the diagonal they are equal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from blink.report.plot import BLUE, INK, MUTED, ORANGE, save_figure

MARKED = {"P50": 50.0, "P90": 90.0, "P99": 99.0}
_PANEL_INCHES = (3.6, 3.9)
Pair = tuple[NDArray[Any], NDArray[Any]]


def plot_quantiles(title: str, panels: Mapping[str, tuple[Pair, Mapping[str, tuple[float, float]]]], out: Path) -> None:
    """One panel a latency: ((measured, predicted) quantiles in ms, {name: (measured, predicted)} of marked ones).

    Raises InputError as `save_figure` does.
    """
    width = _PANEL_INCHES[0] * len(panels)

    def draw(figure: Any) -> None:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11)
        for axes, (name, (pair, marked)) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
        ):
            _panel(axes, name, pair, marked)

    save_figure(out, (width, _PANEL_INCHES[1]), draw)


def _panel(axes: Any, name: str, pair: Pair, marked: Mapping[str, tuple[float, float]]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    real, sim = pair
    low, high = min(real.min(), sim.min()), max(real.max(), sim.max())
    low, high = low * 0.95, high * 1.05
    axes.plot([low, high], [low, high], color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.plot(real, sim, ".", color=BLUE, markersize=3.5)
    for label, (x, y) in marked.items():
        axes.plot([x], [y], "o", markersize=6, markerfacecolor="none", markeredgecolor=ORANGE, markeredgewidth=1.4)
        axes.annotate(label, (x, y), xytext=(7, -11), textcoords="offset points", color=INK, fontsize=8)
    if low > 0 and high / low > 8:
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            axis.set_minor_formatter(NullFormatter())
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    axes.set_title(name, loc="left", fontsize=9)
    axes.set_xlabel("measured, ms")
    axes.set_ylabel("twin, ms")
