"""Vidur's traces: with arrivals in seconds, or lengths only."""

from __future__ import annotations

from blink.workload.collector import Collector
from blink.workload.dialects.base import Dialect
from blink.workload.row import Row

_LENGTHS = ("num_prefill_tokens", "num_decode_tokens")


def _read(row: Row, collector: Collector) -> None:
    _add(row, collector, row.arrival_ns("arrived_at"))


def _read_lengths(row: Row, collector: Collector) -> None:
    _add(row, collector, 0)


def _add(row: Row, collector: Collector, arrival_ns: int) -> None:
    prompt, output = _LENGTHS
    collector.add(row.number, arrival_ns, row.prompt_tokens(prompt), row.output_tokens(output))


VIDUR = Dialect(
    name="vidur",
    needs=(("arrived_at", *_LENGTHS),),
    is_json=False,
    read=_read,
    says="CSV with arrived_at (s), num_prefill_tokens, num_decode_tokens",
)
VIDUR_LENGTHS = Dialect(
    name="vidur-lengths",
    needs=(_LENGTHS,),
    is_json=False,
    read=_read_lengths,
    says="CSV with num_prefill_tokens, num_decode_tokens and no arrivals",
    has_arrivals=False,
    fits=lambda first: "arrived_at" not in first,
)
