"""From a store in the ring to bytes at the client: polls, token READs, detokenizers, delivery.

It drives the frontend's own TokenReader. Stepwise, every poll is an event that compares real bytes. Otherwise the polls
that can see nothing new are skipped by computation, and polls that each see one decode step of an unchanged batch are
computed in closed form; every other poll (first tokens, aborts, several kinds of news at once) reads real bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blink.common.events import Event
from blink.common.recorder import Recorder
from blink.common.request import UNKNOWN, Request
from blink.common.results import I64
from blink.common.ring import Ring
from blink.common.states import SLOT_COUNT, SlotStatus
from blink.frontend.token_reader import News, PollSchedule, TokenReader
from blink.sim.batch import Batch
from blink.sim.clock import LAST, Clock, at
from blink.sim.gaps import InterTokenGaps
from blink.sim.gpu import Gpu


@dataclass(frozen=True, slots=True)
class ReadCosts:
    """Nanoseconds of one polling cycle."""

    request_ns: int  # posted -> the status array is captured at the gpu
    status_done_ns: int  # captured -> the READ has completed
    status_ns: int  # captured -> all slots were compared
    slot_ns: int  # to handle one slot with news and post its token READ
    tokens_ns: int  # the last token READ posted -> its completion was handled


@dataclass(frozen=True, slots=True)
class TextCosts:
    """Nanoseconds from tokens to text at the client. `workers` detokenizers share the slots of one cycle in order."""

    workers: int
    chunk_ns: int  # one chunk of text written, whatever is in it
    token_ns: int
    delivery_ns: int  # written -> at the client


@dataclass(slots=True)
class _Stored:
    """Stores that no poll has seen: steps of a batch, or (batch None) anything else."""

    batch: Batch | None
    times_ns: list[int]
    ended: dict[int, SlotStatus]
    position: int = 0


class TokenPath:
    """The token reader's loop and what follows it. The gpu tells it of stores (it is the gpu's listener)."""

    def __init__(
        self,
        env: Clock,
        ring: Ring,
        gpu: Gpu,
        reader: TokenReader,
        schedule: PollSchedule,
        read: ReadCosts,
        text: TextCosts,
        requests_by_slot: dict[int, Request],
        recorder: Recorder | None,
        *,
        stepwise: bool,
    ) -> None:
        self._env, self._ring, self._gpu, self._reader, self._schedule = env, ring, gpu, reader, schedule
        self._read, self._text, self._by_slot, self._rec = read, text, requests_by_slot, recorder
        self._stepwise = stepwise
        self.recycle: Callable[[list[int]], None] = lambda slots: None
        self.completed: Callable[[Request], None] = lambda request: None
        self.gaps = InterTokenGaps()
        self.status_reads = 0
        self.idle_status_reads = 0
        self.cancelled_count = 0  # requests in the ring that their client has given up
        self._active = False
        self._end_ns = 0  # of the last cycle with news, or the start of polling
        self._idle_cycles = 0  # stepwise only
        self._stored: deque[_Stored] = deque()
        self._armed_ns = UNKNOWN
        self._capturing = False
        self._text_free_ns = 0
        self._last_written = np.zeros(SLOT_COUNT, np.int64)
        self._ranged = np.zeros(SLOT_COUNT, np.int64)  # tokens of a slot that tokens_read rows have named
        self._batch: Batch | None = None  # of consecutive polls computed in closed form
        self._batch_tokens = 0  # handed over to its slots since, cursors not yet moved
        self._batch_rows = 0
        self._batch_written_ns = 0  # detokenizing of its last poll began
        self._batch_offsets: I64 = np.empty(0, np.int64)
        self._rounds: I64 = np.arange(SLOT_COUNT) // text.workers + 1  # of the detokenizers, by place in the order
        self._posted: list[int] = []  # rows of status READs not yet recorded
        self._done: list[int] = []

    # --- what others tell ---

    def watch(self, slot: int, generation: int) -> None:
        """A prompt was posted into `slot`: poll, if it was the first."""
        self._reader.watch(slot, generation)
        self._ranged[slot] = 0
        if not self._active:
            self._active = True
            self._end_ns = self._env.now
            self._idle_cycles = 0
            if self._stepwise:
                self._arm_step()

    def needs_single_steps(self) -> bool:
        """Whether polls must see the ring after each step: a given-up request lives, or a cycle's work is bounded."""
        return self._needs_bytes(self._gpu.running_count)

    def _needs_bytes(self, rows: int) -> bool:
        return self.cancelled_count > 0 or not self._reader.fits_in_one_cycle(rows)

    def stored_steps(self, batch: Batch, stored_ns: list[int], ended: dict[int, SlotStatus]) -> None:
        """Decode steps of a batch were stored at these times, the last of them ending some of its slots."""
        if not self._stepwise:
            self._stored.append(_Stored(batch, stored_ns, ended))
            self.advance()

    def stored_other(self, time_ns: int) -> None:
        """Something else was stored now: first tokens, rejects, aborts."""
        if not self._stepwise:
            self._stored.append(_Stored(None, [time_ns], {}))
            self.advance()

    @property
    def rows_from_ns(self) -> int:
        """No trace row before this time is still to come."""
        known = self._gpu.rows_from_ns
        if self._stepwise:
            return min(known, self._env.now) - self._read.request_ns
        if self._stored:
            known = min(known, self._stored[0].times_ns[self._stored[0].position])
        return known - self._read.request_ns

    def handed_over(self, slot: int) -> int:
        """Tokens of the slot that polls captured before now have handed over."""
        if not self._stepwise:
            self._gpu.settle()
            self.advance()
            self._leave_batch()
        return self._reader.handed_over(slot)

    def last_token_ns(self, slot: int) -> int:
        """When the client had the slot's last token that was handed over (call `handed_over` before)."""
        return int(self._last_written[slot]) + self._text.delivery_ns

    # --- which poll sees what ---

    def _capture_of(self, stored_ns: int) -> tuple[int, int]:
        """When the first poll captures the ring at or after `stored_ns`, and how many idle polls precede it."""
        request_ns = self._read.request_ns
        offset, idle = self._schedule.first_at_or_after(stored_ns - request_ns - self._end_ns)
        return self._end_ns + offset + request_ns, idle

    def advance(self) -> None:
        """Compute every poll that lies in the past; the next one becomes an event."""
        if self._capturing:
            return
        while self._stored:
            capture_ns = self._poll_past(self._stored[0])
            if capture_ns is not None:
                self._arm(capture_ns)
                break
        self._record_status_reads()

    def _poll_past(self, head: _Stored) -> int | None:
        """Polls of the past that see steps of `head`; when the next poll captures, None once all steps were seen."""
        now, times = self._env.now, head.times_ns
        while True:
            capture_ns, idle = self._capture_of(times[head.position])
            if capture_ns >= now:
                return capture_ns
            assert head.batch is not None
            if head.batch is self._batch and not (self._rec and self._rec.reads_each):
                self._poll_single_steps(head, now)
            else:
                self._poll_steps(head.batch, self._seen_steps(head, capture_ns), capture_ns, idle)
            if not self._stored or self._stored[0] is not head:
                return None

    def _poll_single_steps(self, head: _Stored, before_ns: int) -> None:
        """`_poll_steps` for a run of polls before a time that see one step each; at least the first is before it."""
        read, text, times, rows = self._read, self._text, head.times_ns, self._batch_rows
        end_ns, free_ns, written_ns = self._end_ns, self._text_free_ns, self._batch_written_ns
        after_ns = read.status_ns + rows * read.slot_ns + read.tokens_ns
        busy_ns = -(-rows // text.workers) * (text.chunk_ns + text.token_ns)
        request_ns, first_at_or_after = read.request_ns, self._schedule.first_at_or_after
        position, last = head.position, len(times)
        captures: list[int] = []
        while position < last:
            offset, idle = first_at_or_after(times[position] - request_ns - end_ns)
            capture_ns = end_ns + offset + request_ns
            following = position + 1
            if capture_ns >= before_ns:
                break
            if following < last and times[following] <= capture_ns:
                if captures:
                    break
                assert self._batch is not None
                self._poll_steps(self._batch, self._seen_steps(head, capture_ns), capture_ns, idle)
                return
            captures.append(capture_ns)
            self.idle_status_reads += idle
            end_ns = capture_ns + after_ns
            start_ns = end_ns if end_ns > free_ns else free_ns
            free_ns = start_ns + busy_ns
            self.gaps.add(start_ns - written_ns, rows)
            written_ns = start_ns
            position = following
        self._end_ns, self._text_free_ns, self._batch_written_ns = end_ns, free_ns, written_ns
        self._batch_tokens += position - head.position
        self.status_reads += len(captures)
        if self._rec:
            self._posted += [capture - request_ns for capture in captures]
            self._done += [capture + read.status_done_ns for capture in captures]
        head.position = position
        if position == last:
            self._stored.popleft()

    def _seen_steps(self, head: _Stored, capture_ns: int) -> int:
        """Move past the stores of `head` that a poll captures; how many."""
        times, start = head.times_ns, head.position
        end = start + 1
        while end < len(times) and times[end] <= capture_ns:
            end += 1
        head.position = end
        if end == len(times):
            self._stored.popleft()
        return end - start

    def _arm(self, capture_ns: int) -> None:
        if self._armed_ns != capture_ns:
            self._armed_ns = capture_ns
            at(self._env, capture_ns, lambda: self._capture(capture_ns), LAST)

    def _capture(self, capture_ns: int) -> None:
        """A poll that sees news captures the status array now."""
        if capture_ns != self._armed_ns:
            return
        self._armed_ns = UNKNOWN
        self._capturing = True
        self._gpu.settle()
        self._capturing = False
        head = self._stored[0]
        capture, idle = self._capture_of(head.times_ns[head.position])
        assert capture == capture_ns
        seen = [entry for entry in self._stored if entry.times_ns[entry.position] <= capture_ns]
        if len(seen) == 1 and head.batch is not None and not self._needs_bytes(len(head.batch.lives)):
            steps = self._seen_steps(head, capture_ns)
            whole = head.position == len(head.times_ns)
            self._poll_steps(head.batch, steps, capture_ns, idle, head.ended if whole else {})
        else:
            for entry in seen:
                self._seen_steps(entry, capture_ns)
            self._leave_batch()
            self.idle_status_reads += idle
            if not self._poll_bytes(capture_ns):
                raise RuntimeError("a poll that should have seen a store saw nothing")
        self.advance()

    # --- stepwise ---

    def _arm_step(self) -> None:
        post_ns = self._end_ns + self._schedule.gap_ns(self._idle_cycles)
        at(self._env, post_ns + self._read.request_ns, self._capture_step, LAST)

    def _capture_step(self) -> None:
        if not self._active:
            return
        if self._poll_bytes(self._env.now):
            self._idle_cycles = 0
            at(self._env, self._end_ns, self._after_step)
        else:
            self.idle_status_reads += 1
            self._idle_cycles += 1
            self._end_ns = self._env.now + self._read.status_ns
            self._arm_step()
        self._record_status_reads()

    def _after_step(self) -> None:
        if self._active:
            self._arm_step()

    # --- one poll ---

    def _poll_bytes(self, capture_ns: int) -> bool:
        """A poll compares the ring's bytes as they are now; False if nothing is new."""
        news = self._reader.on_status(self._ring.ctl)
        if news is None:
            return False
        read = self._read
        compared_ns = capture_ns + read.status_ns
        slots, split = news.slots.tolist(), news.urgent_count
        urgent_ns = compared_ns + split * read.slot_ns + read.tokens_ns
        all_ns = compared_ns + len(slots) * read.slot_ns + read.tokens_ns
        self._note_status_read(capture_ns, all_ns)
        self._record_status_reads()
        counts = (news.token_count - news.token_from).tolist()
        wanted = [n > 0 and self._listens(slot, capture_ns) for n, slot in zip(counts, slots, strict=True)]
        written = self._write(counts[:split], wanted[:split], urgent_ns)
        written += self._write(counts[split:], wanted[split:], all_ns)
        for index, slot in enumerate(slots):
            read_ns = urgent_ns if index < split else all_ns
            if wanted[index]:
                self._hand_over(slot, counts[index], read_ns, written[index], first=index < split)
        self._end_all(news, slots, split, urgent_ns, all_ns)
        self._reader.on_tokens(news)
        if self._reader.deferred_count and not self._stepwise:
            self._stored.appendleft(_Stored(None, [capture_ns], {}))
        return True

    def _write(self, token_counts: list[int], wanted: list[bool], read_ns: int) -> list[int]:
        """When the text of each slot was written; detokenizers take the slots of one cycle in turn, in order."""
        text, written = self._text, [read_ns] * len(token_counts)
        free = [max(read_ns, self._text_free_ns)] * text.workers
        turn = 0
        for index, count in enumerate(token_counts):
            if wanted[index]:
                written[index] = free[turn] = free[turn] + text.chunk_ns + count * text.token_ns
                turn = turn + 1 if turn + 1 < text.workers else 0
                self._text_free_ns = max(self._text_free_ns, written[index])
        return written

    def _listens(self, slot: int, capture_ns: int) -> bool:
        """Whether the slot's client had not given up when the poll captured the ring."""
        cancelled_ns = self._by_slot[slot].cancelled_ns if self.cancelled_count else None
        return cancelled_ns is None or cancelled_ns > capture_ns

    def _hand_over(self, slot: int, count: int, read_ns: int, written_ns: int, *, first: bool) -> None:
        """`count` tokens of a slot go to its client in one chunk."""
        if first:
            request = self._by_slot[slot]
            request.read_ns, request.written_ns = read_ns, written_ns
            request.first_token_ns = written_ns + self._text.delivery_ns
        else:
            self.gaps.add(written_ns - int(self._last_written[slot]), 1)
        if count > 1:
            self.gaps.add(0, count - 1)
        self._last_written[slot] = written_ns

    def _end_all(self, news: News, slots: list[int], split: int, urgent_ns: int, all_ns: int) -> None:
        """Rows of the trace, and the requests that the news says are complete."""
        finished = []
        token_count, completed = news.token_count.tolist(), news.completed.tolist()
        for index, slot in enumerate(slots):
            if completed[index]:
                finished.append(slot)
                self._end(self._by_slot[slot], int(news.status[index]), token_count[index])
            if self._rec and (self._rec.reads_each or index < split or completed[index]):
                self._record_tokens(slot, token_count[index], urgent_ns if index < split else all_ns)
        if finished:
            self._finish(finished, all_ns)

    def _end(self, request: Request, status: int, token_count: int) -> None:
        """The frontend knows that the request is complete: its row is complete, too."""
        request.status = status
        if request.cancelled_ns is not None:
            self.cancelled_count -= 1
            return
        request.answered(status, token_count, self.last_token_ns(request.slot))

    def _finish(self, slots: list[int], end_ns: int) -> None:
        """Recycle at the end of the cycle: every READ of these slots has completed by then."""
        requests = [self._by_slot[slot] for slot in slots]

        def recycle() -> None:
            for slot in slots:
                self._reader.forget(slot)
            self.recycle(slots)
            if not self._reader.watched_count:
                self._active = False

        at(self._env, end_ns, recycle)
        for request in requests:
            self.completed(request)

    # --- many polls, each of which sees steps of one batch ---

    def _poll_steps(
        self, batch: Batch, steps: int, capture_ns: int, idle: int, ended: dict[int, SlotStatus] | None = None
    ) -> None:
        """The same as `_poll_bytes` where every slot of the batch has `steps` new tokens and nothing else is new."""
        read, text = self._read, self._text
        rows = len(batch.lives)
        read_ns = capture_ns + read.status_ns + rows * read.slot_ns + read.tokens_ns
        self._note_status_read(capture_ns, read_ns)
        self.idle_status_reads += idle
        start_ns = read_ns if read_ns > self._text_free_ns else self._text_free_ns
        cost_ns = text.chunk_ns + steps * text.token_ns
        self._text_free_ns = start_ns + -(-rows // text.workers) * cost_ns
        if batch is self._batch and steps == 1:
            self.gaps.add(start_ns - self._batch_written_ns, rows)
        else:
            self._enter_batch(batch, start_ns, cost_ns)
            if steps > 1:
                self.gaps.add(0, (steps - 1) * rows)
        self._batch_tokens += steps
        self._batch_written_ns = start_ns
        if self._rec and self._rec.reads_each:
            self._record_each(batch, steps, read_ns)
        if ended:
            self._end_slots(batch, ended, read_ns)

    def _enter_batch(self, batch: Batch, start_ns: int, cost_ns: int) -> None:
        self._leave_batch()
        self._batch = batch
        self._batch_rows = len(batch.lives)
        self._batch_offsets = self._rounds[: len(batch.lives)] * cost_ns
        self.gaps.add_all(start_ns + self._batch_offsets - self._last_written[batch.slots])

    def _leave_batch(self) -> None:
        """Bring cursors and last times of the batch's slots up to date."""
        if self._batch is not None:
            slots = self._batch.slots
            self._reader.on_steps(slots, self._batch_tokens)
            self._last_written[slots] = self._batch_written_ns + self._batch_offsets
            self._batch, self._batch_tokens = None, 0

    def _end_slots(self, batch: Batch, ended: dict[int, SlotStatus], read_ns: int) -> None:
        self._leave_batch()
        self._record_status_reads()
        slots = []
        for position, status in ended.items():
            live = batch.lives[position]
            slots.append(live.slot)
            self._end(live.request, status, live.end_count)
            if self._rec and not self._rec.reads_each:
                self._record_tokens(live.slot, live.end_count, read_ns)
        self._finish(slots, read_ns)

    # --- rows ---

    def _note_status_read(self, capture_ns: int, end_ns: int) -> None:
        self.status_reads += 1
        self._end_ns = end_ns
        if self._rec:
            self._posted.append(capture_ns - self._read.request_ns)
            self._done.append(capture_ns + self._read.status_done_ns)

    def _record_status_reads(self) -> None:
        if self._rec and self._posted:
            self._rec.status_reads(self._posted, self._done)
            self._posted, self._done = [], []

    def _record_tokens(self, slot: int, token_count: int, read_ns: int) -> None:
        """One row for the tokens up to `token_count` that no row has named yet."""
        assert self._rec is not None
        start = int(self._ranged[slot])
        if token_count > start:
            self._ranged[slot] = token_count
            request = self._by_slot[slot]
            self._rec.reader.add(
                event=Event.TOKENS_READ, t_ns=read_ns, slot=slot, generation=request.generation, epoch=0,
                request_id=request.request_id, token_from=start, token_count=token_count,
            )  # fmt: skip

    def _record_each(self, batch: Batch, steps: int, read_ns: int) -> None:
        self._record_status_reads()
        for live in batch.lives:
            self._record_tokens(live.slot, int(self._ranged[live.slot]) + steps, read_ns)
