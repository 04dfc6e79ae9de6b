"""How full the ring was: slots by state over time, out of the run's trace; without one, out of its requests."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common.errors import InputError
from blink.common.lifecycle import is_lifecycle
from blink.common.results import I64
from blink.common.states import SlotState
from blink.common.trace import read_trace, trace_path
from blink.common.units import NS_PER_S
from blink.report.html.chart import PURPLE, inline_svg
from blink.report.plot import BLUE, GREEN, MUTED, ORANGE, RED, levels_over_time, named
from blink.report.rundir import StoredRun

BANDS = (
    (SlotState.DECODE_PROCESSING, "decoding", GREEN),
    (SlotState.DECODE_PAUSED, "paused", PURPLE),
    (SlotState.PREFILL_PROCESSING, "prefill", ORANGE),
    (SlotState.PREFILL_PENDING, "waiting", RED),
    (SlotState.DECODE_COMPLETED, "completed, not yet free", MUTED),
)
"""From the bottom up; what is left of the ring is empty."""
SPANS = 150
SEEN_MIN = 0.01
"""A band that is nowhere so many slots high is not drawn."""
COLUMNS = ("t_ns", "slot", "from", "to")


def svg(run: StoredRun, start_ns: int) -> str:
    """The chart, or nothing for an engine that has no ring."""
    if run.summary["backend"] not in ("blink", "cpu-resident"):
        return ""
    found = _from_trace(run)
    if found is not None:
        times, counts = found
        return inline_svg(
            "t3", "Slots of the ring by state, over time", lambda figure: _draw(figure, times, counts, start_ns)
        )
    return inline_svg(
        "t3", "Slots of the ring in use, over time", lambda figure: _draw_plain(figure, run.requests, start_ns)
    )


def occupancy(columns: dict[str, Any]) -> tuple[I64, dict[int, I64]]:
    """Times, and for each state how many slots have it from then on; `columns` are those of a transition trace."""
    moved = np.flatnonzero((columns["slot"] >= 0) & (columns["to"] >= 0) & (columns["from"] != columns["to"]))
    order = moved[np.argsort(columns["t_ns"][moved], kind="stable")]
    times, before, after = (np.asarray(columns[name][order], np.int64) for name in ("t_ns", "from", "to"))
    counts = {int(state): np.cumsum((after == state).astype(np.int64) - (before == state)) for state, _, _ in BANDS}
    return times, counts


def _from_trace(run: StoredRun) -> tuple[I64, dict[int, I64]] | None:
    try:
        path = trace_path(run.path)
    except InputError:
        return None
    if is_lifecycle(path):
        return None
    times, counts = occupancy(read_trace(path, COLUMNS).columns)
    return (times, counts) if len(times) else None


def mean_levels(times: I64, level: I64, edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of a level between each two edges; a level holds from its time until the next one."""
    integral = np.concatenate(([0.0], np.cumsum(level[:-1] * np.diff(times), dtype=np.float64)))
    return np.diff(np.interp(edges, times, integral)) / np.diff(edges)


def _draw(figure: Any, times: I64, counts: dict[int, I64], start_ns: int) -> None:
    """Means over short spans: a batch pauses and resumes as a whole, far more often than an eye can follow."""
    axes = figure.subplots()
    edges = np.linspace(times[0], times[-1], SPANS + 1)
    at_s = (edges - start_ns) / NS_PER_S
    base = np.zeros(SPANS)
    for state, name, colour in BANDS:
        mean = mean_levels(times, counts[int(state)], edges)
        if mean.max() >= SEEN_MIN:
            axes.stairs(base + mean, at_s, baseline=base, fill=True, color=colour, linewidth=0, label=name)
        base = base + mean
    _finish(axes, f"Slots of the ring in use, by state, means over {(edges[1] - edges[0]) / NS_PER_S:.2g} s")
    axes.legend(loc="upper right", ncols=3, frameon=True, framealpha=0.9, edgecolor="none", fontsize=8)


def _draw_plain(figure: Any, requests: dict[str, I64], start_ns: int) -> None:
    axes = figure.subplots()
    held = (requests["slot"] >= 0) & (requests["first_token_ns"] >= 0)
    taken = sum(
        (requests[name][held] for name in ("ingress_ns", "tokenize_ns", "slot_wait_ns")), requests["sent_ns"][held]
    )
    at_ns, count = levels_over_time(taken, requests["last_token_ns"][held])
    axes.step((at_ns - start_ns) / NS_PER_S, count, where="post", color=BLUE, linewidth=1)
    _finish(axes, "Slots of the ring in use")


def _finish(axes: Any, title: str) -> None:
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    axes.yaxis.set_major_formatter("{x:,.0f}")
    named(axes, title, "s since the first request")
