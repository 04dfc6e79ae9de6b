"""Traces of the Splitwise simulator: arrival in seconds, prompt and token size."""

from __future__ import annotations

from blink.workload.collector import Collector
from blink.workload.dialects.base import Dialect
from blink.workload.row import Row


def _read(row: Row, collector: Collector) -> None:
    if "batch_size" in row.values and row.whole("batch_size") != 1:
        collector.tally("rows with a batch_size other than 1, each sent as one request")
    arrival_ns = row.arrival_ns("arrival_timestamp")
    collector.add(row.number, arrival_ns, row.prompt_tokens("prompt_size"), row.output_tokens("token_size"))


SPLITWISE = Dialect(
    name="splitwise",
    needs=(("arrival_timestamp", "prompt_size", "token_size"),),
    is_json=False,
    read=_read,
    says="CSV with arrival_timestamp (s), prompt_size, token_size",
)
