"""Separate prefill and decode: one replica computes prompt and first token, another one all the others.

Between them go the keys and values of the prompt, from every GPU of the one replica to its like of the other, over the
adapters of the fabric; a replica sends one prompt after the other. The second replica gets a request whose prompt is
longer by the first token, with everything before that token in its cache: it computes that one token, and goes on.
"""

from __future__ import annotations

from dataclasses import replace

from blink.common.request import Request
from blink.common.results import Outcome
from blink.common.units import NS_PER_S
from blink.perf.fabric import FabricProfile
from blink.perf.step import StepModel
from blink.sim.gaps import InterTokenGaps

TIMES = (
    "accepted_ns", "tokenized_ns", "assigned_ns", "published_ns", "claimed_ns", "prefilled_ns", "stored_ns", "read_ns",
    "written_ns", "first_token_ns",
)  # fmt: skip
"""What a request has of its first replica."""


class Handover:
    """The way of keys and values between replicas, and what a request is on either side of it."""

    def __init__(self, fabric: FabricProfile, step: StepModel) -> None:
        self._fabric, self._step = fabric, step
        self._free_ns: dict[int, int] = {}  # by sending replica
        self.gaps = InterTokenGaps()
        self.count = self.sent_bytes = self.sending_ns = 0

    def first_leg(self, request: Request) -> Request:
        """For the replica that computes the prompt: one token is all it yields."""
        return replace(request, output_tokens_max=1)

    def goes_on(self, request: Request, leg: Request) -> bool:
        """After the first token: its times are the request's; whether more tokens are to come."""
        for name in TIMES:
            setattr(request, name, getattr(leg, name))
        request.slot, request.generation, request.kv_block_count = leg.slot, leg.generation, leg.kv_block_count
        return leg.outcome is Outcome.COMPLETED and min(request.eos_at, request.output_tokens_max) > 1

    def send(self, sender: int, request: Request, now_ns: int) -> int:
        """When the other replica has the keys and values of a prompt that are sent from now on."""
        size = self._step.kv_bytes(request.prompt_tokens)  # of each GPU, all of which send at the same time
        start = max(now_ns, self._free_ns.get(sender, 0))
        taken = round(size / self._fabric.network_bytes_per_s * NS_PER_S)
        self._free_ns[sender] = start + taken
        self.count += 1
        self.sent_bytes += size * self._step.tensor_parallel
        self.sending_ns += taken
        return start + taken + 2 * self._fabric.network_latency_ns

    def second_leg(self, request: Request) -> Request:
        """For the replica that decodes."""
        return Request(
            request.request_id, request.source_row, request.prompt_tokens + 1, request.eos_at - 1,
            request.output_tokens_max - 1, request.sent_ns, kv_ready_tokens=request.prompt_tokens,
        )  # fmt: skip

    def join(self, request: Request, leg: Request) -> None:
        """The second leg is over: its end is the request's."""
        request.outcome, request.status = leg.outcome, leg.status
        request.pause_count = leg.pause_count
        request.output_tokens = 1 + leg.output_tokens
        request.last_token_ns = leg.last_token_ns if leg.last_token_ns >= 0 else request.first_token_ns
        if leg.first_token_ns >= 0:
            self.gaps.add(leg.first_token_ns - request.first_token_ns, 1)
