"""The measures of a run, one definition each for every backend. docs/metrics.md explains them to readers of a report.

A request is a row of REQUEST_COLUMNS (blink/common/results.py); all times are those of its client, in nanoseconds.
Latencies are taken over completed requests alone, as the serving benchmarks in use do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blink.common.results import I64, TTFT_PARTS, Outcome, RunResult
from blink.common.units import NS_PER_MS, NS_PER_S

Rows = Mapping[str, I64]


@dataclass(frozen=True, slots=True)
class Slo:
    """Service level objective: upper bounds in milliseconds, None for none."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether any bound is set."""
        return any(bound is not None for bound in (self.ttft_ms, self.tpot_ms, self.e2e_ms))


def completed(requests: Rows) -> dict[str, I64]:
    """The rows whose request ended with STOP or LENGTH, every token at the client."""
    mask = requests["outcome"] == Outcome.COMPLETED
    return {name: column[mask] for name, column in requests.items()}


def ttft_ns(requests: Rows) -> I64:
    """Time to first token: first_token_ns - sent_ns, for each row that has a first token."""
    rows = requests["first_token_ns"] >= 0
    return np.asarray(requests["first_token_ns"][rows] - requests["sent_ns"][rows], dtype=np.int64)


def tpot_ns(requests: Rows) -> NDArray[np.float64]:
    """Time per output token after the first: (last_token_ns - first_token_ns) / (n - 1), for each row with n > 1.

    A mean per request: a stall between two tokens is spread over the others. ITL is the measure that shows it.
    """
    rows = requests["output_tokens"] > 1
    spans = requests["last_token_ns"][rows] - requests["first_token_ns"][rows]
    return np.asarray(spans / (requests["output_tokens"][rows] - 1), dtype=np.float64)


def e2e_ns(requests: Rows) -> I64:
    """End-to-end latency: last_token_ns - sent_ns, for each row that has a token."""
    rows = requests["last_token_ns"] >= 0
    return np.asarray(requests["last_token_ns"][rows] - requests["sent_ns"][rows], dtype=np.int64)


def per_second(amount: int, duration_ns: int) -> float | None:
    """Throughput: amount / duration, in 1/s; None for a run without duration."""
    return amount * NS_PER_S / duration_ns if duration_ns > 0 else None


def meets(requests: Rows, slo: Slo) -> NDArray[np.bool_]:
    """Which rows keep every bound that is set; each has all its tokens. A request of one token has no TPOT to miss."""
    sent, first, last = requests["sent_ns"], requests["first_token_ns"], requests["last_token_ns"]
    good = np.ones(len(sent), dtype=np.bool_)
    if slo.ttft_ms is not None:
        good &= first - sent <= slo.ttft_ms * NS_PER_MS
    if slo.tpot_ms is not None:
        good &= last - first <= slo.tpot_ms * NS_PER_MS * (requests["output_tokens"] - 1)
    if slo.e2e_ms is not None:
        good &= last - sent <= slo.e2e_ms * NS_PER_MS
    return good


def goodput(requests: Rows, slo: Slo, duration_ns: int) -> float | None:
    """Completed requests that keep the whole objective, per second; None without an objective."""
    if not slo.is_set:
        return None
    return per_second(int(np.count_nonzero(meets(completed(requests), slo))), duration_ns)


def concurrent_max(requests: Rows) -> int:
    """Most requests that were under way at one moment, as the clients see it.

    A request is under way from sent_ns until, and without, last_token_ns; one that is unfinished, until the end. One
    that was refused, or was cancelled or failed before its first token, does not count.
    """
    unfinished = requests["outcome"] == Outcome.UNFINISHED
    counted = (requests["last_token_ns"] >= 0) | unfinished
    counted &= (requests["outcome"] != Outcome.REFUSED) & (requests["sent_ns"] >= 0)
    starts = np.sort(requests["sent_ns"][counted])
    ends = np.sort(requests["last_token_ns"][counted & ~unfinished])
    if not len(starts):
        return 0
    # At each start: those that began so far, less those that ended by then.
    under_way = np.arange(1, len(starts) + 1) - np.searchsorted(ends, starts, side="right")
    return int(under_way.max())


def offered_rate(requests: Rows) -> float | None:
    """Requests/s as they were sent: (n - 1) / (last sent_ns - first sent_ns); None if that span is 0."""
    sent = requests["sent_ns"][requests["sent_ns"] >= 0]
    return per_second(len(sent) - 1, int(sent.max() - sent.min())) if len(sent) > 1 else None


def assert_ttft_parts(result: RunResult) -> None:
    """For every row with a first token: no part of TTFT is negative; their sum is ttft_ns and first_token_ns - sent_ns.

    Raises AssertionError that names the first request of which this is not true.
    """
    rows = result.requests
    begun = np.flatnonzero(rows["first_token_ns"] >= 0)
    total = np.zeros(len(begun), dtype=np.int64)
    for name in TTFT_PARTS:
        part = rows[name][begun]
        for index in begun[part < 0][:1]:
            raise AssertionError(f"request {rows['request_id'][index]}: {name} is {rows[name][index]}, below 0")
        total += part
    span = rows["first_token_ns"][begun] - rows["sent_ns"][begun]
    for at in np.flatnonzero((total != span) | (rows["ttft_ns"][begun] != span))[:1]:
        request_id, stated = rows["request_id"][begun[at]], rows["ttft_ns"][begun[at]]
        raise AssertionError(
            f"request {request_id}: parts sum to {total[at]} ns, ttft_ns is {stated}, first - sent is {span[at]}"
        )
