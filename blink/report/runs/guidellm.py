"""One benchmark out of a guidellm report (`benchmarks.json`).

Its inter-token latency is the mean gap of a request, which is TPOT here; its time per output token has the wait for the
first token in it, and nothing here. Single gaps are not in the report.
"""

from __future__ import annotations

from typing import Any

from blink.common.errors import InputError
from blink.common.results import I64
from blink.report.runs.fields import Fields
from blink.report.runs.measured import AnyRun, latency_figures, nanoseconds

MS, S = 1e-3, 1.0
FIELDS = {
    "ttft": ("time_to_first_token_ms", MS),
    "tpot": ("inter_token_latency_ms", MS),
    "e2el": ("request_latency", S),
}
"""Latency -> its field, and the unit in seconds."""
STATISTICS = {"mean": "mean", "median": "median", "p90": "p90", "p99": "p99", "p999": "p999"}


def is_guidellm(document: Any) -> bool:
    """Whether a JSON document is of this form."""
    return isinstance(document, dict) and isinstance(document.get("benchmarks"), list)


def read_guidellm(document: Any, source: str, index: int | None) -> AnyRun:
    """The benchmark of that index, or the only one. Raises InputError that names file, field and value."""
    benchmarks = Fields(document, source).rows("benchmarks")
    if index is None and len(benchmarks) > 1:
        raise InputError(
            f"{source}: holds {len(benchmarks)} benchmarks; say which: {source}#0 to #{len(benchmarks) - 1}"
        )
    if not 0 <= (index or 0) < len(benchmarks):
        raise InputError(f"{source}#{index or 0}: no such benchmark; allowed: #0 to #{len(benchmarks) - 1}")
    one = benchmarks[index or 0]
    metrics = one.table("metrics")
    rows = one.table("requests").rows("successful")
    samples = _samples(rows)
    figures = {**_stated(metrics), **latency_figures(samples)}
    duration = one.number("duration")
    totals = metrics.table("request_totals")
    done = totals.number("successful")
    figures |= {
        "completed": float(len(rows)) if done is None else done,
        "failed": (totals.number("errored") or 0.0) + (totals.number("incomplete") or 0.0),
        "duration": duration,
        "total_input_tokens": _total(metrics, "prompt_token_count"),
        "total_output_tokens": _total(metrics, "output_token_count"),
        "request_rate": one.table("config").table("strategy").number("rate"),
        "request_throughput": _mean(metrics, "requests_per_second"),
        "output_throughput": _mean(metrics, "output_tokens_per_second"),
        "total_token_throughput": _mean(metrics, "tokens_per_second"),
    }
    notes = ("ITL of single gaps is not in a guidellm report",)
    known = {name: value for name, value in figures.items() if value is not None}
    return AnyRun(f"{source}#{index or 0}", "guidellm", known, samples, notes=notes)


def _samples(rows: list[Fields]) -> dict[str, I64]:
    if not rows:
        return {}
    found = {}
    for name, (field, unit) in FIELDS.items():
        values = [value for row in rows if (value := row.number(field)) is not None]
        if values:
            found[name] = nanoseconds([value * unit for value in values])
    return found


def _stated(metrics: Fields) -> dict[str, float | None]:
    """Mean and percentiles as the report has them, in ms."""
    found = {}
    for name, (field, unit) in FIELDS.items():
        spread = metrics.table(field).table("successful")
        percentiles = spread.table("percentiles")
        for label, stated in STATISTICS.items():
            value = spread.number(stated) if stated in ("mean", "median") else percentiles.number(stated)
            found[f"{label}_{name}_ms"] = None if value is None else value * unit * 1e3
    return found


def _mean(metrics: Fields, name: str) -> float | None:
    return metrics.table(name).table("successful").number("mean")


def _total(metrics: Fields, name: str) -> float | None:
    return metrics.table(name).table("successful").number("total_sum")
