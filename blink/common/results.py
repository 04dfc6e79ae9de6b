"""What a run leaves behind, whatever backend made it: columns of requests, weighted inter-token gaps, counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


class Outcome(IntEnum):
    """What became of a request, as its client sees it."""

    COMPLETED = 0  # STOP or LENGTH
    CANCELLED = 1
    FAILED = 2  # any other status
    REFUSED = 3  # never entered the ring; the reason says why
    UNFINISHED = 4  # the run ended first

    @property
    def label(self) -> str:
        """The name on disk."""
        return self.name.lower()


TTFT_PARTS = (
    "ingress_ns",  # sent by the client -> the frontend has the parsed request and a core
    "tokenize_ns",  # prompt text -> tokens
    "slot_wait_ns",  # tokens ready -> a slot is assigned
    "link_ns",  # slot assigned -> the control word is visible in the ring (published)
    "ring_wait_ns",  # published -> claimed
    "prefill_ns",  # claimed -> the prefill graph is done
    "publish_ns",  # graph done -> the first token's control word is stored
    "read_ns",  # stored -> the token's READ has completed at the frontend
    "detokenize_ns",  # token at the frontend -> bytes of text written to the socket
    "delivery_ns",  # bytes written -> bytes at the client
)
"""The named parts of TTFT, on one clock; their sum is the TTFT that the client sees, exactly."""

REQUEST_COLUMNS = (
    "request_id",
    "source_row",  # row of the trace file, -1 if drawn
    "outcome",  # Outcome
    "status",  # SlotStatus, -1 if it never reached the ring
    "slot",
    "generation",
    "prompt_tokens",
    "output_tokens_max",
    "output_tokens",  # delivered to the client
    "sent_ns",
    "first_token_ns",  # at the client
    "last_token_ns",  # at the client
    "ttft_ns",
    *TTFT_PARTS,
    "e2e_ns",  # sent -> last token at the client
    "pause_count",
    "kv_block_count",
)
"""int64 columns of the request table, one row a request, -1 where it does not apply."""


@dataclass(frozen=True, slots=True)
class WeightedValues:
    """Values with how often each occurred, both int64 of one length: a distribution without a copy of every sample."""

    values: I64
    weights: I64


@dataclass(slots=True)
class SchedulerCounters:
    """What the gpu scheduler did. Integrals are over virtual time, so a mean is integral / duration."""

    decode_launches: int = 0
    prefill_launches: int = 0
    relaunches: int = 0
    idle_ns: int = 0  # nothing runs, nothing waits
    decode_ns: int = 0  # decode graphs on the gpu
    prefill_ns: int = 0
    loop_ns: int = 0  # scheduler overhead around graphs
    batch_ns: int = 0  # running sequences x time
    batch_max: int = 0
    kv_block_ns: int = 0  # reserved KV blocks x time
    kv_blocks_max: int = 0
    kv_blocks_total: int = 0
    batch_limit: int = 0
    padded_decode_rows: int = 0  # rows of decode graphs that held no sequence
    decode_rows: int = 0
    padded_prefill_tokens: int = 0
    prefill_tokens: int = 0
    wait_batch_ns: int = 0  # the head of the line waited for a place in the batch
    wait_kv_ns: int = 0  # ... for KV blocks
    wait_gpu_ns: int = 0  # ... for nothing but its turn: prefills before it, the decode that one interrupted
    wait_window_ns: int = 0  # ... for launches in the window
    wait_slot_ns: int = 0  # some request waited for a slot of the ring
    slots_in_use_max: int = 0


@dataclass(slots=True)
class RunResult:
    """A whole run. `requests` holds REQUEST_COLUMNS as int64 arrays; `refusals` maps request_id to the reason."""

    scenario: dict[str, Any]
    requests: dict[str, I64]
    refusals: dict[int, str]
    itl: WeightedValues
    scheduler: SchedulerCounters
    duration_ns: int  # from the first sending to the last event
    partial: bool = False
    notes: list[str] = field(
        default_factory=list
    )  # each a sentence: outside a profile's range, skipped trace rows, ...
    counters: dict[str, int] = field(default_factory=dict)  # frontend and link: status_reads, writes, coalesced, ...
    accounts: dict[str, float] = field(default_factory=dict)  # mean watts, joules, US dollars (blink.perf.energy)
    replica_ns: int = 0  # of a fleet: the time that its replicas were there, together
    fleet: dict[str, Any] = field(default_factory=dict)  # plain data on router and replicas (blink.sim.fleet)

    @property
    def scheduler_ns(self) -> int:
        """The time over which the scheduler's integrals run: the duration, or that of all replicas together."""
        return self.replica_ns or self.duration_ns
