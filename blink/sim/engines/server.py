"""The server process of a host-driven engine: HTTP, tokenizing, the way to the core, and answers to clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blink.common import policy
from blink.common.request import Request
from blink.common.results import Outcome
from blink.common.states import SlotStatus
from blink.perf.host.operation import HostOp
from blink.perf.host_engine import HostEngineProfile
from blink.sim.clock import Clock
from blink.sim.engines.core import EngineCore
from blink.sim.engines.host import HostThread
from blink.sim.engines.lifecycle import LifecycleRecorder
from blink.sim.engines.sequence import Sequence
from blink.sim.engines.text import TextPath
from blink.sim.topology import Path


@dataclass(frozen=True, slots=True)
class ServerThreads:
    """The server's event loop, and its tokenizer's thread if it has one of its own.

    `intake` is the thread in the process of a compiled core that hands it requests; other cores take them themselves.
    """

    loop: HostThread
    tokenizer: HostThread | None = None
    intake: HostThread | None = None


class Server:
    """Takes requests from clients and gives them their text."""

    def __init__(
        self,
        env: Clock,
        profile: HostEngineProfile,
        threads: ServerThreads,
        to_host: Path,
        block_tokens: int,
        text: TextPath,
        recorder: LifecycleRecorder | None,
    ) -> None:
        self._env, self._profile, self._threads, self._to_host = env, profile, threads, to_host
        self._block_tokens, self._text, self._rec = block_tokens, text, recorder
        self.core: EngineCore
        self.ended: Callable[[Request, int], None] = lambda request, at_ns: None
        self._sequences: dict[int, Sequence] = {}

    def receive(self, request: Request, size_bytes: int) -> None:
        """A client sends a request now."""
        profile, loop = self._profile, self._threads.loop
        arrived = self._to_host.send(self._env.now, size_bytes)
        parse_ns = loop.run(HostOp.HTTP, profile.http_parse_ns)
        message_ns = loop.run(HostOp.IPC, profile.request_ns)
        tokens_ns = profile.tokenize_ns + request.prompt_tokens * profile.tokenize_ns_per_token
        tokenizer = self._threads.tokenizer
        if tokenizer is None:
            tokenize_ns = loop.run(HostOp.TOKENIZE, tokens_ns)
            start = loop.interleave(arrived, parse_ns + tokenize_ns + message_ns)
            request.accepted_ns = start + parse_ns
            request.tokenized_ns = request.accepted_ns + tokenize_ns + message_ns
        else:
            tokenize_ns = tokenizer.run(HostOp.TOKENIZE, tokens_ns)
            request.accepted_ns = loop.interleave(arrived, parse_ns + message_ns) + parse_ns
            start = tokenizer.reserve(request.accepted_ns, tokenize_ns)
            request.tokenized_ns = start + tokenize_ns + message_ns
        request.assigned_ns = request.tokenized_ns  # there are no slots to wait for
        sequence = self._sequences[request.request_id] = self._sequence(request)
        if self._rec:
            self._rec.received(sequence)
        request.published_ns = self.core.deliver(self._handed_over(request.tokenized_ns), sequence)

    def _handed_over(self, sent_ns: int) -> int:
        """When a message that the server sends is in the core's inbox: after a hop, and the intake if there is one."""
        ready, intake = sent_ns + self._profile.ipc_hop_ns, self._threads.intake
        if intake is None:
            return ready
        taken = intake.run(HostOp.IPC, self._profile.admit_ns)
        return intake.reserve(ready, taken) + taken

    def _sequence(self, request: Request) -> Sequence:
        ends = (request.eos_at, request.output_tokens_max, request.output_tokens_max)
        end_count = policy.end_count(*ends)
        return Sequence(
            request,
            end_count,
            end_count == request.output_tokens_max,
            policy.end_status(end_count, *ends),
            policy.kv_blocks_needed(request.prompt_tokens, request.output_tokens_max, self._block_tokens),
        )

    def cancel(self, request: Request) -> None:
        """The client of a request that is not complete hangs up now."""
        if request.outcome is not Outcome.UNFINISHED:
            return
        now = self._env.now
        request.cancelled_ns, request.outcome, request.status = now, Outcome.CANCELLED, SlotStatus.CANCELLED
        sequence = self._sequences.pop(request.request_id)
        self._text.settle()
        request.output_tokens = self._text.delivered(sequence)
        if request.output_tokens:
            request.last_token_ns = self._text.last_token_ns(sequence)
        self.core.deliver(self._handed_over(now), sequence, abort=True)

    # --- what the core sends ---

    def send(self, sent_ns: int, members: list[Sequence]) -> None:
        """The tokens of one step."""
        self._text.send(sent_ns, members)

    def finished(self, ended: list[Sequence]) -> None:
        """These have their last token on the way."""
        self._text.settle()
        for sequence in ended:
            request = sequence.request
            request.pause_count = sequence.preemptions
            tokens = request.prompt_tokens + sequence.end_count
            request.kv_block_count = -(-tokens // self._block_tokens)
            if request.cancelled_ns is not None:
                if self._rec:
                    self._rec.aborted(self._env.now, sequence)
                continue
            self._sequences.pop(request.request_id)
            at_ns = self._text.last_token_ns(sequence)
            request.last_token_ns, request.output_tokens = at_ns, sequence.end_count
            request.status, request.outcome = sequence.status, Outcome.COMPLETED
            if self._rec:
                self._rec.delivered(at_ns, sequence)
            self.ended(request, at_ns)
