"""BurstGPT: 6 columns, or 8 with session and elapsed time; a row of 0 response tokens is a request that failed."""

from __future__ import annotations

from blink.workload.collector import Collector
from blink.workload.dialects.base import Dialect
from blink.workload.numbers import UnusableError
from blink.workload.row import Row


def _read(row: Row, collector: Collector) -> None:
    arrival_ns = row.arrival_ns("Timestamp")
    prompt_tokens = row.prompt_tokens("Request tokens")
    if row.whole("Response tokens") == 0:
        raise UnusableError("failed (0 response tokens)")
    collector.add(row.number, arrival_ns, prompt_tokens, row.output_tokens("Response tokens"))


BURSTGPT = Dialect(
    name="burstgpt",
    needs=(("Timestamp", "Model", "Request tokens", "Response tokens"),),
    is_json=False,
    read=_read,
    says="CSV with Timestamp (s), Model, Request tokens, Response tokens",
)
