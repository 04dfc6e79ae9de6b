"""Mooncake's traces: milliseconds, many equal timestamps, prefix hashes of 512-token blocks."""

from __future__ import annotations

from blink.common.units import NS_PER_MS
from blink.workload.collector import Collector
from blink.workload.dialects.base import UNUSED_HASHES, Dialect, hashes
from blink.workload.row import Row


def _read(row: Row, collector: Collector) -> None:
    arrival_ns = row.arrival_ns("timestamp", NS_PER_MS)
    lengths = row.prompt_tokens("input_length"), row.output_tokens("output_length")
    collector.add(row.number, arrival_ns, *lengths, blocks=hashes(row))


MOONCAKE = Dialect(
    name="mooncake",
    needs=(("timestamp", "input_length", "output_length"),),
    is_json=True,
    read=_read,
    says="JSON lines with timestamp (ms), input_length, output_length, without chat_id",
    fits=lambda first: "chat_id" not in first,
    notes=(UNUSED_HASHES,),
    block_tokens=512,
)
