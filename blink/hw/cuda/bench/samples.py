"""Distributions of measured times, and the table they stand in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from blink.common.results import I64

TREND_STEPS = 31
"""Steps of the running median by which a trend is taken out: a KV cache that grows makes every step longer."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measured time in nanoseconds. `busy`: how many busy processes ran beside it."""

    what: str
    system: str
    busy: int
    count: int
    p50_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int
    more: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, what: str, system: str, busy: int, times_ns: I64, **more: Any) -> Row:
        """From samples; an empty one has zeros."""
        values = times_ns if times_ns.size else np.zeros(1, np.int64)
        p50, p99, p999 = (int(np.percentile(values, q, method="higher")) for q in (50, 99, 99.9))
        return cls(what, system, busy, int(times_ns.size), p50, p99, p999, int(values.max()), more)

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        plain: dict[str, Any] = asdict(self)
        more: dict[str, Any] = plain.pop("more")
        return plain | more


def without_trend(times_ns: I64) -> I64:
    """Times around their overall median, with the running median of TREND_STEPS neighbours taken out."""
    if times_ns.size < TREND_STEPS:
        return times_ns
    half = TREND_STEPS // 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(times_ns, half, mode="edge"), TREND_STEPS)
    middle = np.median(windows, axis=1)
    plain: I64 = np.rint(times_ns - middle + np.median(times_ns)).astype(np.int64)
    return plain
