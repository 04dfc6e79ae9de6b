"""Requests as their clients see them: each a span from sending to last token, with the parts of its TTFT inside."""

from __future__ import annotations

from blink.common.results import I64, TTFT_PARTS, Outcome
from blink.report.timeline.model import Span, Track

FRONTEND = "frontend"


def request_tracks(requests: dict[str, I64]) -> list[Track]:
    """A track a request that was sent; one without a token is a moment, since nobody knows when its client gave up."""
    columns = {name: column.tolist() for name, column in requests.items()}
    return [_track(columns, row) for row in range(len(columns["sent_ns"])) if columns["sent_ns"][row] >= 0]


def _track(columns: dict[str, list[int]], row: int) -> Track:
    sent, first = columns["sent_ns"][row], columns["first_token_ns"][row]
    last = max(columns["last_token_ns"][row], first, sent)
    args: dict[str, int | str] = {
        "outcome": Outcome(columns["outcome"][row]).label,
        "slot": columns["slot"][row],
        **{name: columns[name][row] for name in ("prompt_tokens", "output_tokens", "pause_count", "kv_block_count")},
    }
    spans = [Span(sent, last, f"request {columns['request_id'][row]}", args)]
    if first >= 0:
        at = sent
        for name in TTFT_PARTS:
            end = at + columns[name][row]
            if end > at:
                spans.append(Span(at, end, name.removesuffix("_ns")))
            at = end
        if last > first:
            spans.append(Span(first, last, "decode"))
    return Track(FRONTEND, "requests", overlaps=True, spans=spans)
