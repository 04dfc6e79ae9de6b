"""The frontend in real time: the classes of blink.frontend over an instance's ring, in one loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blink.common.events import Event
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import I64, Outcome, WeightedValues
from blink.common.states import SLOT_COUNT
from blink.frontend.operations import Region, Write
from blink.frontend.prompt_area import PromptArea
from blink.frontend.request_tracker import RequestTracker
from blink.frontend.slot_tracker import SlotTracker
from blink.frontend.submission import Burst, Submission, Submitter
from blink.frontend.token_reader import News, TokenReader
from blink.hw.native.tokens import prompt_of, sampled, seed_of
from blink.hw.ring import Ring, Tokens
from blink.hw.texts import Texts

EVIDENCE = ("wrong_count",)
"""Columns of events.EVIDENCE that this frontend fills."""


@dataclass(slots=True)
class Counters:
    """What the frontend did."""

    status_reads: int = 0
    idle_status_reads: int = 0
    token_reads: int = 0
    writes: int = 0
    bytes_written: int = 0
    submissions: int = 0
    postings: int = 0
    waiting_for_slot_max: int = 0
    slots_in_use_max: int = 0
    wait_slot_ns: int = 0
    wrong_tokens: int = 0  # that differ from what the engine must have sampled: 0, or the ring is broken


class Frontend:
    """Submits, cancels, reads and recycles. Times are nanoseconds since the run's start; `now` reads that clock.

    `ended(request, now_ns)` is called when a request is over. Tokens that arrive are compared with what the stub engine
    samples, so that a token that was read too early or from the wrong place is seen. With `texts` a model samples: its
    prompts are sent, and whoever wants its tokens gets them.
    """

    def __init__(
        self,
        ring: Ring,
        now: Callable[[], int],
        ended: Callable[[Request, int], None],
        recorder: Recorder | None,
        *,
        prompt_area_tokens: int,
        reads_max: int = 512,
        burst_max: int = 64,
        queue_max: int = 0,
        texts: Texts | None = None,
    ) -> None:
        self._ring, self._now, self._ended, self._rec = ring, now, ended, recorder
        self._texts = texts
        self._epoch, self._queue_max = ring.settings.frontend_epoch, queue_max
        self._capacity = ring.settings.output_capacity_tokens
        self.slots = SlotTracker()
        self.prompts = prompts = PromptArea(prompt_area_tokens)
        self._submitter = Submitter(self.slots, prompts, self._capacity, epoch=self._epoch, burst_max=burst_max)
        self._tracker = RequestTracker(self.slots, prompts, epoch=self._epoch)
        self._reader = TokenReader(reads_max)
        self._waiting: dict[int, Request] = {}
        self._seeds: dict[int, int] = {}
        self._slot_seed = np.zeros(SLOT_COUNT, np.uint64)
        self._slot_eos = np.zeros(SLOT_COUNT, np.int64)
        self._last_token_ns = np.zeros(SLOT_COUNT, np.int64)
        self._ranged = np.zeros(SLOT_COUNT, np.int64)  # tokens of a slot that tokens_read rows have named
        self._wrong = np.zeros(SLOT_COUNT, np.int64)  # tokens that were wrong since the last such row
        self._by_slot: dict[int, Request] = {}
        self._by_life: dict[tuple[int, int], Request] = {}
        self._gaps: list[I64] = []
        self._together = 0  # tokens that came with the one before
        self._slotless_since: int | None = None
        self.counters = Counters()

    # --- sending ---

    @property
    def in_ring_count(self) -> int:
        """Requests that hold a slot."""
        return len(self._tracker)

    @property
    def waiting_count(self) -> int:
        """Requests that wait for a slot."""
        return len(self._submitter)

    def request_of(self, slot: int, generation: int) -> Request | None:
        """The request that has, or had, a generation of a slot."""
        return self._by_life.get((slot, generation))

    def receive(self, request: Request) -> str | None:
        """Take a request in; the reason if it is refused. Its prompt is made here, as a tokenizer would."""
        if self._queue_max and len(self._submitter) >= self._queue_max and not self.slots.free_count:
            return f"the queue for slots is full ({self._queue_max} requests)"
        request.accepted_ns = self._now()
        self._submitter.add(self._submission(request))
        request.tokenized_ns = self._now()
        self._waiting[request.request_id] = request
        return None

    def _submission(self, request: Request) -> Submission:
        lengths = (request.request_id, request.prompt_tokens, request.output_tokens_max)
        if self._texts is None:
            prompt = prompt_of(request.request_id, request.prompt_tokens)
            self._seeds[request.request_id] = seed_of(request.request_id, prompt)
            return Submission(*lengths, tokens=prompt.tobytes())
        sampling = self._texts.sampling
        return Submission(
            *lengths, sampling.temperature, sampling.top_p, sampling.top_k, request.request_id & 0xFFFF_FFFF,
            self._texts.prompt(request).astype(np.uint32).tobytes(),
        )  # fmt: skip

    def post(self) -> bool:
        """Post one burst of what waits; False if there was nothing to post or no room for it."""
        now = self._now()
        burst = self._submitter.post()
        counters = self.counters
        self._note_slotless(now)
        counters.waiting_for_slot_max = max(counters.waiting_for_slot_max, len(self._submitter))
        if burst is None:
            return False
        counters.postings += 1
        counters.submissions += len(burst.submitted)
        counters.slots_in_use_max = max(counters.slots_in_use_max, self.slots.in_use_count)
        requests = [self._assign(submission, slot, now) for submission, slot, _ in burst.submitted]
        self._write(burst, requests)
        return True

    def _assign(self, submission: Submission, slot: int, now: int) -> Request:
        request = self._waiting.pop(submission.request_id)
        request.assigned_ns, request.slot, request.generation = now, slot, self.slots.generation(slot)
        self._by_slot[slot] = self._by_life[slot, request.generation] = request
        self._slot_seed[slot] = self._seeds.pop(submission.request_id, 0)
        self._slot_eos[slot] = request.eos_at
        self._ranged[slot] = self._wrong[slot] = 0
        if self._texts is None:
            self._ring.set_eos(slot, request.eos_at)
        self._reader.watch(slot, request.generation)
        return request

    def _write(self, burst: Burst, requests: list[Request]) -> None:
        """Carry out the WRITEs; `published_ns` is just before the control words are stored."""
        for submission, slot, descriptor in burst.submitted:
            self._tracker.submitted(slot, descriptor)
            self._row(
                Event.PROMPT_POSTED, self._by_slot[slot], prompt_offset=descriptor.prompt_offset,
                prompt_tokens=submission.prompt_tokens, output_offset=descriptor.output_offset,
                output_capacity=descriptor.output_capacity, output_tokens_max=descriptor.output_tokens_max,
            )  # fmt: skip
        published = False
        for write in burst.writes:
            if write.region is Region.STATUS and not published:
                published, now = True, self._now()
                for request in requests:
                    request.published_ns = now
                    self._move(Event.SUBMIT, request, now, request.generation)
            self._carry_out(write)

    def _carry_out(self, write: Write) -> None:
        self.counters.writes += 1
        self.counters.bytes_written += write.size_bytes
        self._ring.write(write)

    def _note_slotless(self, now: int) -> None:
        starved = len(self._submitter) > 0 and not self.slots.free_count
        if starved and self._slotless_since is None:
            self._slotless_since = now
        elif not starved and self._slotless_since is not None:
            self.counters.wait_slot_ns += now - self._slotless_since
            self._slotless_since = None

    # --- giving up ---

    def cancel(self, request: Request, outcome: Outcome = Outcome.CANCELLED) -> None:
        """The client of a request that is not complete hangs up now (or the frontend gives it up as failed)."""
        now = self._now()
        request.cancelled_ns, request.outcome = now, outcome
        if request.slot < 0:
            self._submitter.withdraw(request.request_id)
            self._waiting.pop(request.request_id, None)
            self._note_slotless(now)
        else:
            request.output_tokens = self._reader.handed_over(request.slot)
            if request.output_tokens:
                request.last_token_ns = int(self._last_token_ns[request.slot])
            cancelled = self._tracker.cancel(request.request_id, now)
            assert cancelled is not None
            self._row(Event.CANCEL_POSTED, request)
            self._carry_out(cancelled[1])
        self._ended(request, now)

    def unfinished(self) -> list[Request]:
        """Requests in the ring whose clients still wait."""
        return [request for request in self._by_slot.values() if request.outcome is Outcome.UNFINISHED]

    # --- receiving ---

    def poll(self) -> bool:
        """One cycle: READ all states, READ the tokens that are new, recycle what has ended. False if nothing is new."""
        posted_ns = self._now()
        words = self._ring.read_status()
        done_ns = self._now()
        news = self._reader.on_status(words)
        if news is None:
            self.counters.idle_status_reads += 1
            return False
        self.counters.status_reads += 1
        if self._rec:
            self._rec.status_reads([posted_ns], [done_ns])
        self._recycle(self._receive(news))
        return True

    def _receive(self, news: News) -> list[int]:
        """READ the tokens that are new and hand them over; the slots that have ended, to be recycled."""
        count = news.token_count - news.token_from
        tokens = self._ring.read_tokens(news.slots * self._capacity + news.token_from, count)
        read_ns = self._now()
        self.counters.token_reads += int(np.count_nonzero(count))
        if self._texts is None:
            self._check(news, count, tokens)
        else:
            self._give(self._texts, news, count, tokens)
        self._hand_over(news, count, read_ns)
        self._reader.on_tokens(news)
        ended: list[int] = news.slots[news.completed].tolist()
        return ended

    def _check(self, news: News, count: I64, tokens: Tokens) -> None:
        """Every token is the one that the engine samples for this request at this place."""
        slots = np.repeat(news.slots, count)
        first = np.repeat(np.cumsum(count) - count, count)
        index = np.repeat(news.token_from, count) + np.arange(tokens.size) - first
        expected = sampled(self._slot_seed[slots], index, self._slot_eos[slots])
        wrong = slots[tokens != expected]
        if wrong.size:
            self.counters.wrong_tokens += wrong.size
            np.add.at(self._wrong, wrong, 1)

    def _give(self, texts: Texts, news: News, count: I64, tokens: Tokens) -> None:
        ends = np.cumsum(count).tolist()
        for slot, first, end, many in zip(
            news.slots.tolist(), news.token_from.tolist(), ends, count.tolist(), strict=True
        ):
            if many:
                texts.taken(self._by_slot[slot], first, tokens[end - many : end])

    def _hand_over(self, news: News, count: I64, read_ns: int) -> None:
        slots, urgent = news.slots, news.urgent_count
        requests = [self._by_slot[slot] for slot in slots.tolist()]
        listening = np.array([request.cancelled_ns is None for request in requests], np.bool_)
        later = listening & (count > 0)
        later[:urgent] = False
        self._gaps.append(read_ns - self._last_token_ns[slots[later]])
        wanted = listening & (count > 0)
        self._together += int((count[wanted] - 1).sum())
        self._last_token_ns[slots[wanted]] = read_ns
        for index in np.flatnonzero(wanted[:urgent]).tolist():
            request = requests[index]
            request.read_ns = request.written_ns = request.first_token_ns = read_ns
        each = self._rec is not None and self._rec.reads_each
        for index, request in enumerate(requests):
            if each or index < urgent or news.completed[index]:
                self._tokens_row(request, int(news.token_count[index]), read_ns)
            if news.completed[index]:
                self._end(request, int(news.status[index]), int(news.token_count[index]), read_ns)

    def _end(self, request: Request, status: int, token_count: int, now_ns: int) -> None:
        request.status = status
        if request.cancelled_ns is not None:
            return
        request.answered(status, token_count, int(self._last_token_ns[request.slot]))
        self._ended(request, now_ns)

    def _recycle(self, slots: list[int]) -> None:
        """Completed slots whose tokens are all here become free: every READ of them has completed by now."""
        now = self._now()
        for slot in slots:
            request = self._by_slot.pop(slot)
            self._reader.forget(slot)
            write = self._tracker.recycle(slot)
            self._move(Event.RECYCLE, request, now, self.slots.generation(slot))
            self._carry_out(write)

    def gaps(self) -> WeightedValues:
        """The distribution of ITL."""
        values, weights = np.unique(np.concatenate([*self._gaps, np.zeros(0, np.int64)]), return_counts=True)
        if self._together:
            if values.size and values[0] == 0:
                weights[0] += self._together
            else:
                values, weights = np.insert(values, 0, 0), np.insert(weights, 0, self._together)
        return WeightedValues(values.astype(np.int64), weights.astype(np.int64))

    # --- rows of the trace ---

    def _row(self, event: Event, request: Request, **more: int) -> None:
        if self._rec:
            self._rec.reader.add(
                event=event, t_ns=self._now(), slot=request.slot, generation=request.generation,
                epoch=self._epoch % 256, request_id=request.request_id, **more,
            )  # fmt: skip

    def _move(self, event: Event, request: Request, now: int, generation: int) -> None:
        if self._rec:
            self._rec.move(
                self._rec.reader, event, now, request.slot, generation, self._epoch % 256, request.request_id, 0
            )

    def _tokens_row(self, request: Request, token_count: int, read_ns: int) -> None:
        start = int(self._ranged[request.slot])
        if self._rec and token_count > start:
            self._ranged[request.slot] = token_count
            more = {"wrong_count": int(self._wrong[request.slot])} if "wrong_count" in self._rec.evidence else {}
            self._wrong[request.slot] = 0
            self._rec.reader.add(
                event=Event.TOKENS_READ, t_ns=read_ns, slot=request.slot, generation=request.generation,
                epoch=self._epoch % 256, request_id=request.request_id, token_from=start, token_count=token_count,
                **more,
            )  # fmt: skip


def nap(next_ns: int | None, now_ns: int, quiet_cycles: int, in_ring_count: int) -> None:
    """Leave the core to others while nothing can happen here: until the next request is due, or for a moment."""
    left_s = 0.005 if next_ns is None else max(0, next_ns - now_ns) / 1e9
    if not in_ring_count:
        time.sleep(min(left_s, 0.005))
    elif quiet_cycles > 8:
        time.sleep(min(left_s, 0.00005))
