"""One figure of a kept run: latency over time, load over time, memory over time; distributions; parts of TTFT."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common import metrics
from blink.common.config.load import read_toml
from blink.common.errors import InputError
from blink.common.results import I64, TTFT_PARTS
from blink.common.units import NS_PER_MS, NS_PER_S
from blink.report.rundir import SCENARIO_NAME, StoredRun

SUFFIXES = (".svg", ".png")
INSTALL = "pip install 'blink-twin[plot]'"
SIZE_INCHES = (12.0, 8.4)
DPI = 130
POINTS_MAX = 4000  # of a scatter or a step line: more cannot be seen, and an SVG grows with each

INK, MUTED, GRID = "#1b1f24", "#6a737d", "#e4e8ec"
BLUE, ORANGE, GREEN, RED = "#1f6fb4", "#d9822b", "#3b8c55", "#b3392f"

RC: Any = {
    "font.size": 9,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "text.color": INK,
    "svg.hashsalt": "blink",
    "svg.fonttype": "none",
}


def plot_run(run: StoredRun, out: Path) -> None:
    """Draw the run into `out`, .svg or .png; the same run gives the same bytes with the same matplotlib.

    Raises InputError for another suffix, without matplotlib, for a run in which nothing was served, or if `out` cannot
    be written.
    """
    check_suffix(out)
    if not metrics.ttft_ns(run.requests).size:
        raise InputError(f"{run.path}: no request got a token: there is nothing to draw")
    save_figure(out, SIZE_INCHES, lambda figure: _draw(figure, run))


def save_figure(out: Path, inches: tuple[float, float], draw: Callable[[Any], None]) -> None:
    """Draw one figure into `out`, written beside it and renamed; the same drawing gives the same bytes.

    Raises InputError for a suffix that is neither .svg nor .png, without matplotlib, or if `out` cannot be written.
    """
    check_suffix(out)
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(RC):
        figure = Figure(figsize=inches, dpi=DPI, layout="constrained")
        draw(figure)
        part = out.with_name(f".{out.stem}.part{out.suffix}")
        try:
            figure.savefig(part, metadata={"Date": None} if out.suffix == ".svg" else {"Software": None})
            part.replace(out)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise InputError(f"--out {out}: cannot be written: {error.strerror}") from None


def check_suffix(out: Path, option: str = "--out") -> None:
    """Raises InputError for a file that is no figure."""
    if out.suffix not in SUFFIXES:
        raise InputError(f"{option} {out}: suffix is {out.suffix!r}; allowed: {', '.join(SUFFIXES)}")


def require_matplotlib() -> None:
    """Raises InputError if figures cannot be drawn."""
    if find_spec("matplotlib") is None:
        raise InputError(f"plot: matplotlib is not installed: {INSTALL}")


def _draw(figure: Any, run: StoredRun) -> None:
    summary = run.summary
    left, right = figure.add_gridspec(1, 2, width_ratios=(1.25, 1))
    latency, load, memory = left.subgridspec(3, 1, height_ratios=(1.4, 1, 0.8)).subplots(sharex=True)
    spread, parts = right.subgridspec(2, 1, height_ratios=(1.1, 1)).subplots()
    figure.suptitle(_title(summary), x=0.01, ha="left", fontsize=11)
    slo = read_toml(run.path / SCENARIO_NAME).get("slo", {}) if (run.path / SCENARIO_NAME).is_file() else {}
    start_ns = int(run.requests["sent_ns"].min())
    latency_over_time(latency, run.requests, start_ns, slo)
    load_over_time(load, run.requests, start_ns, summary["blink"]["batch"]["limit"])
    memory_over_time(memory, run.requests, start_ns, summary["blink"]["kv_blocks"]["limit"])
    distributions(spread, run.requests)
    _parts(parts, summary["blink"]["ttft_parts_mean_ms"])


def _title(summary: dict[str, Any]) -> str:
    served = f"{summary['completed']:,} of {summary['num_prompts']:,} requests completed"
    rate = f", {summary['output_throughput']:,.0f} output tokens/s" if summary["output_throughput"] else ""
    stopped = ", stopped before its end" if summary["blink"]["partial"] else ""
    return f"{summary['label']}: {served}{rate}{stopped}"


def latency_over_time(axes: Any, requests: dict[str, I64], start_ns: int, slo: dict[str, float]) -> None:
    """TTFT and E2E of each request, logarithmic, over the time it was sent."""
    rows = np.flatnonzero(requests["first_token_ns"] >= 0)
    rows = rows[:: max(1, -(-len(rows) // POINTS_MAX))]
    together = bool(np.all(requests["sent_ns"] == start_ns))
    at, moment = ("first_token_ns", "of the first token") if together else ("sent_ns", "of sending")
    at_s = (requests[at][rows] - start_ns) / NS_PER_S
    for name, end, colour in (("E2E", "last_token_ns", ORANGE), ("TTFT", "first_token_ns", BLUE)):
        latency_ms = (requests[end][rows] - requests["sent_ns"][rows]) / NS_PER_MS
        axes.plot(
            at_s,
            latency_ms,
            ".",
            color=colour,
            markersize=3,
            alpha=0.5,
            markeredgewidth=0,
            label=name,
            rasterized=True,
        )
    if "ttft_ms" in slo:
        axes.axhline(slo["ttft_ms"], color=BLUE, linewidth=1, linestyle=(0, (4, 3)), label="SLO of TTFT")
    axes.set_yscale("log")
    axes.set_ylim(None, axes.get_ylim()[1] * 2.5)  # room for the legend
    plain_log(axes.yaxis)
    named(axes, f"Latency by time {moment}, ms")
    legend = axes.legend(
        loc="upper right", ncols=3, frameon=True, framealpha=0.9, edgecolor="none", markerscale=3, fontsize=8
    )
    for handle in legend.legend_handles:
        handle.set_alpha(1)


def load_over_time(axes: Any, requests: dict[str, I64], start_ns: int, batch_limit: int) -> None:
    """Requests that run and that wait, over time, with the limit of the batch where it is near."""
    claimed = claimed_ns(requests)
    served = claimed >= 0
    sent, last = requests["sent_ns"], requests["last_token_ns"]
    waiting = levels_over_time(sent[served], claimed[served])
    running = levels_over_time(claimed[served], last[served])
    for (at_ns, count), colour, name in ((running, BLUE, "running"), (waiting, ORANGE, "not yet claimed")):
        axes.step((at_ns - start_ns) / NS_PER_S, count, where="post", color=colour, linewidth=1, label=name)
    peak = max(int(running[1].max()), int(waiting[1].max()))
    if batch_limit <= 1.5 * peak:
        axes.axhline(batch_limit, color=RED, linewidth=1, linestyle=(0, (4, 3)), label=f"batch limit {batch_limit}")
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    axes.yaxis.set_major_formatter("{x:,.0f}")
    named(axes, "Requests under way")
    axes.legend(loc="upper right", ncols=3, frameon=True, framealpha=0.9, edgecolor="none", fontsize=8)


def memory_over_time(axes: Any, requests: dict[str, I64], start_ns: int, total: int) -> None:
    """KV blocks that are held, in percent of all, over time."""
    claimed = claimed_ns(requests)
    served = (claimed >= 0) & (requests["kv_block_count"] > 0)
    at_ns, blocks = levels_over_time(
        claimed[served], requests["last_token_ns"][served], requests["kv_block_count"][served]
    )
    share = 100 * blocks / total if total else blocks
    axes.fill_between((at_ns - start_ns) / NS_PER_S, share, step="post", color=GREEN, alpha=0.25, linewidth=0)
    axes.step((at_ns - start_ns) / NS_PER_S, share, where="post", color=GREEN, linewidth=1)
    axes.set_ylim(0, 100 if share.max() > 50 else None)
    named(axes, f"KV blocks reserved, % of {total:,}", "s since the first request")


def distributions(axes: Any, requests: dict[str, I64]) -> None:
    """Share of completed requests that had at most a TPOT, a TTFT, an E2E latency."""
    done = metrics.completed(requests)
    samples = (
        ("TPOT", metrics.tpot_ns(done), GREEN),
        ("TTFT", metrics.ttft_ns(done), BLUE),
        ("E2E", metrics.e2e_ns(done), ORANGE),
    )
    for name, latency_ns, colour in samples:
        if not latency_ns.size:
            continue
        ordered = np.sort(latency_ns) / NS_PER_MS
        share = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
        kept = np.unique(np.linspace(0, len(ordered) - 1, POINTS_MAX // 4).astype(np.int64))
        axes.step(ordered[kept], share[kept], where="post", color=colour, linewidth=1.6, label=name)
    axes.set_xscale("log")
    plain_log(axes.xaxis)
    axes.set_ylim(0, 101)
    axes.set_yticks([0, 25, 50, 75, 90, 99], ["0", "25", "50", "75", "90", "99"])
    named(axes, "Share of completed requests that were as fast, %", "ms")
    axes.legend(loc="lower right", frameon=True, framealpha=0.9, edgecolor="none", fontsize=8)


def _parts(axes: Any, mean_ms: dict[str, float | None]) -> None:
    names = [name.removesuffix("_ns") for name in TTFT_PARTS]
    values = [mean_ms.get(name) or 0.0 for name in names]
    begins = np.concatenate(([0.0], np.cumsum(values)[:-1]))
    axes.barh(names, values, left=begins, color=BLUE, height=0.62, edgecolor=BLUE, linewidth=0.8)
    for row, (begin, value) in enumerate(zip(begins, values, strict=True)):
        _label(axes, row, begin, value, sum(values))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_xlim(0, sum(values) * 1.03 or 1)
    axes.xaxis.set_major_formatter("{x:,g}")
    named(axes, f"Where the mean TTFT of {_figure(sum(values))} ms goes", "ms since the request was sent")


def _label(axes: Any, row: int, begin: float, value: float, total: float) -> None:
    """The value of a bar: inside a long one, else to its right, or to its left where the axis ends."""
    room = total * 0.012
    if value > 0.25 * total:
        place = {"x": begin + value / 2, "ha": "center", "color": "white"}
    elif begin + value < 0.8 * total:
        place = {"x": begin + value + room, "ha": "left"}
    else:
        place = {"x": begin - room, "ha": "right"}
    axes.text(y=row, s=_figure(value), va="center", fontsize=8, **place)


def claimed_ns(requests: dict[str, I64]) -> I64:
    """When each request was claimed: the parts of TTFT up to the claim, added to its sending; -1 if it got no token."""
    upto = TTFT_PARTS[: TTFT_PARTS.index("ring_wait_ns") + 1]
    claimed = requests["sent_ns"] + np.sum([requests[name] for name in upto], axis=0, dtype=np.int64)
    return np.where(requests["first_token_ns"] >= 0, claimed, -1)


def levels_over_time(starts: I64, ends: I64, sizes: I64 | None = None) -> tuple[I64, I64]:
    """Times, and the sum of the sizes of the intervals that are open from each time on; thinned to what can be seen."""
    weights = np.ones(len(starts), dtype=np.int64) if sizes is None else sizes
    at = np.concatenate((starts, ends))
    order = np.argsort(at, kind="stable")
    levels = np.cumsum(np.concatenate((weights, -weights))[order])
    at = at[order]
    last = np.append(np.flatnonzero(np.diff(at)), len(at) - 1)  # of several changes at one time, the last one's level
    at, levels = at[last], levels[last]
    kept: NDArray[np.int64] = np.unique(np.linspace(0, len(at) - 1, POINTS_MAX).astype(np.int64))
    return at[kept], levels[kept]


def named(axes: Any, title: str, x: str = "") -> None:
    """A panel's title, and what its horizontal axis counts."""
    axes.set_title(title, loc="left", fontsize=9.5, fontweight="bold", pad=7)
    axes.set_xlabel(x)


def plain_log(axis: Any) -> None:
    """1, 10, 100 in place of powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _figure(value: float) -> str:
    for least, digits in ((100, 0), (10, 1), (0.01, 2), (1e-9, 4)):
        if value >= least:
            return f"{value:,.{digits}f}"
    return "0"
