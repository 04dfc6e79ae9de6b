"""LLMServingSim's traces: flat requests, agentic sessions whose calls wait for one another, or both in one file."""

from __future__ import annotations

from blink.workload.collector import Collector
from blink.workload.dialects.base import Dialect
from blink.workload.numbers import UnusableError, shown
from blink.workload.requests import NO_PARENT
from blink.workload.row import Row

_FLAT = ("arrival_time_ns", "input_toks", "output_toks")
_SESSION = ("arrival_time_ns", "sub_requests")


def _read(row: Row, collector: Collector) -> None:
    if "sub_requests" in row.values:
        _read_session(row, collector)
    else:
        arrival_ns = row.arrival_ns("arrival_time_ns", 1)
        collector.add(row.number, arrival_ns, row.prompt_tokens("input_toks"), row.output_tokens("output_toks"))


def _read_session(row: Row, collector: Collector) -> None:
    """A chain: each call is sent tool_duration_ns (of the call before it) after the call before it completed.

    A call that cannot be a request is left out and counted; its tool time is added to the wait of the next one.
    """
    arrival_ns = row.arrival_ns("arrival_time_ns", 1)
    calls = row.values["sub_requests"]
    if not isinstance(calls, list):
        row.refuse(f"sub_requests {shown(calls)} is not a list")
    if not calls:
        raise UnusableError("session without calls")
    collector.tally("sessions")
    parent, wait_ns = NO_PARENT, 0
    for index, values in enumerate(calls):
        if collector.full:
            return
        if not isinstance(values, dict):
            row.refuse(f"sub_requests[{index}] {shown(values)} is not a JSON object")
        call = Row(row.file, row.number, values, place=f", sub_requests[{index}]")
        tool_ns = call.duration_ns("tool_duration_ns", 1) if "tool_duration_ns" in values else 0
        try:
            prompt_tokens, output_tokens = call.prompt_tokens("input_toks"), call.output_tokens("output_toks")
        except UnusableError as reason:
            collector.skip(str(reason))
            wait_ns += tool_ns
            continue
        if parent == NO_PARENT:
            arrival_ns, wait_ns = arrival_ns + wait_ns, 0
        parent = collector.add(row.number, arrival_ns, prompt_tokens, output_tokens, parent, wait_ns)
        wait_ns = tool_ns


LLMSERVINGSIM = Dialect(
    name="llmservingsim",
    needs=(_FLAT, _SESSION),
    is_json=True,
    read=_read,
    says="JSON lines or CSV with arrival_time_ns, input_toks, output_toks, or JSON lines with sub_requests",
)
