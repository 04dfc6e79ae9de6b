"""The loop of an engine core: form a step, launch it from the host, wait for its tokens, send them on.

One SimPy event an iteration, at the moment in which the core's thread is back at the top of its loop. With `overlap`
the next step is formed and launched before the result of the one before is taken in: one batch ahead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import simpy

from blink.common.policy import Blocked, default_decode_batches
from blink.common.request import Request
from blink.common.results import SchedulerCounters
from blink.perf.host.operation import HostOp
from blink.perf.host_engine import HostEngineProfile
from blink.perf.observed import RangeTracker
from blink.perf.step import StepModel
from blink.sim.clock import Alarm, Clock
from blink.sim.engines.batching import Batching, Step
from blink.sim.engines.host import HostThread
from blink.sim.engines.lifecycle import LifecycleRecorder
from blink.sim.engines.sequence import Place, Sequence

Process = Generator[simpy.Event, object, None]


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """How a core launches, and whether other threads take its requests in and send its output (`compiled`)."""

    overlap: bool
    cuda_graphs: bool
    compiled: bool = False


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What a step costs the core's thread under the host's conditions, interruptions apart.

    Operations that follow one another without a wait are one stretch: their costs add up.
    """

    form_ns: float  # schedule, build inputs
    form_ns_per_sequence: float
    form_ns_per_token: float
    launch_ns: float
    kernel_launch_ns: float
    collect_ns: float  # synchronise and copy, update, send
    collect_ns_per_sequence: float
    admit_ns: float  # one request out of the inbox

    @classmethod
    def of(cls, profile: HostEngineProfile, thread: HostThread, *, compiled: bool) -> StepCosts:
        """The profile's costs, each at the pace of its kind; messages cost a compiled core nothing of its own."""
        schedule, build, launch = (thread.factor(k) for k in (HostOp.SCHEDULE, HostOp.BUILD_INPUTS, HostOp.LAUNCH))
        sync, message = thread.factor(HostOp.SYNC_COPY), 0.0 if compiled else thread.factor(HostOp.IPC)
        return cls(
            form_ns=schedule * profile.schedule_ns + build * profile.prepare_ns,
            form_ns_per_sequence=schedule * profile.schedule_ns_per_sequence + build * profile.prepare_ns_per_sequence,
            form_ns_per_token=build * profile.prepare_ns_per_token,
            launch_ns=launch * profile.launch_ns,
            kernel_launch_ns=launch * profile.kernel_launch_ns,
            collect_ns=sync * profile.sync_ns + schedule * profile.update_ns + message * profile.output_ns,
            collect_ns_per_sequence=schedule * profile.update_ns_per_sequence
            + message * profile.output_ns_per_sequence,
            admit_ns=message * profile.admit_ns,
        )


class Sink(Protocol):
    """Who takes the output of a step: text for `members`, of whom `ended` have their last token."""

    def send(self, sent_ns: int, members: list[Sequence]) -> None: ...

    def finished(self, ended: list[Sequence]) -> None: ...


class EngineCore:
    """Scheduler and worker in one host thread, and the GPU that runs what it launches."""

    def __init__(
        self,
        env: Clock,
        profile: HostEngineProfile,
        times: StepModel,
        batching: Batching,
        thread: HostThread,
        settings: CoreSettings,
        sink: Sink,
        recorder: LifecycleRecorder | None,
    ) -> None:
        self._env, self._profile, self._times, self._batching = env, profile, times, batching
        self._thread, self._settings, self._sink, self._rec = thread, settings, sink, recorder
        self._costs = StepCosts.of(profile, thread, compiled=settings.compiled)
        self._kernels = times.kernel_count()
        self._captured = default_decode_batches(profile.captured_batch_max)
        self._alarm = Alarm(env)
        self._idle = False
        self._inbox: deque[tuple[int, Sequence, bool]] = deque()  # visible_ns, sequence, is it an abort
        self._flying: deque[Step] = deque()
        self._gpu_free_ns = 0
        self._busy_since_ns = 0
        self._accounted_ns = 0
        self._blocked, self._blocked_since = Blocked.NOT, 0
        self.ranges = RangeTracker()
        self.last_end_ns = 0
        self.steps = 0
        self.counters = SchedulerCounters(kv_blocks_total=batching.pool.total, batch_limit=batching.limits.seqs_max)

    # --- messages from the server ---

    def deliver(self, visible_ns: int, sequence: Sequence, *, abort: bool = False) -> int:
        """A message of the server; visible when those before it are. When that is."""
        if self._inbox:
            visible_ns = max(visible_ns, self._inbox[-1][0])
        self._inbox.append((visible_ns, sequence, abort))
        if self._idle:
            self._idle = False
            self._alarm.ring(visible_ns + self._thread.wakeup())
        return visible_ns

    def _take_in(self) -> int:
        """Messages that are visible; the time they take the core."""
        now, count = self._env.now, 0
        while self._inbox and self._inbox[0][0] <= now:
            _, sequence, abort = self._inbox.popleft()
            count += 1
            if not abort:
                if sequence.request.cancelled_ns is None:
                    self._batching.add(sequence)
                    if self._rec:
                        self._rec.queued(now, sequence)
            elif sequence.place is not Place.GONE:
                self._abort(sequence)
        return self._thread.work(count * self._costs.admit_ns) if count else 0

    def _abort(self, sequence: Sequence) -> None:
        if sequence.place is not Place.WAITING or sequence in self._batching.waiting:
            self._batching.abort(sequence)
        if self._rec:
            self._rec.aborted(self._env.now, sequence)

    # --- the loop ---

    def run(self) -> Process:
        """The core, for ever."""
        ahead = 1 if self._settings.overlap else 0
        while True:
            now = self._env.now
            self._account(now)
            at_ns = now + self._take_in()
            step = self._batching.form()
            self._note_blocked(now)
            if step is not None:
                at_ns = self._launch(step, at_ns)
            elif not self._flying:
                yield from self._wait_for_work(at_ns)
                continue
            if len(self._flying) <= ahead and step is not None:
                yield self._alarm.wait(at_ns)
                continue
            at_ns, done = self._collect(at_ns)
            yield self._alarm.wait(at_ns)
            self._finish(done)

    def _wait_for_work(self, at_ns: int) -> Process:
        now = self._env.now
        if at_ns > now:  # it was busy with messages, after all
            yield self._alarm.wait(at_ns)
            return
        due = None
        if self._inbox:
            due = max(now, self._inbox[0][0]) + self._thread.wakeup()
        else:
            self._idle = True
        yield self._alarm.wait(due)
        self._idle = False
        self.counters.idle_ns += self._env.now - now
        self._busy_since_ns = self._env.now
        self._accounted_ns = self._env.now

    def _launch(self, step: Step, at_ns: int) -> int:
        """Schedule, build inputs, launch: when the thread is through with it."""
        profile, thread, costs = self._profile, self._thread, self._costs
        rows, tokens = len(step.rows), step.chunk_tokens if step.chunks else 0
        forming_ns = costs.form_ns + (rows + len(step.chunks)) * costs.form_ns_per_sequence
        captured = not step.chunks and self._settings.cuda_graphs and rows <= profile.captured_batch_max
        gpu_ns = self._gpu_ns(step, captured)
        at_ns += thread.work(forming_ns + tokens * costs.form_ns_per_token + costs.launch_ns)
        step.launched_ns = at_ns
        step.started_ns = max(at_ns, self._gpu_free_ns)
        if not captured:
            at_ns += thread.work(self._own_launches(rows + tokens) * costs.kernel_launch_ns)
        # A GPU that runs dry between two launches is as late as the last launch.
        step.done_ns = max(step.started_ns + gpu_ns, at_ns)
        self._count(step, gpu_ns)
        self._gpu_free_ns = step.done_ns
        self._flying.append(step)
        if self._rec:
            self._rec.launched(step)
        return at_ns

    def _own_launches(self, tokens: int) -> float:
        pieces = self._settings.cuda_graphs and tokens <= self._profile.captured_tokens_max
        return self._kernels * (self._profile.captured_kernel_share if pieces else 1.0)

    def _gpu_ns(self, step: Step, captured: bool) -> int:
        rows = len(step.rows)
        if not captured:
            for tokens, context in step.shapes():
                self.ranges.prefill(1, tokens + context)
            return self._times.mixed_ns(rows, step.kv_tokens, step.shapes()) + step.load_ns
        padded = self._captured[bisect_left(self._captured, rows)]
        self.ranges.decode(padded, step.kv_tokens)
        self.counters.padded_decode_rows += padded - rows
        return self._times.decode_ns(padded, step.kv_tokens)

    def _collect(self, at_ns: int) -> tuple[int, Step]:
        """Wait for the oldest step, take its tokens in, send them: when the message is out."""
        thread, costs = self._thread, self._costs
        step = self._flying.popleft()
        if step.done_ns > at_ns:
            at_ns += thread.spin(step.done_ns - at_ns)
        count = len(step.rows)
        if step.chunks:
            count += sum(chunk.last for chunk in step.chunks)
        return at_ns + thread.work(costs.collect_ns + count * costs.collect_ns_per_sequence), step

    def _finish(self, step: Step) -> None:
        """The step's tokens are out: blocks of those that ended are free, their text is on its way."""
        now = self._env.now
        self._account(now)
        same, ended = self._batching.result()
        assert same is step
        members = step.rows
        if step.gone or step.chunks:
            members = [row for row in members if row not in step.gone]
            for chunk in step.chunks:
                if chunk.last and chunk.sequence not in step.gone:
                    members.append(chunk.sequence)
                    self._first_token(chunk.sequence.request, step, now)
        if self._rec:
            self._rec.done(step, now, members, ended)
        self._sink.send(now, members)
        if ended:
            self._sink.finished(ended)
        self.last_end_ns = now

    @staticmethod
    def _first_token(request: Request, step: Step, now: int) -> None:
        if request.stored_ns < 0:
            request.prefilled_ns, request.stored_ns = step.done_ns, now

    # --- accounts ---

    def _count(self, step: Step, gpu_ns: int) -> None:
        counters = self.counters
        rows = len(step.rows)
        self.steps += 1
        counters.loop_ns += step.started_ns - max(self._gpu_free_ns, self._busy_since_ns)
        counters.decode_rows += rows
        if step.chunks:
            counters.prefill_launches += 1
            counters.prefill_ns += gpu_ns
            counters.prefill_tokens += step.chunk_tokens
        else:
            counters.decode_launches += 1
            counters.decode_ns += gpu_ns
        counters.loop_ns += step.done_ns - step.started_ns - gpu_ns
        running = self._batching.running_count
        counters.batch_max = max(counters.batch_max, running)
        counters.kv_blocks_max = max(counters.kv_blocks_max, step.blocks)

    def _account(self, now: int) -> None:
        elapsed = now - self._accounted_ns
        counters = self.counters
        counters.batch_ns += self._batching.running_count * elapsed
        counters.kv_block_ns += self._batching.pool.used * elapsed
        self._accounted_ns = now

    def _note_blocked(self, now: int) -> None:
        counters, blocked = self.counters, self._batching.blocked
        if blocked is not self._blocked:
            waited = now - self._blocked_since
            if self._blocked is Blocked.BATCH:
                counters.wait_batch_ns += waited
            elif self._blocked is Blocked.KV:
                counters.wait_kv_ns += waited
            self._blocked, self._blocked_since = blocked, now
