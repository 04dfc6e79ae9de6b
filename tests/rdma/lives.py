"""The frontends of one ring, one after another, and the one trace of them all."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from blink.common.checker import check_trace
from blink.common.events import Event
from blink.common.request import Request
from blink.common.results import Outcome
from blink.common.states import SLOT_COUNT
from blink.common.verdict import Verdict
from blink.frontend.token_reader import News
from blink.hw.native.frontend_child import ServingFrontend, Setup
from blink.hw.native.records import RecordReader
from blink.hw.native.run import monotonic_ns
from blink.hw.verbs.attach import Attachment
from blink.hw.verbs.device import Device
from blink.hw.verbs.ring import VerbsRing
from blink.hw.verbs.trace_tail import TraceTail
from blink.serve.remote import Ear
from tests.hw.native_help import trace_recorder
from tests.rdma.far_ring import FarRing


class Told(ServingFrontend):
    """Notes which tokens each request gets, and refuses any that is not the next."""

    def __init__(self, *arguments: Any) -> None:
        self.tokens: dict[int, int] = defaultdict(int)
        super().__init__(*arguments)

    def _check(self, news: News, count: Any, tokens: Any) -> None:
        for slot, first, many in zip(news.slots.tolist(), news.token_from.tolist(), count.tolist(), strict=True):
            request = self._by_slot[slot].request_id
            assert first == self.tokens[request], f"request {request} gets token {first} after {self.tokens[request]}"
            self.tokens[request] += many
        super()._check(news, count, tokens)


class Lives:
    """`begin` makes the next frontend; `crash` ends it without a goodbye. `verdict` closes the trace and checks it."""

    def __init__(self, far: FarRing, device: Device, trace: Path) -> None:
        self._far, self._device, self._trace = far, device, trace
        self._start_ns = monotonic_ns()
        self._recorder = trace_recorder(trace)
        self._recorder.submitter = self._recorder.reader
        self._frontends: list[Told] = []
        self._records = RecordReader(self._recorder, self._request_of, self._start_ns)
        self._tail: TraceTail | None = None
        self._request_count = 0
        self.ring: VerbsRing | None = None
        self.requests: list[Request] = []

    def _request_of(self, slot: int, generation: int) -> Request | None:
        found = (frontend.request_of(slot, generation) for frontend in reversed(self._frontends))
        return next((request for request in found if request is not None), None)

    @property
    def frontend(self) -> Told:
        """The one that has the ring."""
        return self._frontends[-1]

    def begin(self) -> Told:
        """Connect; recover the ring unless this is its first frontend (E2)."""
        attachment: Attachment = self._far.door().open_patiently(self._device)
        self.ring = ring = VerbsRing(attachment, self._far.settings, self._tail)
        ring.drain_gap_ns = 0
        recover, epoch = attachment.hello.life > 0, ring.header_epoch
        if recover:
            ring.settings = replace(ring.settings, frontend_epoch=epoch + 1)
        setup = Setup(Path(), ring.settings, self._start_ns, 512, 64, 1_000_000_000, seed=1, recover=recover)
        frontend = Told(setup, ring, Ear(self._recorder), self._recorder)
        self._frontends.append(frontend)
        if recover:
            frontend.recover(epoch, -1)
        return frontend

    def send(self, count: int, prompt_tokens: int = 20, output_tokens: int = 16) -> list[Request]:
        """Submit some requests."""
        sent = []
        for _ in range(count):
            request = Request(self._request_count, -1, prompt_tokens, output_tokens, output_tokens, self.frontend.now())
            self._request_count += 1
            self.frontend.receive(request)
            sent.append(request)
        self.requests += sent
        return sent

    def turn(self) -> None:
        """One burst, one poll, and what the scheduler has recorded."""
        self.frontend.post()
        self.frontend.poll()
        self.drain()

    @contextmanager
    def paused_scheduler(self) -> Iterator[None]:
        """The scheduler does nothing for a while."""
        pid = self._far.say("scheduler")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def drain(self) -> None:
        """The scheduler's records up to now."""
        assert self.ring is not None
        while (records := self.ring.drain()).size:
            self._records.take(records)

    def finish(self, limit_s: float = 20.0) -> None:
        """Turns until nothing is expected any more; for no longer than `limit_s` may they bring nothing."""
        last, changed_ns = (-1, -1), 0
        while self.frontend.expects:
            now = sum(self.frontend.tokens.values()), self.frontend.slots.free_count
            if now != last:
                last, changed_ns = now, monotonic_ns()
            assert monotonic_ns() < changed_ns + limit_s * 1e9, self.frontend.slot_counts()
            self.turn()

    def crash(self, *, close: bool = True) -> None:
        """The frontend is gone. Without `close` its connection stays, as that of a frontend that is merely held up."""
        assert self.ring is not None
        self._recorder.reader.add(event=Event.CRASHED, t_ns=self.frontend.now())
        self._tail = self.ring.tail
        if close:
            self.ring.close()

    def verdict(self) -> Verdict:
        """Of the whole trace."""
        assert self.ring is not None
        self.drain()
        state = self.ring.state()
        self._recorder.close(
            self.frontend.slot_counts(), complete=True, idle_status_reads=0, dropped_by_gpu=state["trace_dropped"]
        )
        return check_trace(self._trace)

    def all_is_free(self) -> bool:
        """Whether every slot and every KV block is free."""
        assert self.ring is not None
        blocks = self.ring.state()["free_block_count"]
        empty = self.frontend.slot_counts() == {"free": SLOT_COUNT, "in_use": 0, "recovering": 0}
        return empty and blocks == self._far.settings.kv_block_count

    def outcomes(self, requests: list[Request]) -> set[Outcome]:
        """How these ended."""
        return {request.outcome for request in requests}
