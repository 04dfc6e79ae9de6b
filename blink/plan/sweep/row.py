"""A point's result as one flat row of the results file: its key, what its run was, its figures, its whole summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from blink.plan.comparison import FIGURES, figure
from blink.plan.point import PointResult
from blink.plan.sweep.slo import SloClass

Row = dict[str, Any]

DIGEST, ERROR, SUMMARY = "digest", "error", "summary"
WINDOW = {
    "seconds": "window_s",
    "requests": "window_requests",
    "asked_tokens": "window_asked_tokens",
    "delivered_tokens": "window_delivered_tokens",
}
"""What SweepPoint keeps of the window -> column."""
RATES = ("offered_request_rate", "offered_tokens_per_s", "delivered_tokens_per_s", "served_share")
"""Columns that follow from those of the window."""


def within(name: str) -> str:
    """The column that counts the window's requests that kept an objective."""
    return f"within_{name}"


def row_of(result: PointResult, digest: str, classes: tuple[SloClass, ...]) -> Row:
    """The row of a result. A point that could not run has its reason in `error`, and nothing else."""
    kept = result.summary
    summary = kept.get("summary", {})
    window = kept.get("window", {})
    row: Row = {**dict(result.key), DIGEST: digest, ERROR: kept.get("error")}
    row |= {name: figure(summary, name) for name in FIGURES}
    row |= {column: window.get(name) for name, column in WINDOW.items()}
    row |= rates(row)
    row |= {within(one.name): kept.get("within", {}).get(one.name) for one in classes}
    row[SUMMARY] = json.dumps(summary, ensure_ascii=False, allow_nan=False) if summary else None
    return row


def rates(row: Mapping[str, Any]) -> dict[str, float | None]:
    """Offered and delivered load in the window, and the share of it that was delivered; None where none was."""
    seconds, asked, delivered = row["window_s"], row["window_asked_tokens"], row["window_delivered_tokens"]
    if not seconds:
        return dict.fromkeys(RATES)
    return {
        "offered_request_rate": row["window_requests"] / seconds,
        "offered_tokens_per_s": asked / seconds,
        "delivered_tokens_per_s": delivered / seconds,
        "served_share": delivered / asked if asked else None,
    }


def work_of(scenario: Any) -> float:
    """How long a run takes, on a scale of its own: the requests that it will send."""
    load = scenario.workload
    rate = getattr(load.arrivals, "rate", None)
    if load.duration_s is not None and rate is not None:
        return float(min(load.duration_s * rate, load.requests or float("inf")))
    return float(load.requests or 1_000)
