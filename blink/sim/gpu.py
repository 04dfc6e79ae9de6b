"""The gpu: the persistent scheduler's loop and the model as an opaque graph with a duration.

One step: launch from the device, the graph runs while the scheduler scans, its end is seen, tokens are stored, and at
that boundary the policy decides. A prompt or a cancel takes part in a decision if it was visible one scan before it.
Decode steps of an unchanged batch are planned ahead as a segment and stored together; a WRITE that arrives meanwhile
cuts the segment at the boundary that sees it. With `stepwise` every segment has one step: the reference.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Generator

import simpy

from blink.common import policy
from blink.common.events import Event
from blink.common.policy import Action, Blocked, Decision, GraphShape, Pending
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import SchedulerCounters
from blink.common.ring import Ring
from blink.common.states import SlotState, SlotStatus
from blink.sim.batch import Batch, Live, Segment
from blink.sim.claims import Claims
from blink.sim.clock import Alarm, Clock
from blink.sim.gpu_rows import GpuRows
from blink.sim.gpu_settings import GpuSettings
from blink.sim.occupancy import Occupancy
from blink.sim.overheads import StepOverheads
from blink.sim.planner import Planner, Start
from blink.sim.ports import Listener, Observer, StepTimes
from blink.sim.scanner import Scanner

_NEVER_NS = 2**63 - 1
_NOTHING_TO_DO = Decision(Action.IDLE)
PLAN_STEPS_MAX = 120
"""Decode steps of one plan at most; no more than a window allows on the device."""
Process = Generator[simpy.Event, object, None]


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
        self._env, self._ring, self._overheads, self._settings = env, ring, overheads, settings
        self._limits, self._time_limit_ns = settings.limits, settings.time_limit_ns
        self._rows = GpuRows(env, ring, recorder) if recorder else None
        self.listener: Listener | None = None
        self.observer: Observer | None = None
        self.counters = SchedulerCounters(
            kv_blocks_total=settings.kv_block_count, batch_limit=settings.limits.batch_max
        )
        self._occupancy = Occupancy(self.counters)
        self._claims = Claims(ring, requests, settings, self.counters, recorded=recorder is not None)
        self._scanner = Scanner(ring, requests, self._claims, overheads.scan_ns)
        self._planner = Planner(overheads, times, settings)
        self.ranges = self._planner.ranges
        self.failed = False  # a graph hangs: nothing is ever launched again
        self._crashed_ns: int | None = None
        self._phase_ns = phase_ns
        self._alarm = Alarm(env)
        self._idle = False
        self._step = 0  # every launched graph is a step
        self._decode_step = 0
        self._launches = 0  # of this instance's window
        self._segment: Segment | None = None
        self._graph_since: int | None = None  # a prefill runs since then
        self._prefilled_tokens = 0  # in a row, since the last decode

    # --- what the ring tells ---

    def notify(self, slot: int, *, cancel: bool) -> None:
        """A control word or a cancel word of `slot` has just become visible in the ring."""
        self._scanner.visible(self._env.now, slot, cancel=cancel)
        self._look()

    def notify_epoch(self) -> None:
        """The frontend's epoch in the ring header has just changed."""
        self._scanner.epoch_visible(self._env.now)
        self._look()

    def _look(self) -> None:
        """What has just become visible is seen by the next scan, or at the boundary that sees it."""
        now = self._env.now
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
        self._time_limit_ns = time_limit_ns

    # --- the loop ---

    def run(self) -> Process:
        """The scheduler, for ever."""
        yield self._alarm.wait(self._env.now + self._phase_ns)
        while True:
            yield from self.iteration()

    def iteration(self) -> Process:
        """One boundary, one decision, and what it asks for."""
        self._scan()
        if self._claims.partial and not self.failed:
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
            len(self._claims.running),
            self._scanner.waiting,
            self._claims.free_block_count,
            self._limits.window - self._launches,
            self._prefilled_tokens,
            self._limits,
            self._settings.prefill_table,
        )

    def _wait_for_work(self) -> Process:
        unseen_ns = self._scanner.unseen_since_ns
        due = None if unseen_ns is None else self._scan_end(unseen_ns)
        self._idle = due is None
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
        found = self._scanner.scan(now)
        for slot in sorted(found.rejected):
            self._reject(slot, *found.rejected[slot])
        limit = self._time_limit_ns
        if limit:
            for live in self._claims.all():
                if now - live.claimed_ns >= limit and live.slot not in found.ended:
                    found.ended[live.slot] = live, SlotStatus.TIME_LIMIT
        if found.ended:
            self._abort(found.ended)

    def _reject(self, slot: int, request_id: int, status: SlotStatus) -> None:
        self._ring.move(slot, SlotState.DECODE_COMPLETED, status=status)
        if self._rows:
            self._rows.rejected(
                (slot, self._ring.generation(slot), self._ring.slot_epoch(slot), request_id), status, self._step
            )
        self._tell_other(self._env.now)

    def _abort(self, ended: dict[int, tuple[Live, SlotStatus]]) -> None:
        for slot in sorted(ended):
            live, status = ended[slot]
            source = SlotState(self._ring.state(slot))
            count = self._ring.move(slot, SlotState.DECODE_COMPLETED, status=status)
            if self._rows:
                self._rows.aborted(live, source, status, count, self._step)
            self._claims.release(live, count)
        self._claims.rebuild()
        self._tell_other(self._env.now)

    def _tell_other(self, time_ns: int) -> None:
        if self.listener:
            self.listener.stored_other(time_ns)

    # --- prefill ---

    def _prefill(self, claim_count: int) -> Process:
        """Pause, claim, prefill, first tokens, resume: one step."""
        overheads, start = self._overheads, self._env.now
        paused = self._pause()
        prompts = self._scanner.waiting[:claim_count]
        del self._scanner.waiting[:claim_count]
        claimed_ns = start + overheads.claim_ns(claim_count, pausing=bool(self._claims.running))
        yield self._alarm.wait(claimed_ns)
        self._account()
        self._graph_since = claimed_ns
        claimed = [self._claim(prompt) for prompt in prompts]
        yield from self._compute(claimed, paused, start)

    def _pause(self) -> Batch:
        """What decodes waits."""
        paused = self._claims.batch
        if self._claims.running:
            self._move_batch(Event.PAUSE, paused, SlotState.DECODE_PROCESSING, SlotState.DECODE_PAUSED)
            for live in paused.lives:
                live.request.pause_count += 1
        return paused

    def _go_on(self) -> Process:
        """Prompts that are computed in part: what decodes has a step between two of their pieces."""
        self._occupancy.blocked(self._env.now, Blocked.TURN if self._scanner.waiting else Blocked.NOT)
        launches_left = self._limits.window - self._launches
        if launches_left < (policy.LAUNCHES_FOR_PAUSE if self._claims.running else 1):
            yield from self._relaunch()
        elif self._claims.running and self._prefilled_tokens:
            yield from self._decode(Blocked.TURN)
        else:
            overheads, start = self._overheads, self._env.now
            paused = self._pause()
            launched_ns = start + overheads.claim_ns(0, pausing=bool(self._claims.running))
            yield self._alarm.wait(launched_ns)
            self._account(len(self._claims.partial))
            self._graph_since = launched_ns
            lives, self._claims.partial = self._claims.partial, []
            yield from self._compute(lives, paused, start)

    def _claim(self, prompt: Pending) -> Live:
        live = self._claims.claim(prompt, self._env.now)
        if self._rows:
            self._rows.claimed(live, self._step)
        if self.observer:
            self.observer.claimed(live)
        return live

    def _compute(self, claimed: list[Live], paused: Batch, start: int) -> Process:
        """One prefill graph, launched now: the next piece of each prompt; first tokens of those that are complete."""
        claimed_ns, claim_count = self._env.now, len(claimed)
        graph = self._planner.prefill(claimed, self._step, claimed_ns)
        shape, stored_ns = graph.shape, graph.stored_ns
        if self.observer:
            self.observer.launched(shape, claimed)
        self._record_graph(Event.GRAPH_LAUNCHED, claimed_ns, shape, claim_count)
        if graph.overdue:
            yield from self._give_up(claimed)
            return
        yield self._alarm.wait(stored_ns)
        self._account(claim_count)
        self._record_graph(Event.GRAPH_DONE, graph.done_ns, shape, claim_count)
        counters = self.counters
        counters.prefill_launches += 1
        counters.prefill_ns += graph.duration_ns
        counters.loop_ns += stored_ns - start - graph.duration_ns
        counters.prefill_tokens += graph.tokens
        counters.padded_prefill_tokens += shape.batch * shape.sequence - graph.tokens
        self._launches += 1
        for live, new in zip(claimed, graph.pieces, strict=True):
            live.computed, live.load_ns = live.computed + new, 0
            if live.computed == live.prompt.prompt_tokens:
                self._first_token(live, graph.done_ns, stored_ns)
            else:
                self._claims.partial.append(live)
        if paused.lives:
            self._move_batch(Event.RESUME, paused, SlotState.DECODE_PAUSED, SlotState.DECODE_PROCESSING)
        self._step += 1
        self._graph_since = None
        self._prefilled_tokens = policy.prefilled(self._prefilled_tokens, graph.tokens, self._limits)
        self._claims.rebuild()
        if len(self._claims.partial) < claim_count:  # a piece of a prompt is no news
            self._tell_other(stored_ns)

    def _first_token(self, live: Live, done_ns: int, stored_ns: int) -> None:
        request, last = live.request, live.end_count == 1
        request.prefilled_ns, request.stored_ns = done_ns, stored_ns
        status = live.end_status if last else SlotStatus.NONE
        to = SlotState.DECODE_COMPLETED if last else SlotState.DECODE_PROCESSING
        count = self._ring.move(live.slot, to, 1, status)
        if self._rows:
            self._rows.first_token(live, status, count, stored_ns, self._step)
        self._claims.prefilled(live, self._decode_step)
        if last:
            self._claims.release(live, 1)

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
        batch = self._claims.batch
        steps = min(steps_max, self._limits.window - self._launches, PLAN_STEPS_MAX)
        steps = min(steps, batch.first_end_step - self._decode_step)
        if self._settings.stepwise or (self.listener and self.listener.needs_single_steps()):
            steps = 1
        start = Start(self._step, self._decode_step, self._claims.kv_tokens, self._env.now)
        return self._planner.decode(batch, start, steps, self._stop_ns())

    def _stop_ns(self) -> int:
        """The first boundary at or after this time must decide anew: a WRITE becomes visible, a time limit ends."""
        unseen_ns = self._scanner.unseen_since_ns
        stop = _NEVER_NS if unseen_ns is None else unseen_ns + self._overheads.scan_ns
        if self._time_limit_ns:
            oldest = min(live.claimed_ns for live in self._claims.batch.lives)
            stop = min(stop, oldest + self._time_limit_ns)
        return stop

    # --- the watchdog ---

    def _give_up(self, claimed: list[Live]) -> Process:
        """A graph that is overdue cannot be ended from the device: its requests end as ENGINE, and all that runs."""
        yield self._alarm.wait(self._env.now + self._settings.graph_timeout_ns)
        self._account(len(claimed))
        for live in claimed:
            self._claims.given_up(live)
        self.failed, self._graph_since = True, None
        self._abort({slot: (live, SlotStatus.ENGINE) for slot, live in self._claims.running.items()})

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
        return len(self._claims.running) + len(self._claims.partial)

    def reuse_counters(self) -> dict[str, int]:
        """What was found of prompts; nothing where nobody looks."""
        return self._claims.reuse.counters() if self._claims.reuse else {}

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
        self._claims.kv_tokens += steps * len(batch.lives)
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
                self._claims.release(live, live.end_count)
            self._claims.rebuild()

    def _account(self, claimed: int = 0, at_ns: int | None = None) -> None:
        """Occupancy up to now (or to `at_ns`), with that many claimed prompts beside what runs."""
        now = self._env.now if at_ns is None else at_ns
        self._occupancy.until(now, len(self._claims.running) + claimed, self._claims.used_blocks)
