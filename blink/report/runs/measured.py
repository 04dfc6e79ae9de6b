"""What two runs are compared by, whoever made them: figures under the names of summary.json, and samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blink.common.distribution import Distribution
from blink.common.results import I64
from blink.common.units import NS_PER_MS

LATENCIES = ("ttft", "tpot", "itl", "e2el")
STATISTICS = {"mean": None, "median": 500, "p90": 900, "p99": 990, "p999": 999}
"""Name in a figure -> thousandths; None: the mean."""
COUNTS = ("completed", "failed", "duration", "total_input_tokens", "total_output_tokens")
THROUGHPUTS = ("request_rate", "request_throughput", "request_goodput", "output_throughput", "total_token_throughput")


@dataclass(frozen=True, slots=True)
class AnyRun:
    """One run. `samples`: latency -> ns, one a completed request (of `itl`: one a gap), where they are known.

    `requests` are columns by which two runs can be paired: prompt and output tokens and the three latencies of every
    completed request, in the order of `request_id`. `scenario` is a resolved one, of runs that have it.
    """

    name: str
    made_by: str
    figures: Mapping[str, float | None]
    samples: dict[str, I64] = field(default_factory=dict)
    requests: dict[str, I64] = field(default_factory=dict)
    scenario: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def latency_figures(samples: dict[str, I64]) -> dict[str, float | None]:
    """Mean and percentiles in ms of every latency that has samples, under the names of summary.json."""
    found: dict[str, float | None] = {}
    for name, values in samples.items():
        spread = Distribution.of(values)
        for label, thousandths in STATISTICS.items():
            value = spread.mean() if thousandths is None else spread.percentile(thousandths)
            found[f"{label}_{name}_ms"] = None if value is None else value / NS_PER_MS
    return found


def nanoseconds(seconds: list[float] | np.ndarray[Any, Any]) -> I64:
    """Times in seconds as whole nanoseconds."""
    return np.rint(np.asarray(seconds, dtype=np.float64) * 1e9).astype(np.int64)
