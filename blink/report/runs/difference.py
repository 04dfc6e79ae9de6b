"""Two runs against each other, as plain data: figures and their ratios, distributions, the requests they share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from blink.common.distribution import Distribution
from blink.common.results import I64
from blink.common.units import NS_PER_MS
from blink.report.runs.measured import COUNTS, LATENCIES, STATISTICS, THROUGHPUTS, AnyRun

Data = dict[str, Any]
ORDER = (
    *COUNTS, *THROUGHPUTS, "energy_mj_per_token", "cost_usd_per_million_tokens",
    *(f"{label}_{name}_ms" for name in LATENCIES for label in STATISTICS),
)  # fmt: skip
DIGITS = 6


def difference(a: AnyRun, b: AnyRun) -> Data:
    """What both runs have: for each figure a, b and b over a.

    `distributions`: for each latency of which both have samples, the largest distance between the two distribution
    functions (Kolmogorov-Smirnov), and at which latency it is. `paired`: if both served the same requests, how the
    latency of each changed. `settings`: options of the two scenarios that are not the same.
    """
    figures = {}
    for name in ORDER:
        first, second = a.figures.get(name), b.figures.get(name)
        if first is not None or second is not None:
            figures[name] = {"a": first, "b": second, "ratio": _ratio(first, second)}
    return {
        "a": _identity(a),
        "b": _identity(b),
        "settings": list(_settings(a.scenario, b.scenario)) if a.scenario and b.scenario else None,
        "figures": figures,
        "distributions": {
            name: _distance(a.samples[name], b.samples[name])
            for name in LATENCIES
            if len(a.samples.get(name, ())) and len(b.samples.get(name, ()))
        },
        "paired": _paired(a.requests, b.requests),
    }


def _identity(run: AnyRun) -> Data:
    return {"name": run.name, "made_by": run.made_by, "notes": list(run.notes)}


def _ratio(first: float | None, second: float | None) -> float | None:
    return _rounded(second / first) if first and second is not None else None


def _distance(first: I64, second: I64) -> Data:
    """The largest difference between the two shares of samples that are at most t, and that t."""
    at = np.unique(np.concatenate((first, second)))
    shares = [np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (first, second)]
    place = int(np.argmax(np.abs(shares[0] - shares[1])))
    return {
        "distance": _rounded(float(abs(shares[0][place] - shares[1][place]))),
        "at_ms": _rounded(float(at[place]) / NS_PER_MS),
        "a": _rounded(float(shares[0][place])),
        "b": _rounded(float(shares[1][place])),
    }


def _paired(a: dict[str, I64], b: dict[str, I64]) -> Data | None:
    """Requests of one id and the same lengths on both sides; None unless they are nine tenths of each run's."""
    if not a or not b:
        return None
    _, left, right = np.intersect1d(a["request_id"], b["request_id"], return_indices=True)
    same = np.ones(len(left), bool)
    for name in ("prompt_tokens", "output_tokens"):
        same &= a[name][left] == b[name][right]
    left, right = left[same], right[same]
    if not len(left) or len(left) < 0.9 * max(len(a["request_id"]), len(b["request_id"])):
        return None
    found: Data = {"requests": len(left)}
    for name, column in (("ttft", "ttft_ns"), ("e2el", "e2e_ns")):
        change = Distribution.of(b[column][right] - a[column][left])
        found[name] = {
            "sooner": _rounded(float(np.count_nonzero(b[column][right] < a[column][left])) / len(left)),
            "same": _rounded(float(np.count_nonzero(b[column][right] == a[column][left])) / len(left)),
            **{
                f"{label}_change_ms": _ms(change.percentile(at))
                for label, at in (("p1", 10), ("median", 500), ("p99", 990))
            },
        }
    return found


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else _rounded(value_ns / NS_PER_MS)


def _settings(a: Any, b: Any, at: str = "") -> Iterator[Data]:
    """Options that differ, by their dotted names."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in dict.fromkeys((*a, *b)):
            yield from _settings(a.get(name), b.get(name), f"{at}.{name}" if at else name)
    elif a != b:
        yield {"option": at, "a": a, "b": b}


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
