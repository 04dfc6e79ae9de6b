"""From the steps of a measured programme: how far the GPU's clock falls, and what each shape takes on one that idled.

A step's duration is that of its shape on a GPU that has idled, times what the clock has fallen by, less what padding
saves (blink.perf.throttle). Prefills count only up to a level that a load keeps: beyond it the clock falls faster
still. Decode steps have a base a captured batch, one slope
for all KV tokens, and a curve beside that line, since attention works in whole chunks of a sequence. Medians
throughout, so that a step that something else disturbed does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.steps import StepTable
from blink.perf.search import Constants, fit_constants

Floats = NDArray[np.float64]
Busy = Callable[[int, int], float]
"""Nanoseconds of the products of a prefill of (batch, sequence) at the GPU's peak rate."""
START = {"time_ms": 60.0, "compute": 0.05, "memory": 0.025, "exponent": 1.5, "padding": 0.05}
BOUNDS = {
    "time_ms": (10.0, 1000.0), "compute": (0.0001, 0.25), "memory": (0.0001, 0.25), "exponent": (1.0, 3.0),
    "padding": (0.001, 0.5),
}  # fmt: skip
LEVEL = 0.25
"""The level at which `compute` and `memory` are sought, so that the exponent hardly changes them."""
STEPS = (0.3, 0.15, 0.05)
LEVEL_MAX = 0.4
KNOTS, KNOT_SAMPLES = 8, 8
_TRIMMED = 4.0  # median deviations beyond which a decode step takes no part in a line
_MEDIAN_ERROR = 1.2533  # standard deviation of a median over that of a mean, of normal samples


@dataclass(frozen=True, slots=True)
class ColdStep:
    """A captured shape on a GPU that has idled: median duration without KV tokens, its relative error, how many.

    `curve` of a decode step: (KV tokens, duration over that of the line) at places along the measured range.
    """

    kind: GraphKind
    batch: int
    sequence: int
    p50_ns: float
    error: float
    samples: int
    curve: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ColdFit:
    """Constants of the clock, nanoseconds of a KV token, every shape, and the root mean square of what is left."""

    time_ns: int
    compute: float
    memory: float
    exponent: float
    padding: float
    kv_token_ns: float
    steps: tuple[ColdStep, ...]
    left_prefill: float
    left_decode: float


def fit_cold_steps(runs: Sequence[StepTable], busy_ns: Busy, like: ColdFit | None = None) -> ColdFit:
    """Fit everything to the runs, each of which began on a GPU that had idled. InputError if a kind has no step.

    `like`: another fit on the same GPU, whose clock and KV tokens are taken.
    """
    data = _Data(runs, busy_ns)
    if like:
        at_level = LEVEL**like.exponent
        best = {
            "time_ms": like.time_ns / 1e6, "compute": like.compute * at_level, "memory": like.memory * at_level,
            "exponent": like.exponent, "padding": like.padding,
        }  # fmt: skip
    else:
        best = fit_constants(START, BOUNDS, data.loss, STEPS)
    steps, kv_token_ns, left = data.solve(best, like.kv_token_ns if like else None)
    prefill, at_level = data.is_prefill & data.used, LEVEL ** best["exponent"]
    return ColdFit(
        round(best["time_ms"] * 1e6), round(best["compute"] / at_level, 4), round(best["memory"] / at_level, 4),
        round(best["exponent"], 4), round(best["padding"], 4), kv_token_ns, tuple(steps),
        _rms(left[prefill]), _rms(left[~data.is_prefill]),
    )  # fmt: skip


class _Data:
    """All steps of all runs, one behind another."""

    def __init__(self, runs: Sequence[StepTable], busy_ns: Busy) -> None:
        runs = [run for run in runs if len(run)]
        self.kind = np.concatenate([run.kind for run in runs]) if runs else np.zeros(0, np.int64)
        self.is_prefill = self.kind == GraphKind.PREFILL
        if not self.is_prefill.any() or self.is_prefill.all():
            raise InputError("calibrate: the programme needs prefill and decode steps; one kind is missing")
        self.batch = np.concatenate([run.batch for run in runs])
        self.sequence = np.concatenate([run.sequence for run in runs])
        self.kv_tokens = np.concatenate([run.kv_tokens for run in runs]).astype(np.float64)
        self.graph_ns = np.concatenate([run.graph_ns for run in runs]).astype(np.float64)
        prompts = np.concatenate([run.prompt_tokens for run in runs])
        self._padding = np.where(self.is_prefill, 1.0 - prompts / (self.batch * np.maximum(1, self.sequence)), 0.0)
        self._starts = np.concatenate([run.launched_ns for run in runs]).tolist()
        self._ends = np.concatenate([run.done_ns for run in runs]).tolist()
        first = np.concatenate([np.arange(len(run)) == 0 for run in runs])
        self._first = first.tolist()
        shapes = zip(self.batch.tolist(), self.sequence.tolist(), self.graph_ns.tolist(), strict=True)
        self._busy = [
            min(1.0, busy_ns(batch, sequence) / graph_ns) if prefill else 0.0
            for (batch, sequence, graph_ns), prefill in zip(shapes, self.is_prefill.tolist(), strict=True)
        ]
        keys = np.where(self.is_prefill, self.batch * (1 << 32) + self.sequence, -self.batch)
        self.used = ~self.is_prefill | (self.levels(START["time_ms"] * 1e6) <= LEVEL_MAX)
        found = {int(key): np.flatnonzero((keys == key) & self.used) for key in np.unique(keys)}
        self._groups = {key: rows for key, rows in found.items() if rows.size}

    def loss(self, constants: Constants) -> float:
        """Both kinds count alike, whatever their numbers."""
        _, _, left = self.solve(constants)
        return math.hypot(_rms(left[self.is_prefill & self.used]), _rms(left[~self.is_prefill]))

    def levels(self, time_ns: float) -> Floats:
        """The mean level of the clock's state during each step, by the times at which the steps really ran."""
        found, level, before = [], 0.0, 0
        for start, end, busy, first in zip(self._starts, self._ends, self._busy, self._first, strict=True):
            level = 0.0 if first else level * math.exp((before - start) / time_ns)
            kept = math.exp((start - end) / time_ns)
            found.append(busy + (level - busy) * (1.0 - kept) * time_ns / max(1, end - start))
            level, before = busy + (level - busy) * kept, end
        return np.array(found)

    def solve(self, constants: Constants, slope: float | None = None) -> tuple[list[ColdStep], float, Floats]:
        """For these constants: every shape, the slope of KV tokens, and the relative error of each step."""
        levels = self.levels(constants["time_ms"] * 1e6)
        slower = (
            np.where(self.is_prefill, constants["compute"], constants["memory"])
            * (levels / LEVEL) ** constants["exponent"]
        )
        cold = self.graph_ns / ((1.0 + slower) * (1.0 - constants["padding"] * self._padding))
        slope = self._slope(cold) if slope is None else slope
        flat = cold - slope * np.where(self.is_prefill, 0.0, self.kv_tokens)
        left, steps = np.zeros(len(cold)), []
        for rows in self._groups.values():
            base = float(np.median(flat[rows]))
            left[rows] = (flat[rows] - base) / cold[rows]
            row = int(rows[0])
            curve = () if self.is_prefill[row] else self._curve(rows, cold, base, slope)
            steps.append(
                ColdStep(
                    GraphKind(int(self.kind[row])),
                    int(self.batch[row]),
                    int(self.sequence[row]) if self.is_prefill[row] else 0,
                    base,
                    _MEDIAN_ERROR * float(np.std(left[rows])) / math.sqrt(len(rows)),
                    len(rows),
                    curve,
                )
            )
        return steps, slope, left

    def _curve(self, rows: NDArray[np.intp], cold: Floats, base: float, slope: float) -> tuple[tuple[int, float], ...]:
        """Medians of neighbours along the KV tokens, over the line; none where there are too few."""
        kv_tokens = self.kv_tokens[rows]
        order = rows[np.argsort(kv_tokens, kind="stable")]
        parts = np.array_split(order, min(KNOTS, max(1, len(order) // KNOT_SAMPLES)))
        if len(parts) < 2:
            return ()
        places = [round(float(np.median(self.kv_tokens[part]))) for part in parts]
        ratios = [float(np.median(cold[part] / (base + slope * self.kv_tokens[part]))) for part in parts]
        return tuple((place, round(ratio, 5)) for place, ratio in dict(zip(places, ratios, strict=True)).items())

    def _slope(self, cold: Floats) -> float:
        """Nanoseconds of a KV token: the common slope within the captured batches, outliers left out once."""
        x, y, groups = np.zeros(len(cold)), np.zeros(len(cold)), np.zeros(len(cold), np.int64)
        for key, rows in self._groups.items():
            if key < 0:
                x[rows] = self.kv_tokens[rows] - self.kv_tokens[rows].mean()
                y[rows], groups[rows] = cold[rows] - np.median(cold[rows]), key
        kept = groups < 0
        for _ in range(2):
            slope = _centred_slope(x[kept], y[kept], groups[kept])
            away = np.abs(y - slope * x)
            kept = (groups < 0) & (away <= _TRIMMED * np.median(away[groups < 0]) + 1.0)
        return slope


def _centred_slope(x: Floats, y: Floats, groups: NDArray[np.int64]) -> float:
    top = bottom = 0.0
    for key in np.unique(groups):
        rows = groups == key
        dx = x[rows] - x[rows].mean()
        top += float(dx @ (y[rows] - y[rows].mean()))
        bottom += float(dx @ dx)
    return top / bottom if bottom else 0.0


def _rms(left: Floats) -> float:
    """Without the hundredth that is farthest off: a step that something else disturbed."""
    if not left.size:
        return 0.0
    kept = np.sort(np.abs(left))[: max(1, int(0.99 * left.size))]
    return float(np.sqrt(np.mean(kept**2)))
