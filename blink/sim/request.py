"""One request on its way through the model, with the times that its row of the request table needs."""

from __future__ import annotations

from dataclasses import dataclass

from blink.common.results import Outcome

UNKNOWN = -1


@dataclass(slots=True)
class Request:
    """Times are virtual nanoseconds, -1 until they are known."""

    request_id: int
    source_row: int
    prompt_tokens: int
    eos_at: int  # the output token with which the model ends the text
    output_tokens_max: int
    sent_ns: int
    outcome: Outcome = Outcome.UNFINISHED
    status: int = UNKNOWN
    slot: int = UNKNOWN
    generation: int = UNKNOWN
    cancelled_ns: int | None = None
    accepted_ns: int = UNKNOWN  # parsed, with a core
    tokenized_ns: int = UNKNOWN
    assigned_ns: int = UNKNOWN
    published_ns: int = UNKNOWN
    claimed_ns: int = UNKNOWN
    prefilled_ns: int = UNKNOWN
    stored_ns: int = UNKNOWN
    read_ns: int = UNKNOWN
    written_ns: int = UNKNOWN
    first_token_ns: int = UNKNOWN
    last_token_ns: int = UNKNOWN
    output_tokens: int = 0
    pause_count: int = 0
    kv_block_count: int = UNKNOWN
