"""The frontend's machine: cores, HTTP and tokenizer work, and the classes of blink.frontend under virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Protocol

from blink.common.events import Event
from blink.common.layout import EPOCH_MODULUS
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import Outcome
from blink.common.ring import Ring
from blink.common.states import SlotState
from blink.frontend.operations import Region, Write
from blink.frontend.request_tracker import RequestTracker
from blink.frontend.slot_tracker import SlotTracker
from blink.frontend.submission import Submission, Submitter
from blink.perf.dpu import DpuProfile
from blink.sim.clock import Clock, at
from blink.sim.connection import Connection
from blink.sim.gpu import Gpu
from blink.sim.topology import Path


class Reading(Protocol):
    """What reads the tokens, as the rest of the frontend sees it."""

    recycle: Callable[[list[int]], None]
    cancelled_count: int

    def watch(self, slot: int, generation: int) -> None: ...

    def handed_over(self, slot: int) -> int: ...

    def last_token_ns(self, slot: int) -> int: ...


class Cores:
    """Equal cores with one queue: work that is handed over in order of time starts on the first free core."""

    def __init__(self, count: int) -> None:
        self._free_ns = [0] * count
        heapify(self._free_ns)
        self.busy_ns = 0

    def reserve(self, now_ns: int, duration_ns: int) -> int:
        """When work that is ready at `now_ns` starts."""
        start = max(now_ns, self._free_ns[0])
        heapreplace(self._free_ns, start + duration_ns)
        self.busy_ns += duration_ns
        return start


@dataclass(slots=True)
class Counters:
    """What the frontend did."""

    writes: int = 0
    submissions: int = 0
    postings: int = 0  # bursts, each rung in with one doorbell
    slots_in_use_max: int = 0
    wait_slot_ns: int = 0
    waiting_max: int = 0


class Dpu:
    """Takes requests from clients, puts them into the ring, cancels and recycles; reading is TokenPath's."""

    def __init__(
        self,
        env: Clock,
        ring: Ring,
        gpu: Gpu,
        path: Reading,
        profile: DpuProfile,
        cores: Cores,
        to_dpu: Path,
        to_gpu: Path,
        slots: SlotTracker,
        submitter: Submitter,
        tracker: RequestTracker,
        by_slot: dict[int, Request],
        recorder: Recorder | None,
        *,
        queue_max: int,
        epoch: int = 0,
        connection: Connection | None = None,
    ) -> None:
        self._env, self._ring, self._gpu, self._path, self._profile = env, ring, gpu, path, profile
        self._cores, self._to_dpu, self._to_gpu = cores, to_dpu, to_gpu
        self._slots, self._submitter, self._tracker, self._by_slot = slots, submitter, tracker, by_slot
        self._rec, self._queue_max = recorder, queue_max
        self._epoch = epoch % EPOCH_MODULUS
        self._connection = connection or Connection(env)
        self._requests: dict[int, Request] = {}  # waiting for a slot
        self._posting_until_ns = 0
        self._kick_armed = False
        self._slotless_since: int | None = None
        self.counters = Counters()
        self.refuse: Callable[[Request, str], None] = lambda request, reason: None
        path.recycle = self.recycle

    def receive(self, request: Request, size_bytes: int) -> None:
        """A client sends a request now."""
        self.learn_of(request, size_bytes, self._env.now)

    def learn_of(self, request: Request, size_bytes: int, sent_ns: int) -> None:
        """A client sent a request at `sent_ns`, now or before: who is bound to real time learns of it late."""
        arrived = self._to_dpu.send(sent_ns, size_bytes)
        tokenize_ns = self._profile.tokenize_ns(request.prompt_tokens)
        start = self._cores.reserve(arrived, self._profile.http_parse_ns + tokenize_ns)
        request.accepted_ns = start + self._profile.http_parse_ns
        request.tokenized_ns = max(self._env.now, request.accepted_ns + tokenize_ns)
        at(self._env, request.tokenized_ns, lambda: self._ready(request))

    def _ready(self, request: Request) -> None:
        if request.cancelled_ns is not None:
            return
        if self._queue_max and len(self._submitter) >= self._queue_max and not self._slots.free_count:
            self.refuse(request, f"the queue for slots is full ({self._queue_max} requests)")
            return
        self._requests[request.request_id] = request
        self._submitter.add(Submission(request.request_id, request.prompt_tokens, request.output_tokens_max))
        self.counters.waiting_max = max(self.counters.waiting_max, len(self._submitter))
        self._kick()

    def _kick(self) -> None:
        """Post what waits, unless a posting is going on: what comes meanwhile makes the next burst."""
        now = self._env.now
        if now < self._posting_until_ns:
            if not self._kick_armed:
                self._kick_armed = True
                at(self._env, self._posting_until_ns, self._next_burst)
            return
        burst = self._submitter.post()
        self._note_slotless(now)
        if burst is None:
            return
        self.counters.postings += 1
        self.counters.submissions += len(burst.submitted)
        self.counters.slots_in_use_max = max(self.counters.slots_in_use_max, self._slots.in_use_count)
        for submission, slot, descriptor in burst.submitted:
            request = self._requests.pop(submission.request_id)
            request.assigned_ns, request.slot, request.generation = now, slot, descriptor.generation
            self._by_slot[slot] = request
            self._tracker.submitted(slot, descriptor)
            self._path.watch(slot, descriptor.generation)
            if self._rec:
                self._rec.submitter.add(
                    event=Event.PROMPT_POSTED, t_ns=now, slot=slot, generation=descriptor.generation,
                    epoch=self._epoch, request_id=descriptor.request_id, prompt_offset=descriptor.prompt_offset,
                    prompt_tokens=descriptor.prompt_tokens, output_offset=descriptor.output_offset,
                    output_capacity=descriptor.output_capacity, output_tokens_max=descriptor.output_tokens_max,
                )  # fmt: skip
        for submission, slot, descriptor in burst.submitted if self._rec else ():
            assert self._rec is not None
            self._rec.move(
                self._rec.submitter, Event.SUBMIT, now, slot, descriptor.generation, self._epoch,
                submission.request_id, 0,
            )  # fmt: skip
        self.post(burst.writes)
        if len(self._submitter):
            self._kick()

    def resume(self) -> None:
        """Slots have become free by recovery: post what waits for them."""
        if len(self._submitter):
            self._kick()

    def _next_burst(self) -> None:
        self._kick_armed = False
        self._kick()

    def _note_slotless(self, now: int) -> None:
        starved = len(self._submitter) > 0 and not self._slots.free_count
        if starved and self._slotless_since is None:
            self._slotless_since = now
        elif not starved and self._slotless_since is not None:
            self.counters.wait_slot_ns += now - self._slotless_since
            self._slotless_since = None

    def post(self, writes: list[Write]) -> None:
        """Post WRITEs in order on the one connection; those of status words take effect as they arrive.

        A reliable connection delivers in order, so whatever was posted before a control word has arrived with it.
        """
        posted_ns = max(self._env.now, self._posting_until_ns)
        before: list[Write] = []
        for write in writes:
            posted_ns += self._profile.write_ns
            arrived_ns = self._to_gpu.send(posted_ns, write.size_bytes)
            before.append(self._connection.carry(write))
            if write.region is Region.STATUS:
                self._arrive(before, posted_ns, arrived_ns)
                before = []
        if before:
            self._arrive(before, posted_ns, arrived_ns)
        self._posting_until_ns = posted_ns
        self.counters.writes += len(writes)

    def _arrive(self, writes: list[Write], posted_ns: int, arrived_ns: int) -> None:
        def land() -> None:
            for write in writes:
                self._store(write)

        self._connection.deliver(posted_ns, arrived_ns, land)

    def _store(self, write: Write) -> None:
        """The bytes of one WRITE land in GPU memory now."""
        if write.data is None:
            return
        if write.region is Region.DESCRIPTOR:
            self._ring.write_descriptors(write.offset_bytes, write.data)
            if write.size_bytes == 8:
                self._gpu.notify(write.offset_bytes // 64, cancel=True)
        elif write.region is Region.HEADER:
            self._ring.write_header(write.offset_bytes, write.data)
            self._gpu.notify_epoch()
        elif write.region is Region.STATUS:
            for slot in self._ring.write_status(write.offset_bytes, write.data):
                request = self._by_slot.get(slot)
                pending = self._ring.state(slot) == SlotState.PREFILL_PENDING
                if pending and request is not None and request.published_ns < 0:
                    request.published_ns = self._env.now
                    self._gpu.notify(slot, cancel=False)

    def cancel(self, request: Request) -> None:
        """The client of a request that is not complete hangs up now."""
        now = self._env.now
        if request.outcome is not Outcome.UNFINISHED:
            return
        request.cancelled_ns, request.outcome = now, Outcome.CANCELLED
        if request.slot < 0:
            self._submitter.withdraw(request.request_id)
            self._requests.pop(request.request_id, None)
            self._note_slotless(now)
            return
        request.output_tokens = self._path.handed_over(request.slot)
        if request.output_tokens:
            request.last_token_ns = self._path.last_token_ns(request.slot)
        self._path.cancelled_count += 1
        self._gpu.cut_now()
        cancelled = self._tracker.cancel(request.request_id, now)
        assert cancelled is not None
        entry, write = cancelled
        if self._rec:
            self._rec.submitter.add(
                event=Event.CANCEL_POSTED, t_ns=now, slot=entry.slot, generation=entry.generation, epoch=self._epoch,
                request_id=entry.request_id,
            )  # fmt: skip
        self.post([write])

    def recycle(self, slots: list[int]) -> None:
        """Completed slots whose tokens are all here become free, and the next burst may use them."""
        writes = []
        for slot in slots:
            entry = self._tracker.by_slot[slot]
            writes.append(self._tracker.recycle(slot))
            del self._by_slot[slot]
            if self._rec:
                self._rec.move(
                    self._rec.reader, Event.RECYCLE, self._env.now, slot, self._slots.generation(slot), self._epoch,
                    entry.request_id, 0,
                )  # fmt: skip
        self.post(writes)
        if len(self._submitter):
            self._kick()
