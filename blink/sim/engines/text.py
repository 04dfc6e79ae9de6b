"""From the engine core's output message to bytes at the clients: hops, detokenizing, streaming, in queues."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blink.common.results import I64
from blink.perf.host.operation import HostOp
from blink.perf.host_engine import HostEngineProfile
from blink.sim.engines.host import HostThread
from blink.sim.engines.sequence import Sequence
from blink.sim.gaps import InterTokenGaps


@dataclass(frozen=True, slots=True)
class TextThreads:
    """Who turns tokens into text. Without a detokenizer of its own, the server's one thread does both.

    `response` fetches the output of a compiled core and sends it on; other cores send it themselves.
    """

    server: HostThread
    detokenizer: HostThread | None = None
    response: HostThread | None = None


@dataclass(frozen=True, slots=True)
class TextCosts:
    """What a message costs, under the host's conditions, interruptions apart."""

    response_ns: float
    response_ns_per_sequence: float
    text_ns: float
    text_ns_per_sequence: float
    stream_ns: float
    stream_ns_per_sequence: float

    @classmethod
    def of(cls, profile: HostEngineProfile, threads: TextThreads) -> TextCosts:
        """The profile's costs, each at the pace of its kind."""
        text = (threads.detokenizer or threads.server).factor(HostOp.DETOKENIZE)
        stream = threads.server.factor(HostOp.STREAM_OUT)
        message = threads.response.factor(HostOp.IPC) if threads.response else 0.0
        return cls(
            message * profile.output_ns,
            message * profile.output_ns_per_sequence,
            text * profile.detokenize_ns,
            text * profile.detokenize_ns_per_sequence,
            stream * profile.stream_ns,
            stream * profile.stream_ns_per_sequence,
        )


class TextPath:
    """Takes one message a step. Sequences of a message are served in its order, by one thread."""

    def __init__(self, profile: HostEngineProfile, threads: TextThreads, delivery_ns: int, request_count: int) -> None:
        self._profile, self._threads, self._delivery_ns = profile, threads, delivery_ns
        self._costs = TextCosts.of(profile, threads)
        self.gaps = InterTokenGaps()
        self._written = np.zeros(request_count, np.int64)  # by request: when its last text was written
        self._delivered = np.zeros(request_count, np.int64)
        self._ids: I64 = np.empty(0, np.int64)
        self._rows: list[Sequence] = []  # of the last messages, all alike
        self._messages = 0
        self._start_ns = self._cost_ns = 0
        self._turn_ns = 0  # when the last message starts that is written on its own

    def send(self, sent_ns: int, members: list[Sequence]) -> None:
        """The core sends one token for each member now. The same list again means the same members."""
        if not members:
            return
        again = members is self._rows
        if not again:
            self.settle()
            self._rows = members
            self._ids = np.array([sequence.request.request_id for sequence in members], np.int64)
        start, cost = self._serve(sent_ns, len(members), again)
        if again:
            self._again(start, cost)
        else:
            self._each(start, cost)
        self._start_ns, self._cost_ns = start, cost

    def _serve(self, sent_ns: int, count: int, again: bool) -> tuple[int, int]:
        """When the server starts on a message, and how long it takes.

        A server that merges writes what has come meanwhile for a client together: a message that is there before the
        one ahead of it has been started costs no writing of its own, except for those who have nothing yet.
        """
        threads, costs = self._threads, self._costs
        ready = sent_ns
        if threads.response is not None:
            taken = threads.response.work(costs.response_ns + count * costs.response_ns_per_sequence)
            ready = threads.response.reserve(ready, taken) + taken
        ready += self._profile.ipc_hop_ns
        text_ns = costs.text_ns + count * costs.text_ns_per_sequence
        if threads.detokenizer is not None:
            taken = threads.detokenizer.work(text_ns)
            ready = threads.detokenizer.reserve(ready, taken) + taken + self._profile.ipc_hop_ns
            text_ns = 0.0
        merged = self._profile.merges_chunks and ready < self._turn_ns
        if merged:
            count = 0 if again else int(np.count_nonzero(self._delivered[self._ids] == 0))
        cost = threads.server.work(text_ns + costs.stream_ns + count * costs.stream_ns_per_sequence)
        start = threads.server.reserve(ready, cost)
        if not merged:
            self._turn_ns = start
        return start, cost

    def _again(self, start: int, cost: int) -> None:
        gap, count = start - self._start_ns, len(self._rows)
        if cost == self._cost_ns:
            self.gaps.add(gap, count)
        else:
            places = self._places(count)
            self.gaps.add_all(gap + cost * places // count - self._cost_ns * places // count)
        self._messages += 1

    def _each(self, start: int, cost: int) -> None:
        members, ids = self._rows, self._ids
        count = len(members)
        written = start + cost * self._places(count) // count
        known = self._delivered[ids] > 0
        if known.all():
            self.gaps.add_all(written - self._written[ids])
        else:
            self.gaps.add_all((written - self._written[ids])[known])
            for place in np.flatnonzero(~known).tolist():
                request = members[place].request
                request.read_ns, request.written_ns = start, int(written[place])
                request.first_token_ns = request.written_ns + self._delivery_ns
        self._written[ids] = written
        self._delivered[ids] += 1

    def settle(self) -> None:
        """Bring counts and times of the members up to date."""
        if self._messages:
            count = len(self._rows)
            self._written[self._ids] = self._start_ns + self._cost_ns * self._places(count) // count
            self._delivered[self._ids] += self._messages
            self._messages = 0

    @staticmethod
    def _places(count: int) -> I64:
        return np.arange(1, count + 1)

    def delivered(self, sequence: Sequence) -> int:
        """Tokens of the sequence that were sent (call `settle` before)."""
        return int(self._delivered[sequence.request.request_id])

    def last_token_ns(self, sequence: Sequence) -> int:
        """When the client has the sequence's last token that was sent (call `settle` before)."""
        return int(self._written[sequence.request.request_id]) + self._delivery_ns
