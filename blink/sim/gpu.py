"""The gpu: the persistent scheduler's loop and the model as an opaque graph with a duration.

One step: launch from the device, the graph runs while the scheduler scans, its end is seen, tokens are stored, and at
that boundary the policy decides. A prompt or a cancel takes part in a decision if it was visible one scan before it.
Decode steps of an unchanged batch are planned ahead as a segment and stored together; a WRITE that arrives meanwhile
cuts the segment at the boundary that sees it. With `stepwise` every segment has one step: the reference.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

import simpy

from blink.common import policy
from blink.common.events import Event
from blink.common.layout import (
    EPOCH_MASK,
    EPOCH_SHIFT,
    GENERATION_MASK,
    GENERATION_SHIFT,
)
from blink.common.policy import Action, Blocked, Decision, GraphShape, GraphTable, Pending
from blink.common.recorder import Recorder
from blink.common.request import Request, tenant_of
from blink.common.results import SchedulerCounters
from blink.common.ring import Ring
from blink.common.states import SlotState, SlotStatus
from blink.perf.observed import RangeTracker
from blink.perf.throttle import Throttle
from blink.sim.batch import Batch, Live, Segment
from blink.sim.clock import Alarm, Clock
from blink.sim.gpu_rows import GpuRows
from blink.sim.occupancy import Occupancy
from blink.sim.overheads import StepOverheads
from blink.sim.ports import Listener, Observer, StepTimes
from blink.sim.reuse import Reuse

_NEVER_NS = 2**63 - 1
_EVERY_SLOT = -1  # in place of a slot: the frontend's epoch has changed
_NOTHING_TO_DO = Decision(Action.IDLE)
PLAN_STEPS_MAX = 120
"""Decode steps of one plan at most; no more than a window allows on the device."""
Process = Generator[simpy.Event, object, None]


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What-if switches of the scheduler.

    `chunk_tokens`: of a prompt in one graph, 0 for all. `reuse`: keys and values that are there already. `context_ns`:
    what a prefill takes for the (new tokens, context) of a prompt beyond its new tokens.
    """

    chunk_tokens: int
    reuse: Reuse | None
    context_ns: Callable[[int, int], int]


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """What bounds the scheduler: limits of the policy, graph tables, KV blocks, time limit (0: none).

    `graph_timeout_ns`: a graph that runs longer is given up, and nothing is launched any more (0: it may run for ever).
    `throttle`: the GPU's clock, None if it does not fall. `options`: what-if switches.
    """

    limits: policy.Limits
    prefill_table: GraphTable
    decode_table: GraphTable
    kv_block_count: int
    time_limit_ns: int
    stepwise: bool
    graph_timeout_ns: int = 0
    throttle: Throttle | None = None
    options: GpuOptions | None = None


class Gpu:
    """The scheduler process over a ring. `requests` finds the request of an id (for its EOS and its row)."""

    def __init__(
        self,
        env: Clock,
        ring: Ring,
        overheads: StepOverheads,
        times: StepTimes,
        settings: GpuSettings,
        requests: dict[int, Request],
        recorder: Recorder | None,
        phase_ns: int,
    ) -> None:
        self._env, self._ring, self._overheads, self._times = env, ring, overheads, times
        self._settings, self._limits, self._requests = settings, settings.limits, requests
        self._throttle = settings.throttle
        self._rows = GpuRows(env, ring, recorder) if recorder else None
        self.listener: Listener | None = None
        self.observer: Observer | None = None
        self.counters = SchedulerCounters(
            kv_blocks_total=settings.kv_block_count, batch_limit=settings.limits.batch_max
        )
        self.ranges = RangeTracker()
        self._occupancy = Occupancy(self.counters)
        self.failed = False  # a graph hangs: nothing is ever launched again
        self._crashed_ns: int | None = None
        self._phase_ns = phase_ns
        self._alarm = Alarm(env)
        self._idle = False
        self._unseen: deque[tuple[int, int, bool]] = deque()  # visible_ns, slot, is it a cancel
        self._waiting: list[Pending] = []
        self._running: dict[int, Live] = {}
        self._batch = Batch.of({}, recorded=False)
        self._free_blocks = list(range(settings.kv_block_count - 1, -1, -1))
        self._used_blocks = 0
        self._step = 0  # every launched graph is a step
        self._decode_step = 0
        self._launches = 0  # of this instance's window
        self._kv_tokens = 0
        self._segment: Segment | None = None
        self._graph_since: int | None = None  # a prefill runs since then
        self._partial: list[Live] = []  # claimed, part of the prompt is still to be computed
        self._prefilled_tokens = 0  # in a row, since the last decode

    # --- what the ring tells ---

    def notify(self, slot: int, *, cancel: bool) -> None:
        """A control word or a cancel word of `slot` has just become visible in the ring."""
        self._see(slot, cancel)

    def notify_epoch(self) -> None:
        """The frontend's epoch in the ring header has just changed."""
        self._see(_EVERY_SLOT, True)

    def _see(self, slot: int, cancel: bool) -> None:
        now = self._env.now
        self._unseen.append((now, slot, cancel))
        if self._idle:
            self._idle = False
            self._alarm.ring(self._scan_end(now))
        elif self._segment is not None:
            self._cut(self._segment, now)

    def _scan_end(self, visible_ns: int) -> int:
        """The end of the first idle scan that starts at or after `visible_ns`; idle scans run back to back."""
        scan, late_ns = self._overheads.scan_ns, self._overheads.late_ns
        start = max(visible_ns, self._env.now)
        end = start + (self._phase_ns - start) % scan + scan
        return end + late_ns(end) if late_ns else end

    def _cut(self, segment: Segment, visible_ns: int) -> None:
        index = bisect_left(segment.stored, visible_ns + self._overheads.scan_ns)
        if index + 1 < len(segment.stored):
            keep = index + 1
            for column in (segment.launched, segment.done, segment.stored, segment.sequence):
                del column[keep:]
            self._alarm.ring(segment.stored[-1])

    def set_time_limit(self, time_limit_ns: int) -> None:
        """From the next boundary on; 0 is none. Only for a scheduler that goes step by step: it has planned nothing."""
        self._settings = replace(self._settings, time_limit_ns=time_limit_ns)

    # --- the loop ---

    def run(self) -> Process:
        """The scheduler, for ever."""
        yield self._alarm.wait(self._env.now + self._phase_ns)
        while True:
            yield from self.iteration()

    def iteration(self) -> Process:
        """One boundary, one decision, and what it asks for."""
        self._scan()
        if self._partial and not self.failed:
            yield from self._go_on()
            return
        decision = _NOTHING_TO_DO if self.failed else self._decide()
        self._occupancy.blocked(self._env.now, decision.blocked)
        if self.observer:
            self.observer.decided(decision)
        if decision.action is Action.DECODE:
            yield from self._decode(decision.blocked)
        elif decision.action is Action.PREFILL:
            yield from self._prefill(decision.claim_count)
        elif decision.action is Action.RELAUNCH:
            yield from self._relaunch()
        else:
            yield from self._wait_for_work()

    def _decide(self) -> Decision:
        return policy.decide(
            len(self._running),
            self._waiting,
            len(self._free_blocks),
            self._limits.window - self._launches,
            self._prefilled_tokens,
            self._limits,
            self._settings.prefill_table,
        )

    def _wait_for_work(self) -> Process:
        if self._unseen:
            due: int | None = self._scan_end(self._unseen[0][0])
        else:
            self._idle, due = True, None
        since = self._env.now
        try:
            yield self._alarm.wait(due)
        finally:
            self._idle = False
        self._account()
        self.counters.idle_ns += self._env.now - since

    def _relaunch(self) -> Process:
        """Tail launch: the new instance adopts every slot from memory, so nothing else changes."""
        yield self._alarm.wait(self._env.now + self._overheads.relaunch_ns)
        self._account()
        self._launches = 0
        self.counters.relaunches += 1
        self.counters.loop_ns += self._overheads.relaunch_ns
        if self._rows:
            self._rows.relaunched(self._step)

    # --- the boundary ---

    def _scan(self) -> None:
        """Take in what was visible one scan ago: new prompts, cancels and the fence, then the time limit.

        A scan has no other order than that of the slots, so rejects come in that order, and aborts after them.
        """
        now = self._env.now
        cutoff = now - self._overheads.scan_ns
        rejected: dict[int, tuple[int, SlotStatus]] = {}  # slot -> request_id, status
        ended: dict[int, tuple[Live, SlotStatus]] = {}
        while self._unseen and self._unseen[0][0] <= cutoff:
            _, slot, cancel = self._unseen.popleft()
            if slot == _EVERY_SLOT:
                self._fence(rejected, ended)
            elif not cancel:
                self._take_in(slot, rejected)
            elif slot in self._running or self._in_part(slot) is not None:
                live = self._running.get(slot) or self._in_part(slot)
                assert live is not None
                if self._ring.cancelled_generation(slot) == live.generation:
                    ended[slot] = live, SlotStatus.CANCELLED
            else:
                self._withdraw(slot, rejected)
        for slot in sorted(rejected):
            self._reject(slot, *rejected[slot])
        limit = self._settings.time_limit_ns
        if limit:
            for live in self._claimed_lives():
                if now - live.claimed_ns >= limit and live.slot not in ended:
                    ended[live.slot] = live, SlotStatus.TIME_LIMIT
        if ended:
            self._abort(ended)

    def _take_in(self, slot: int, rejected: dict[int, tuple[int, SlotStatus]]) -> None:
        """A new prompt joins the line, unless it cannot be claimed."""
        descriptor = self._ring.descriptor(slot)
        if not self._ring.descriptor_is_whole(slot) or descriptor.generation != self._generation(slot):
            request_id = tenant_of(self._requests.values(), slot, self._generation(slot))
            rejected[slot] = request_id, SlotStatus.BAD_DESCRIPTOR
            return
        pending = Pending(descriptor.request_id, slot, descriptor.prompt_tokens, descriptor.output_tokens_max)
        if self._ring.cancelled_generation(slot) == descriptor.generation:
            rejected[slot] = pending.request_id, SlotStatus.CANCELLED
            return
        if self._epoch(slot) != self._ring.epoch:
            rejected[slot] = pending.request_id, SlotStatus.FENCED
            return
        insort(self._waiting, pending, key=lambda prompt: (prompt.request_id, prompt.slot))

    def _withdraw(self, slot: int, rejected: dict[int, tuple[int, SlotStatus]]) -> None:
        """A cancel of a prompt that waits takes it out of the line."""
        for index, pending in enumerate(self._waiting):
            if pending.slot == slot and self._ring.cancelled_generation(slot) == self._generation(slot):
                del self._waiting[index]
                rejected[slot] = pending.request_id, SlotStatus.CANCELLED
                return

    def _fence(self, rejected: dict[int, tuple[int, SlotStatus]], ended: dict[int, tuple[Live, SlotStatus]]) -> None:
        """Everything of an epoch that is gone ends: the frontend that submitted it was replaced."""
        epoch = self._ring.epoch
        for pending in [prompt for prompt in self._waiting if self._epoch(prompt.slot) != epoch]:
            self._waiting.remove(pending)
            rejected[pending.slot] = pending.request_id, SlotStatus.FENCED
        for live in self._claimed_lives():
            if live.epoch != epoch:
                ended.setdefault(live.slot, (live, SlotStatus.FENCED))  # a cancel that was seen before comes first

    def _in_part(self, slot: int) -> Live | None:
        """The request whose prompt is computed in part, in that slot."""
        return next((live for live in self._partial if live.slot == slot), None)

    def _claimed_lives(self) -> list[Live]:
        """Everything that holds a place."""
        return [*self._running.values(), *self._partial]

    def _generation(self, slot: int) -> int:
        return self._ring.word(slot) >> GENERATION_SHIFT & GENERATION_MASK

    def _epoch(self, slot: int) -> int:
        return self._ring.word(slot) >> EPOCH_SHIFT & EPOCH_MASK

    def _reject(self, slot: int, request_id: int, status: SlotStatus) -> None:
        self._ring.move(slot, SlotState.DECODE_COMPLETED, status=status)
        if self._rows:
            self._rows.rejected((slot, self._generation(slot), self._epoch(slot), request_id), status, self._step)
        self._tell_other(self._env.now)

    def _abort(self, ended: dict[int, tuple[Live, SlotStatus]]) -> None:
        for slot in sorted(ended):
            live, status = ended[slot]
            source = SlotState(self._ring.state(slot))
            count = self._ring.move(slot, SlotState.DECODE_COMPLETED, status=status)
            if self._rows:
                self._rows.aborted(live, source, status, count, self._step)
            self._release(live, count)
        self._rebuild()
        self._tell_other(self._env.now)

    def _release(self, live: Live, token_count: int) -> None:
        """A claimed request has ended: its place, its blocks, its KV tokens."""
        if self._running.pop(live.slot, None) is not None:
            self._kv_tokens -= live.prompt.prompt_tokens + token_count
        else:
            self._partial.remove(live)  # its tokens were not counted yet
        policy.return_blocks(self._free_blocks, live.blocks)
        self._used_blocks -= len(live.blocks)

    def _rebuild(self) -> None:
        """The batch after its set of sequences has changed."""
        self._batch = Batch.of(self._running, recorded=self._rows is not None)

    def _tell_other(self, time_ns: int) -> None:
        if self.listener:
            self.listener.stored_other(time_ns)

    # --- prefill ---

    def _prefill(self, claim_count: int) -> Process:
        """Pause, claim, prefill, first tokens, resume: one step."""
        overheads, start = self._overheads, self._env.now
        paused = self._pause()
        prompts = self._waiting[:claim_count]
        del self._waiting[:claim_count]
        claimed_ns = start + overheads.claim_ns(claim_count, pausing=bool(self._running))
        yield self._alarm.wait(claimed_ns)
        self._account()
        self._graph_since = claimed_ns
        claimed = [self._claim(prompt) for prompt in prompts]
        yield from self._compute(claimed, paused, start)

    def _pause(self) -> Batch:
        """What decodes waits."""
        paused = self._batch
        if self._running:
            self._move_batch(Event.PAUSE, paused, SlotState.DECODE_PROCESSING, SlotState.DECODE_PAUSED)
            for live in paused.lives:
                live.request.pause_count += 1
        return paused

    def _go_on(self) -> Process:
        """Prompts that are computed in part: what decodes has a step between two of their pieces."""
        self._occupancy.blocked(self._env.now, Blocked.TURN if self._waiting else Blocked.NOT)
        launches_left = self._limits.window - self._launches
        if launches_left < (policy.LAUNCHES_FOR_PAUSE if self._running else 1):
            yield from self._relaunch()
        elif self._running and self._prefilled_tokens:
            yield from self._decode(Blocked.TURN)
        else:
            overheads, start = self._overheads, self._env.now
            paused = self._pause()
            launched_ns = start + overheads.claim_ns(0, pausing=bool(self._running))
            yield self._alarm.wait(launched_ns)
            self._account(len(self._partial))
            self._graph_since = launched_ns
            lives, self._partial = self._partial, []
            yield from self._compute(lives, paused, start)

    def _piece(self, live: Live) -> int:
        """How many tokens of its prompt the next graph computes."""
        left = live.prompt.prompt_tokens - live.computed
        options = self._settings.options
        return min(left, options.chunk_tokens) if options and options.chunk_tokens else left

    def _context_ns(self, lives: list[Live], pieces: list[int]) -> int:
        """What a graph takes beyond its new tokens: contexts, and what has to be loaded first."""
        options = self._settings.options
        if options is None:
            return 0
        loads = max(live.load_ns for live in lives)
        contexts = [
            options.context_ns(new, live.computed) for live, new in zip(lives, pieces, strict=True) if live.computed
        ]
        return loads + sum(contexts)

    def _compute(self, claimed: list[Live], paused: Batch, start: int) -> Process:
        """One prefill graph, launched now: the next piece of each prompt; first tokens of those that are complete."""
        overheads, claimed_ns, claim_count = self._overheads, self._env.now, len(claimed)
        pieces = [self._piece(live) for live in claimed]
        tokens = sum(pieces)
        shape = self._settings.prefill_table.choose(claim_count, max(pieces))
        self.ranges.prefill(shape.batch, shape.sequence)
        if self.observer:
            self.observer.launched(shape, claimed)
        duration = self._times.prefill_ns(shape.batch, shape.sequence) + self._context_ns(claimed, pieces)
        before_ns = overheads.before_ns(self._step, claim_count)
        if self._throttle:
            duration = self._throttle.prefill_ns(claimed_ns + before_ns, duration, shape.batch, shape.sequence)
        done_ns = claimed_ns + before_ns + duration
        if overheads.late_ns:
            done_ns += overheads.late_ns(done_ns)
        stored_ns = done_ns + overheads.after_ns(self._step, claim_count)
        self._record_graph(Event.GRAPH_LAUNCHED, claimed_ns, shape, claim_count)
        if self._overdue(duration):
            yield from self._give_up(claimed)
            return
        yield self._alarm.wait(stored_ns)
        self._account(claim_count)
        self._record_graph(Event.GRAPH_DONE, done_ns, shape, claim_count)
        counters = self.counters
        counters.prefill_launches += 1
        counters.prefill_ns += duration
        counters.loop_ns += stored_ns - start - duration
        counters.prefill_tokens += tokens
        counters.padded_prefill_tokens += shape.batch * shape.sequence - tokens
        self._launches += 1
        for live, new in zip(claimed, pieces, strict=True):
            live.computed, live.load_ns = live.computed + new, 0
            if live.computed == live.prompt.prompt_tokens:
                self._first_token(live, done_ns, stored_ns)
            else:
                self._partial.append(live)
        if paused.lives:
            self._move_batch(Event.RESUME, paused, SlotState.DECODE_PAUSED, SlotState.DECODE_PROCESSING)
        self._step += 1
        self._graph_since = None
        self._prefilled_tokens = policy.prefilled(self._prefilled_tokens, tokens, self._limits)
        self._rebuild()
        if len(self._partial) < claim_count:  # a piece of a prompt is no news
            self._tell_other(stored_ns)

    def _claim(self, prompt: Pending) -> Live:
        slot, now, epoch = prompt.slot, self._env.now, self._epoch(prompt.slot)
        word = self._ring.word(slot)
        if not self._ring.compare_and_swap(slot, word, SlotState.PREFILL_PROCESSING):
            raise RuntimeError(f"slot {slot} changed between scan and claim")
        descriptor = self._ring.descriptor(slot)
        request = self._requests[descriptor.request_id]
        need = policy.kv_blocks_needed(prompt.prompt_tokens, prompt.output_tokens_max, self._limits.block_tokens)
        blocks = policy.take_blocks(self._free_blocks, need)
        ends = (request.eos_at, descriptor.output_tokens_max, descriptor.output_capacity)
        end_count = policy.end_count(*ends)
        request.claimed_ns, request.kv_block_count = now, need
        self._used_blocks += need
        self.counters.kv_blocks_max = max(self.counters.kv_blocks_max, self._used_blocks)
        live = Live(
            request, prompt, slot, descriptor.generation, epoch, blocks, end_count,
            policy.end_status(end_count, *ends), now,
        )  # fmt: skip
        if self._settings.options and self._settings.options.reuse:
            self._reuse(live, self._settings.options.reuse)
        if self._rows:
            self._rows.claimed(live, self._step)
        if self.observer:
            self.observer.claimed(live)
        return live

    def _reuse(self, live: Live, reuse: Reuse) -> None:
        """What its prompt finds; its own blocks take the place of what other prompts have left in free ones."""
        found = reuse.find(live.request)
        reuse.took(live.request, found)
        live.computed, live.load_ns = found.tokens, found.load_ns
        reuse.fit(len(self._free_blocks) * self._limits.block_tokens)

    def _first_token(self, live: Live, done_ns: int, stored_ns: int) -> None:
        request, last = live.request, live.end_count == 1
        request.prefilled_ns, request.stored_ns = done_ns, stored_ns
        status = live.end_status if last else SlotStatus.NONE
        to = SlotState.DECODE_COMPLETED if last else SlotState.DECODE_PROCESSING
        count = self._ring.move(live.slot, to, 1, status)
        if self._rows:
            self._rows.first_token(live, status, count, stored_ns, self._step)
        options = self._settings.options
        if options and options.reuse:
            options.reuse.keep(request)
            options.reuse.fit(len(self._free_blocks) * self._limits.block_tokens)
        self._running[live.slot] = live
        self._kv_tokens += live.prompt.prompt_tokens + 1
        live.end_step = self._decode_step + live.end_count - 1
        live.kv_base = live.prompt.prompt_tokens + 1 - self._decode_step
        if last:
            self._release(live, 1)

    def _move_batch(self, event: Event, batch: Batch, source: SlotState, to: SlotState) -> None:
        self._ring.move_all(batch.slots, source, to)
        if self._rows:
            self._rows.moved(event, batch, self._step)

    def _record_graph(self, event: Event, t_ns: int, shape: GraphShape, live: int) -> None:
        if self._rows:
            self._rows.graph(event, t_ns, shape, live, self._step)

    # --- decode ---

    def _decode(self, blocked: Blocked) -> Process:
        """As many decode steps as nothing can change, planned at once."""
        start = self._env.now
        segment = self._plan(1 if blocked is Blocked.TURN else self._limits.window)
        self._segment = segment
        if self.observer:
            shape = segment.shape(0)
            self.observer.launched(shape, segment.batch.lives)
        if segment.overdue:
            shape = segment.shape(0)
            self._record_graph(Event.GRAPH_LAUNCHED, start, shape, len(segment.batch.lives))
            self._segment = None
            yield from self._give_up([])
            return
        yield self._alarm.wait(segment.stored[-1])
        self._segment = None
        self._apply(segment, len(segment.stored), last=True)
        steps, rows, now = len(segment.stored), len(segment.batch.lives), self._env.now
        counters = self.counters
        duration = sum(segment.done) - sum(segment.launched) - sum(segment.before[:steps])
        counters.decode_launches += steps
        counters.decode_ns += duration
        counters.loop_ns += now - start - duration
        counters.decode_rows += steps * rows
        counters.padded_decode_rows += steps * (segment.shape_batch - rows)
        self._launches += steps
        self._prefilled_tokens = 0

    def _plan(self, steps_max: int) -> Segment:
        batch, table = self._batch, self._settings.decode_table
        rows = len(batch.lives)
        longest = batch.kv_base_max + self._decode_step
        shape = table.choose(rows, longest)
        segment = Segment(batch, shape.batch, self._step)
        steps = min(steps_max, self._limits.window - self._launches, PLAN_STEPS_MAX)
        steps = min(steps, batch.first_end_step - self._decode_step)
        if self._settings.stepwise or (self.listener and self.listener.needs_single_steps()):
            steps = 1
        stop_ns = self._stop_ns()
        segment.before, after = self._overheads.around(self._step, steps, rows)
        decode_ns, kv_tokens, now = self._times.decode_ns, self._kv_tokens, self._env.now
        throttle, late_ns = self._throttle, self._overheads.late_ns
        self.ranges.decode(shape.batch, kv_tokens)
        launched, done, stored, sequence = segment.launched, segment.done, segment.stored, segment.sequence
        for before_ns, after_ns in zip(segment.before, after, strict=True):
            if longest > shape.sequence:
                shape = table.choose(rows, longest)
            duration_ns = decode_ns(shape.batch, kv_tokens)
            if throttle:
                duration_ns = throttle.decode_ns(now + before_ns, duration_ns)
            if self._overdue(duration_ns):
                if launched:
                    break  # it comes first in the next segment
                segment.overdue = True
                launched.append(now)
                sequence.append(shape.sequence)
                break
            launched.append(now)
            now += before_ns + duration_ns
            if late_ns:
                now += late_ns(now)
            done.append(now)
            now += after_ns
            stored.append(now)
            sequence.append(shape.sequence)
            kv_tokens += rows
            longest += 1
            if now >= stop_ns:
                break
        self.ranges.decode(shape.batch, kv_tokens)
        return segment

    def _stop_ns(self) -> int:
        """The first boundary at or after this time must decide anew: a WRITE becomes visible, a time limit ends."""
        stop = _NEVER_NS
        if self._unseen:
            stop = self._unseen[0][0] + self._overheads.scan_ns
        if self._settings.time_limit_ns:
            oldest = min(live.claimed_ns for live in self._batch.lives)
            stop = min(stop, oldest + self._settings.time_limit_ns)
        return stop

    # --- the watchdog ---

    def _overdue(self, duration_ns: int) -> bool:
        return 0 < self._settings.graph_timeout_ns < duration_ns

    def _give_up(self, claimed: list[Live]) -> Process:
        """A graph that is overdue cannot be ended from the device: its requests end as ENGINE, and all that runs."""
        yield self._alarm.wait(self._env.now + self._settings.graph_timeout_ns)
        self._account(len(claimed))
        for live in claimed:
            self._running[live.slot] = live
            self._kv_tokens += live.prompt.prompt_tokens
        self.failed, self._graph_since = True, None
        self._abort({slot: (live, SlotStatus.ENGINE) for slot, live in self._running.items()})

    # --- what others ask ---

    def crash(self) -> None:
        """The scheduler dies now (its clock stops with it): the graph that runs will not be published."""
        now, segment = self._env.now, self._segment
        self._crashed_ns = now
        if self._rows is None:
            return
        if segment is not None and segment.applied < len(segment.stored):
            index, live = segment.applied, len(segment.batch.lives)
            self._record_graph(Event.GRAPH_LAUNCHED, segment.launched[index], segment.shape(index), live)
        self._rows.crashed()

    @property
    def heartbeat_ns(self) -> int:
        """When the scheduler's heart beat last: at the end of every scan, for as long as it lives."""
        alive_ns = self._env.now if self._crashed_ns is None else self._crashed_ns
        return max(0, alive_ns - (alive_ns - self._phase_ns) % self._overheads.scan_ns)

    @property
    def last_end_ns(self) -> int:
        """When anything ran last."""
        return self._occupancy.last_end_ns

    @property
    def step_number(self) -> int:
        """Graphs launched so far."""
        return self._step

    @property
    def instance(self) -> int:
        """Relaunches so far."""
        return self.counters.relaunches

    @property
    def running_count(self) -> int:
        """Sequences that hold a place in the batch."""
        return len(self._running) + len(self._partial)

    def reuse_counters(self) -> dict[str, int]:
        """What was found of prompts; nothing where nobody looks."""
        options = self._settings.options
        return options.reuse.counters() if options and options.reuse else {}

    @property
    def rows_from_ns(self) -> int:
        """No trace row before this time is still to come."""
        if self._segment is not None:
            return self._segment.launched[self._segment.applied]
        return self._env.now if self._graph_since is None else self._graph_since

    def cut_now(self) -> None:
        """Decide anew at the next boundary."""
        if self._segment is not None:
            self._cut(self._segment, self._env.now - self._overheads.scan_ns)

    def settle(self) -> None:
        """Store every planned token whose time has come, but the segment's last: its end does more than that."""
        segment = self._segment
        if segment is not None and segment.stored:
            count = min(bisect_right(segment.stored, self._env.now), len(segment.stored) - 1)
            self._apply(segment, count, last=False)

    def _apply(self, segment: Segment, count: int, *, last: bool) -> None:
        """Steps up to `count` of a segment become bytes of the ring and rows of the trace."""
        first, steps = segment.applied, count - segment.applied
        if not steps:
            return
        batch = segment.batch
        segment.applied = count
        self._decode_step += steps
        self._step += steps
        self._kv_tokens += steps * len(batch.lives)
        ended: dict[int, SlotStatus] = {}
        if last and batch.first_end_step == self._decode_step:
            for position, live in enumerate(batch.lives):
                if live.end_step == self._decode_step:
                    ended[position] = live.end_status
        if self._rows:
            self._rows.steps(segment, first, count, ended)
        self._ring.add_tokens(batch.slots, steps, self._step, ended)
        stored = segment.stored[first:count]
        self._account(at_ns=stored[-1])
        if self.listener:
            self.listener.stored_steps(batch, stored, ended)
        if ended:
            for position in ended:
                live = batch.lives[position]
                self._release(live, live.end_count)
            self._rebuild()

    def _account(self, claimed: int = 0, at_ns: int | None = None) -> None:
        """Occupancy up to now (or to `at_ns`), with that many claimed prompts beside what runs."""
        now = self._env.now if at_ns is None else at_ns
        self._occupancy.until(now, len(self._running) + claimed, self._used_blocks)
