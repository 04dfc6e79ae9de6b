"""One request on its way through a backend, with the times that its row of the request table needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from blink.common.results import I64, REQUEST_COLUMNS, TTFT_PARTS, Outcome
from blink.common.states import SlotStatus

UNKNOWN = -1


@dataclass(slots=True)
class Request:
    """Times are nanoseconds of the run's clock, -1 until they are known."""

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
    kv_ready_tokens: int = 0  # of the prompt, whose keys and values another replica has sent

    def answered(self, status: int, token_count: int, last_token_ns: int) -> None:
        """Its slot is complete with that SlotStatus, and its client, who still listens, had the last token then."""
        good = status in (SlotStatus.STOP, SlotStatus.LENGTH)
        self.outcome = Outcome.COMPLETED if good else Outcome.FAILED
        self.output_tokens = token_count
        if token_count:
            self.last_token_ns = last_token_ns


def tenant_of(requests: Iterable[Request], slot: int, generation: int) -> int:
    """request_id of the request that was last put into a generation of a slot, -1 if none was.

    What an onlooker knows where the descriptor in the ring is not to be trusted.
    """
    found = [row for row in requests if row.slot == slot and row.generation == generation]
    return max(found, key=lambda row: row.assigned_ns).request_id if found else UNKNOWN


_POINTS = (
    "sent_ns",
    "accepted_ns",
    "tokenized_ns",
    "assigned_ns",
    "published_ns",
    "claimed_ns",
    "prefilled_ns",
    "stored_ns",
    "read_ns",
    "written_ns",
    "first_token_ns",
)
"""The points in time between which the parts of TTFT lie, in the order of results.TTFT_PARTS."""


def request_table(rows: list[Request]) -> dict[str, I64]:
    """REQUEST_COLUMNS of every request that was sent."""
    sent = [row for row in rows if row.sent_ns >= 0]

    def column(name: str) -> I64:
        return np.array([getattr(row, name) for row in sent], np.int64)

    table = {name: column(name) for name in REQUEST_COLUMNS if sent and hasattr(sent[0], name)}
    points = [column(name) for name in _POINTS]
    seen = points[-1] >= 0
    for name, start, end in zip(TTFT_PARTS, points, points[1:], strict=False):
        table[name] = np.where(seen, end - start, -1)
    table["ttft_ns"] = np.where(seen, points[-1] - points[0], -1)
    ended = column("last_token_ns")
    table["e2e_ns"] = np.where(ended >= 0, ended - points[0], -1)
    return {name: table.get(name, np.empty(0, np.int64)) for name in REQUEST_COLUMNS}
