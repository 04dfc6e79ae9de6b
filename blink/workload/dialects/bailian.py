"""Bailian's traces: seconds, chats with turns; every turn carries its own time, so the trace is an open loop."""

from __future__ import annotations

from blink.workload.collector import Collector
from blink.workload.dialects.base import UNUSED_HASHES, Dialect, hashes
from blink.workload.row import Row


def _read(row: Row, collector: Collector) -> None:
    arrival_ns = row.arrival_ns("timestamp")
    prompt_tokens, output_tokens = row.prompt_tokens("input_length"), row.output_tokens("output_length")
    if "parent_chat_id" in row.values and row.whole("parent_chat_id") >= 0:
        collector.tally("turns that follow another turn, sent at their own recorded time")
    collector.add(row.number, arrival_ns, prompt_tokens, output_tokens, blocks=hashes(row))


BAILIAN = Dialect(
    name="bailian",
    needs=(("chat_id", "timestamp", "input_length", "output_length"),),
    is_json=True,
    read=_read,
    says="JSON lines with chat_id, timestamp (s), input_length, output_length",
    notes=(UNUSED_HASHES,),
    block_tokens=16,
)
