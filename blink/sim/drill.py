"""A drill in the simulator: a load under faults, healed and drained, on one ring after another if need be.

The parts are those of a simulated run: the same `Gpu`, `Dpu`, `Ring` and classes of `blink.frontend`. Around them stand
clocks that can stop, a connection that can be destroyed, and READs whose posting, capture and completion are events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path as FilePath

from blink.common.drill import Drill, Life
from blink.common.events import Event
from blink.common.faults import Fault, FaultCounts, FaultKind, Moment, with_bit_flipped
from blink.common.layout import (
    DESCRIPTOR_ARRAY_BYTES,
    EPOCH_MODULUS,
    FRONTEND_EPOCH_OFFSET_BYTES,
    STATUS_ARRAY_BYTES,
    layout_hash,
    read_word,
)
from blink.common.ledger import Ledger
from blink.common.recorder import Recorder
from blink.common.request import UNKNOWN, Request, tenant_of
from blink.common.results import Outcome
from blink.common.ring import Ring
from blink.common.states import SLOT_COUNT
from blink.common.trace import VIRTUAL_CLOCK, TraceHeader, open_writer
from blink.frontend.operations import Write
from blink.frontend.prompt_area import PromptArea
from blink.frontend.recovery import HeartbeatWatch, Left, Recovery
from blink.frontend.request_tracker import RequestTracker
from blink.frontend.slot_tracker import SlotTracker
from blink.frontend.submission import Submitter
from blink.frontend.token_reader import PollSchedule, TokenReader
from blink.perf.admission import request_rows
from blink.perf.plant import Plant
from blink.sim.client import Clients
from blink.sim.clock import Clock, at
from blink.sim.connection import Connection
from blink.sim.dpu import Cores, Dpu
from blink.sim.event_reader import EventReader
from blink.sim.faults import FaultyTimes, Mortal, ReadTrouble, Script, play
from blink.sim.gpu import Gpu
from blink.sim.gpu_settings import GpuSettings
from blink.sim.overheads import DeviceOverheads
from blink.sim.run import read_costs
from blink.sim.topology import Path, topology
from blink.workload.drill import Case
from blink.workload.message import MessageProfile
from blink.workload.streams import Stream, generator

SPAN_NS = 100_000_000
"""The time in which a simulated drill's faults happen."""
RING_DEAD_AFTER_NS = 1_000_000
"""How long a heart may stand still: hundreds of scans."""
GRAPH_TIMEOUT_NS = 20_000_000
"""Of the watchdog: many times the slowest graph of a drill's model, eightfold slowness included."""
BOOT_NS = 2_000_000
"""From a ring's end to the next one's start."""
_DEADLINE_SPANS = 60
_EVENTS_BETWEEN_CHECKS = 64


@dataclass(slots=True)
class _RingLife:
    """One ring, and the scheduler on it."""

    trace: FilePath
    ring: Ring
    clock: Mortal  # the scheduler's
    gpu: Gpu
    times: FaultyTimes
    recorder: Recorder
    given_up: bool = False  # a graph hangs: what is left only drains


@dataclass(slots=True)
class _Frontend:
    """One incarnation of the frontend."""

    clock: Mortal
    connection: Connection
    slots: SlotTracker
    prompts: PromptArea
    dpu: Dpu
    reader: EventReader
    watch: HeartbeatWatch
    started: bool  # its epoch is in the ring: from then on its end is a crash that the trace knows of


def drill(case: Case, folder: FilePath, stop: Callable[[], bool] | None = None) -> Drill:
    """Carry out one case and leave the traces of its rings in `folder`; once `stop()` is true, that is a complaint."""
    return _SimDrill(case, folder).run(stop)


class _SimDrill:
    def __init__(self, case: Case, folder: FilePath) -> None:
        self._case, self._folder, self._env = case, folder, Clock()
        self._plant = plant = Plant.of(case.scenario)
        capacity = case.scenario.limits.output_capacity_tokens
        self._rows, refusals, _ = request_rows(plant, capacity, case.load, case.asked)
        assert not refusals, refusals  # a case is drawn so that every request can be served
        self._by_id = {row.request_id: row for row in self._rows}
        self._messages = MessageProfile.load()
        graph = topology(case.scenario)
        self._paths = [Path(graph, *ends) for ends in (("client", "dpu"), ("dpu", "gpu"), ("gpu", "dpu"))]
        self._read = read_costs(plant, self._paths[1], self._paths[2])
        self._rng = generator(case.seed, Stream.READS)  # what happens at moments that no plan can name
        self._trouble = ReadTrouble(self._rng, self._read)
        self._ledger, self._counts = Ledger(), FaultCounts()
        self._result = Drill(case.seed, case.plan, case.text, self._rows, case.probes)
        self._clients = Clients(
            self._env, self._rows, case.load, case.patience_ns, None, self._send, self._hang_up
        )  # fmt: skip
        self._life: _RingLife | None = None
        self._frontend: _Frontend | None = None
        self._armed: Fault | None = None  # a frontend crash that waits for the next posting
        self._damage: Fault | None = None  # waits for the next descriptor

    def run(self, stop: Callable[[], bool] | None) -> Drill:
        """Everything until nothing is left to happen; then the last ring is closed."""
        self._boot()
        for fault in self._case.plan:
            at(self._env, fault.at_ns, partial(self._inject, fault))
        at(self._env, self._case.heal_ns, self._heal)
        self._env.process(self._clients.run())
        result = self._result
        hang = self._pass_time(stop)
        if hang:
            result.complaints.append(hang)
        if self._life is not None:
            self._close(self._life, "", drained=not hang)
        self._ledger.close(self._rows)
        result.complaints += self._ledger.complaints
        result.counts, result.duration_ns = self._counts.counts, self._env.now
        return result

    def _pass_time(self, stop: Callable[[], bool] | None) -> str:
        queue, deadline_ns = self._env._queue, _DEADLINE_SPANS * self._case.span_ns
        while queue:
            for _ in range(_EVENTS_BETWEEN_CHECKS):
                if queue:
                    self._env.step()
            if self._env.now > deadline_ns:
                return f"hang: after {self._env.now / 1e9:.1f} s {self._clients.open} requests have no answer"
            if stop and stop():
                return f"hang: the drill took too long, {self._clients.open} requests have no answer"
        if self._clients.open:
            return f"hang: nothing is left to happen and {self._clients.open} requests have no answer"
        return ""

    # --- rings and frontends ---

    def _boot(self) -> None:
        """A new ring, a scheduler on it, and a frontend that has nothing to recover."""
        case, plant, number = self._case, self._plant, len(self._result.lives)
        ring, clock = Ring.in_memory(boot_id=case.seed + number), Mortal(self._env)
        trace = self._folder / f"seed-{case.seed}-ring-{number}.ndjson"
        recorder = self._recorder(trace, number)
        times = FaultyTimes(plant.step, clock)
        times.on_stuck = partial(self._counts.happened, FaultKind.STUCK_GRAPH)
        times.on_slow = partial(self._counts.add, "graphs slowed down")
        settings = GpuSettings(
            plant.limits, plant.prefill_table, plant.decode_table, case.kv_block_count, 0, True, GRAPH_TIMEOUT_NS
        )
        gpu = Gpu(clock, ring, DeviceOverheads(plant.gpu), times, settings, self._by_id, recorder, 1)
        self._life = _RingLife(trace, ring, clock, gpu, times, recorder)
        self._env.process(gpu.run())
        self._counts.add("rings started")
        self._frontend = self._new_frontend(self._life, 0)
        self._frontend.started = True

    def _recorder(self, trace: FilePath, number: int) -> Recorder:
        header = TraceHeader(
            run=f"drill-{self._case.seed}-{number}",
            backend="sim",
            seed=self._case.seed,
            layout_hash=layout_hash(),
            configuration=self._case.scenario.resolved(),
            clock=VIRTUAL_CLOCK,
            token_reads="each",
        )
        recorder = Recorder(open_writer(trace, header), reads_each=True, initial_rows=1 << 12)
        recorder.submitter = recorder.reader  # here the frontend's rows are recorded as they happen: one stream
        return recorder

    def _new_frontend(self, life: _RingLife, epoch: int) -> _Frontend:
        case, env, config = self._case, Mortal(self._env), self._case.scenario.frontend
        connection, slots = Connection(self._env), SlotTracker()
        prompts = PromptArea(SLOT_COUNT * case.scenario.limits.prompt_capacity_tokens)
        by_slot: dict[int, Request] = {}
        schedule = PollSchedule(
            config.poll_min_ns, config.poll_max_ns, self._read.request_ns + self._read.status_ns
        )  # fmt: skip
        reader = EventReader(
            env, life.ring, TokenReader(config.token_reads_per_poll_max), schedule, self._read, by_slot, life.recorder,
            self._trouble, self._ledger, self._counts, epoch=epoch % EPOCH_MODULUS,
        )  # fmt: skip
        capacity = case.scenario.limits.output_capacity_tokens
        submitter = Submitter(slots, prompts, capacity, epoch=epoch, burst_max=config.submissions_per_burst_max)
        dpu = Dpu(
            env, life.ring, life.gpu, reader, self._plant.dpu, Cores(self._plant.dpu.core_count), self._paths[0],
            self._paths[1], slots, submitter, RequestTracker(slots, prompts, epoch=epoch), by_slot, life.recorder,
            queue_max=0, epoch=epoch, connection=connection,
        )  # fmt: skip
        frontend = _Frontend(
            env, connection, slots, prompts, dpu, reader, HeartbeatWatch(RING_DEAD_AFTER_NS), started=False
        )  # fmt: skip
        connection.on_post = partial(self._posted, frontend)
        connection.carry = self._carried
        reader.completed = self._over
        reader.look = partial(self._look, life, frontend)
        reader.idle = partial(self._idle, life, frontend)
        reader.recycle_left = partial(self._recycle_left, life, frontend)
        return frontend

    def _close(self, life: _RingLife, ended_by: str, *, drained: bool) -> None:
        """The ring is given up, or the drill is over: nothing of it happens any more, its trace is complete."""
        frontend = self._frontend
        slots = {"free": 0, "in_use": 0, "recovering": SLOT_COUNT}  # nobody has read the ring
        if frontend is not None:
            found = frontend.slots
            slots = {"free": found.free_count, "in_use": found.in_use_count, "recovering": found.recovering_count}
            self._count_frontend(frontend)
            frontend.clock.die()
            frontend.connection.destroy()
        life.clock.die()
        self._counts.add("KV blocks exhausted", life.gpu.counters.wait_kv_ns > 0)
        life.recorder.close(slots, complete=drained, idle_status_reads=0)
        self._result.lives.append(Life(life.trace, slots, ended_by, drained))
        self._life = self._frontend = None

    def _count_frontend(self, frontend: _Frontend) -> None:
        self._counts.add("slots exhausted", frontend.dpu.counters.slots_in_use_max == SLOT_COUNT)

    def _retire(self, life: _RingLife, ended_by: str, *, drained: bool) -> None:
        self._fail_all()
        self._close(life, ended_by, drained=drained)
        at(self._env, self._env.now + BOOT_NS, self._boot)

    # --- clients ---

    def _send(self, request: Request) -> None:
        if self._frontend is None or self._life is None or self._life.given_up:
            request.outcome = Outcome.REFUSED
            self._counts.add("requests refused: no frontend, or a ring that is given up")
            self._over(request)
            return
        self._frontend.dpu.receive(request, self._messages.request_bytes(request.prompt_tokens))

    def _hang_up(self, request: Request) -> None:
        assert self._frontend is not None  # else the request would have been failed
        self._frontend.dpu.cancel(request)
        self._ledger.answer(request)

    def _over(self, request: Request) -> None:
        self._ledger.answer(request)
        self._clients.ended(request, self._env.now)

    def _open_requests(self) -> list[Request]:
        return [row for row in self._rows if row.sent_ns >= 0 and row.outcome is Outcome.UNFINISHED]

    def _fail_all(self) -> int:
        """Every client that waits gets an error."""
        open_requests = self._open_requests()
        for request in open_requests:
            request.outcome, request.output_tokens = Outcome.FAILED, self._ledger.delivered(request.request_id)
            self._over(request)
        return len(open_requests)

    # --- faults ---

    def _inject(self, fault: Fault) -> None:
        life = self._life
        if life is None:
            self._counts.add("faults without a ring to act on")
            return
        if fault.kind is FaultKind.FRONTEND_CRASH and fault.moment is Moment.WRITES:
            self._armed = fault
        elif fault.kind is FaultKind.FRONTEND_CRASH:
            self._crash_frontend(fault)
        elif fault.kind is FaultKind.SCHEDULER_CRASH:
            if life.clock.alive:
                self._counts.happened(fault.kind)
                life.gpu.crash()
                life.clock.die()
        elif fault.kind is FaultKind.CANCEL_STORM:
            self._cancel_storm(fault)
        elif fault.kind is FaultKind.STUCK_GRAPH:
            life.times.stick(True)
        elif fault.kind is FaultKind.SLOW_GRAPHS:
            self._counts.happened(fault.kind)
            life.times.slow_down(fault)
        elif fault.kind is FaultKind.BAD_DESCRIPTOR:
            self._damage = fault
        elif fault.kind is FaultKind.TIME_LIMIT:
            self._counts.happened(fault.kind)
            life.gpu.set_time_limit(1_000 * fault.size)
            at(self._env, self._env.now + fault.duration_ns, partial(life.gpu.set_time_limit, 0))
        else:
            self._counts.happened(fault.kind)
            self._trouble.begin(fault)

    def _cancel_storm(self, fault: Fault) -> None:
        self._counts.happened(fault.kind)
        waiting = self._open_requests()
        for request in waiting[: -(-len(waiting) * fault.size // 100)]:
            self._counts.add("requests cancelled by a storm")
            self._hang_up(request)
            self._clients.ended(request, self._env.now)

    def _carried(self, write: Write) -> Write:
        """A descriptor that is due to be damaged on its way is."""
        fault = self._damage
        if fault is None or write.data is None or not write.holds_descriptors:
            return write
        self._damage = None
        self._counts.happened(fault.kind)
        return write._replace(data=with_bit_flipped(write.data, fault.size))

    def _posted(self, frontend: _Frontend, arrived_ns: int) -> None:
        """WRITEs are under way until then: a crash that waits for that happens meanwhile."""
        fault, self._armed = self._armed, None
        if fault is not None:
            due_ns = int(self._rng.integers(self._env.now, arrived_ns + 1))
            at(frontend.clock, due_ns, partial(self._crash_frontend, fault))

    def _crash_frontend(self, fault: Fault) -> None:
        life, frontend = self._life, self._frontend
        if frontend is None or life is None:
            self._counts.add("frontend crashes while it was down")
            return
        now = self._env.now
        self._counts.happened(fault.kind)
        recovery = frontend.reader.recovery
        self._counts.add("frontend crashes before the ring was adopted", bool(recovery and not recovery.adopted))
        frontend.clock.die()
        frontend.connection.cut()
        if frontend.started:
            life.recorder.reader.add(event=Event.CRASHED, t_ns=now)
        self._frontend = None
        self._counts.add("requests failed by a frontend crash", self._fail_all())
        self._count_frontend(frontend)

        def destroy() -> None:
            frontend.connection.destroy()

        def restart() -> None:
            self._counts.add("WRITEs that landed after a crash", frontend.connection.late_count)
            self._counts.add("WRITEs lost in a crash", frontend.connection.lost_count)
            if self._life is life:
                self._restart(life, replace(fault, moment=Moment.ANY) if fault.moment is Moment.RECOVERY else None)

        at(self._env, now + fault.duration_ns * fault.size // 100, destroy)
        at(self._env, now + fault.duration_ns, restart)

    # --- E2 ---

    def _restart(self, life: _RingLife, again: Fault | None) -> None:
        """The old connection is destroyed; a new frontend takes the ring over, and may die over it."""
        epoch = read_word(life.ring.header, FRONTEND_EPOCH_OFFSET_BYTES)
        self._frontend = frontend = self._new_frontend(life, epoch + 1)
        frontend.reader.recovery = Recovery(frontend.slots, frontend.prompts, epoch)
        play(frontend.clock, self._recover(life, frontend))
        if again is not None:
            due_ns = self._env.now + int(self._rng.integers(0, 2 * self._recovery_ns()))
            at(frontend.clock, due_ns, partial(self._crash_frontend, again))

    def _recovery_ns(self) -> int:
        """From the posting of the epoch until the ring is read, without queues."""
        ring_ns = self._paths[2].one_way_ns(STATUS_ARRAY_BYTES + DESCRIPTOR_ARRAY_BYTES)
        return self._paths[1].one_way_ns(8) + self._paths[2].one_way_ns(0) + self._read.request_ns + ring_ns

    def _recover(self, life: _RingLife, frontend: _Frontend) -> Script:
        """WRITE the epoch, wait for its completion, READ the ring once, adopt it."""
        recovery, env = frontend.reader.recovery, self._env
        assert recovery is not None
        write = recovery.begin()

        def land() -> None:
            assert write.data is not None
            frontend.started = True
            life.recorder.reader.add(event=Event.RESTARTED, t_ns=env.now, epoch=recovery.epoch % EPOCH_MODULUS)
            life.ring.write_header(write.offset_bytes, write.data)
            life.gpu.notify_epoch()

        landed_ns = self._paths[1].send(env.now, write.size_bytes)
        frontend.connection.deliver(env.now, landed_ns, land)
        yield landed_ns + self._paths[2].one_way_ns(0)
        yield env.now + self._read.request_ns
        words, descriptors = life.ring.ctl.copy(), bytes(life.ring.descriptors)
        yield env.now + self._paths[2].one_way_ns(STATUS_ARRAY_BYTES + DESCRIPTOR_ARRAY_BYTES)
        for left in recovery.adopt(words, descriptors):
            self._counts.add(f"slots found {left.state.label} by a restart")
        self._recycle_left(life, frontend, recovery.completed(words))
        frontend.reader.wake()

    def _recycle_left(self, life: _RingLife, frontend: _Frontend, found: list[Left]) -> None:
        """T10 of slots that the old frontend left behind."""
        recovery = frontend.reader.recovery
        assert recovery is not None
        writes = []
        for left in found:
            writes.append(recovery.recycle(left.slot))
            request_id = left.request_id
            if request_id == UNKNOWN:
                request_id = tenant_of(self._rows, left.slot, left.generation)
            life.recorder.move(
                life.recorder.reader, Event.RECYCLE, self._env.now, left.slot, frontend.slots.generation(left.slot),
                recovery.epoch % EPOCH_MODULUS, request_id, 0,
            )  # fmt: skip
        self._counts.add("slots recovered", len(found))
        if writes:
            frontend.dpu.post(writes)
        frontend.dpu.resume()

    # --- what the frontend notices ---

    def _look(self, life: _RingLife, frontend: _Frontend) -> bool:
        """Once a cycle: heartbeat and failure, as a READ of them would show; False if the ring is given up."""
        if life.gpu.failed and not life.given_up:
            self._counts.add("watchdog gave a graph up")
            self._give_up(life, frontend)
        if frontend.watch.look(life.gpu.heartbeat_ns, self._env.now):
            return True
        self._counts.add("rings declared dead by their heartbeat")
        self._counts.add("requests failed by a dead ring", len(self._open_requests()))
        self._retire(life, "the scheduler's heart stands still", drained=False)
        return False

    def _give_up(self, life: _RingLife, frontend: _Frontend) -> None:
        """A graph hangs, so nothing that waits will ever be claimed: cancel it, and tell the clients."""
        life.given_up = True
        open_requests = self._open_requests()
        self._counts.add("requests failed by a stuck graph", len(open_requests))
        for request in open_requests:
            frontend.dpu.cancel(request)
            request.outcome = Outcome.FAILED
            self._over(request)

    def _idle(self, life: _RingLife, frontend: _Frontend) -> None:
        """Nothing is expected any more: a ring that was given up has drained."""
        frontend.watch.rest()
        if life.given_up and self._frontend is frontend:
            self._retire(life, "a graph hangs", drained=True)

    def _heal(self) -> None:
        """The faults are over. What nobody has noticed, because nobody waited, is put right by whoever operates it."""
        life, frontend, self._armed, self._damage = self._life, self._frontend, None, None
        if life is None:
            return
        life.times.stick(False)
        life.gpu.set_time_limit(0)
        if not life.clock.alive and (frontend is None or not frontend.reader.expects):
            self._retire(life, "the scheduler is gone", drained=False)
        elif life.gpu.failed and frontend is not None and not frontend.reader.expects:
            self._retire(life, "a graph hangs", drained=True)
