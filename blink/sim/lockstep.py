"""The simulator's scheduler in lock-step: the very `Gpu` of a simulated run, one iteration at a time.

Beside it stand the frontend's own classes over the ring, without a network, and a clock that advances as it is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from blink.common.events import Event
from blink.common.lockstep import STEP_NS, Arrival, Cancel, Claimed, Machine, Operation, StepDecision
from blink.common.policy import Action, Decision, GraphShape
from blink.common.recorder import Recorder, Stream
from blink.common.request import Request
from blink.common.ring import Ring
from blink.common.states import SLOT_COUNT, SlotState
from blink.common.trace import Ints, TraceFooter
from blink.frontend.operations import Region, Write
from blink.frontend.prompt_area import PromptArea
from blink.frontend.request_tracker import RequestTracker
from blink.frontend.slot_tracker import SlotTracker
from blink.frontend.submission import Submission, Submitter
from blink.sim.batch import Live
from blink.sim.clock import Clock
from blink.sim.gpu import Gpu, Process
from blink.sim.gpu_settings import GpuSettings
from blink.sim.overheads import DeviceOverheads
from blink.sim.ports import StepTimes

_ROWS = 1 << 10
_EVENT_COLUMNS = ("event", "slot", "request_id", "token_count", "status")


@dataclass(slots=True)
class Timing:
    """What each part of an iteration takes, in nanoseconds: nothing, until somebody says otherwise."""

    scan_ns: int = 0
    pause_ns: int = 0
    claim_ns: int = 0
    claim_per_slot_ns: int = 0
    launch_ns: int = 0
    graph_ns: int = 0
    completion_ns: int = 0
    publish_ns: int = 0
    publish_per_slot_ns: int = 0
    relaunch_ns: int = 0

    def decode_ns(self, batch: int, kv_tokens: int) -> int:
        """Duration of a decode graph, whatever its shape."""
        return self.graph_ns

    def prefill_ns(self, batch: int, sequence: int) -> int:
        """Duration of a prefill graph, whatever its shape."""
        return self.graph_ns


@dataclass(slots=True)
class _Seen:
    """What the scheduler said of one iteration."""

    decision: Decision = field(default_factory=lambda: Decision(Action.IDLE))
    claimed: list[Claimed] = field(default_factory=list)
    graph: GraphShape | None = None
    members: tuple[int, ...] = ()


class _Nowhere:
    """A trace that nobody keeps: rows are read from the recorder's stream."""

    def write(self, columns: Mapping[str, Ints], count: int) -> None: ...

    def close(self, footer: TraceFooter | None) -> None: ...

    def abort(self) -> None: ...


class LockStep:
    """A `blink.common.lockstep.Stepper` over the simulator's scheduler. `slots` gives slots to arrivals."""

    def __init__(
        self,
        machine: Machine,
        *,
        timing: Timing | None = None,
        slots: SlotTracker | None = None,
        step_ns: int = STEP_NS,
    ) -> None:
        self._env, self._step_ns = Clock(), step_ns
        self._ring = Ring.in_memory(boot_id=1)
        self._requests: dict[int, Request] = {}
        self._recorder = Recorder(_Nowhere(), reads_each=False, initial_rows=_ROWS)
        timing = timing or Timing()
        costs = DeviceOverheads(timing)
        times: StepTimes = timing
        self.gpu = Gpu(
            self._env, self._ring, costs, times, _settings(machine), self._requests, self._recorder, phase_ns=0
        )
        self.gpu.observer = self
        slots = slots or SlotTracker()
        prompts = PromptArea(SLOT_COUNT * machine.prompt_capacity_tokens)
        self._submitter = Submitter(slots, prompts, machine.output_capacity_tokens, burst_max=SLOT_COUNT)
        self._tracker = RequestTracker(slots, prompts)
        self._seen = _Seen()

    def close(self) -> None:
        """Nothing is held beyond this object."""

    @property
    def rows(self) -> Stream:
        """The scheduler's rows of the trace so far."""
        return self._recorder.gpu

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return self._env.now

    @property
    def step_number(self) -> int:
        """Graphs launched so far."""
        return self.gpu.step_number

    @property
    def in_ring_count(self) -> int:
        """Requests that hold a slot."""
        return len(self._tracker)

    # --- the frontend ---

    def apply(self, operations: Sequence[Operation]) -> None:
        """Write these into the ring now: the arrivals in one burst, in order, then the cancels, in order."""
        for operation in operations:
            if isinstance(operation, Arrival):
                self._receive(operation)
        burst = self._submitter.post()
        if burst is not None:
            for _, slot, descriptor in burst.submitted:
                self._tracker.submitted(slot, descriptor)
            for write in burst.writes:
                self._store(write)
        for operation in operations:
            if isinstance(operation, Cancel):
                cancelled = self._tracker.cancel(operation.request_id, self._env.now)
                if cancelled is not None:
                    self._store(cancelled[1])

    def _receive(self, arrival: Arrival) -> None:
        request = Request(
            arrival.request_id, -1, arrival.prompt_tokens, arrival.eos_at, arrival.output_tokens_max, self._env.now
        )
        self._requests[request.request_id] = request
        self._submitter.add(Submission(request.request_id, request.prompt_tokens, request.output_tokens_max))

    def _store(self, write: Write) -> None:
        """The bytes of a WRITE are in the ring, and the scheduler may see them."""
        if write.data is None:
            return  # a prompt, of which only the length matters here
        if write.region is Region.STATUS:
            for slot in self._ring.write_status(write.offset_bytes, write.data):
                if self._ring.state(slot) == SlotState.PREFILL_PENDING:
                    self.gpu.notify(slot, cancel=False)
            return
        self._ring.write_descriptors(write.offset_bytes, write.data)
        if write.size_bytes == 8:
            self.gpu.notify(write.offset_bytes // 64, cancel=True)

    def _recycle(self) -> None:
        completed = [slot for slot in self._tracker.by_slot if self._ring.state(slot) == SlotState.DECODE_COMPLETED]
        for slot in completed:
            self._store(self._tracker.recycle(slot))

    # --- the scheduler ---

    def wait_until(self, time_ns: int) -> None:
        """Let time pass; a time that is over changes nothing."""
        if time_ns > self._env.now:
            self._env.run(until=time_ns)

    def step(self) -> StepDecision:
        """One iteration of the scheduler, a step's time later, then one cycle of the frontend."""
        self.wait_until(self._env.now + self._step_ns)
        return self.step_now()

    def step_now(self) -> StepDecision:
        """The same without letting time pass before."""
        number, first = self.gpu.step_number, self.rows.count
        seen = self._seen = _Seen()
        self._go(self.gpu.iteration())
        self._recycle()
        events = tuple(self._events(first))
        decision = seen.decision
        return StepDecision(
            number, decision.action, decision.blocked, tuple(seen.claimed), seen.graph, seen.members, events
        )

    def _go(self, iteration: Process) -> None:
        """Run an iteration to its end; one without work ends at once, in place of waiting for some."""
        for event in iteration:
            if self._seen.decision.action is Action.IDLE:
                iteration.close()
                return
            while not event.processed:
                self._env.step()

    def _events(self, first: int) -> Iterator[tuple[Event, int, int, int, int]]:
        window = slice(first, self.rows.count)
        values = [self.rows.columns[name][window].tolist() for name in _EVENT_COLUMNS]
        for event, *rest in zip(*values, strict=True):
            slot, request_id, token_count, status = rest
            yield Event(event), slot, request_id, token_count, status

    # --- what the scheduler says (blink.sim.gpu.Observer) ---

    def decided(self, decision: Decision) -> None:
        """What it does next."""
        self._seen.decision = decision

    def claimed(self, live: Live) -> None:
        """One request is claimed."""
        self._seen.claimed.append(Claimed(live.request.request_id, live.slot, tuple(live.blocks)))

    def launched(self, shape: GraphShape, lives: list[Live]) -> None:
        """A graph is launched for these rows."""
        self._seen.graph, self._seen.members = shape, tuple(live.slot for live in lives)


def _settings(machine: Machine) -> GpuSettings:
    return GpuSettings(
        machine.limits,
        machine.prefill_table,
        machine.decode_table,
        machine.kv_block_count,
        machine.time_limit_ns,
        stepwise=True,
    )
