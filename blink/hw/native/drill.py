"""A drill on the native backend: three processes, and two of them may be killed at any point.

This process is the host: it makes the ring's memory, starts the scheduler and the frontend, plays the clients, and
keeps the trace. A frontend that dies is followed by another on the same memory (E2) while the scheduler goes on. A ring
whose scheduler is dead, or gave a graph up, is given up by its frontend and followed by another ring.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from blink.common.drill import Drill, Life
from blink.common.events import NOTHING, Event
from blink.common.faults import Fault, FaultCounts, FaultKind, Moment
from blink.common.layout import EPOCH_MODULUS, GENERATION_NONE, layout_hash
from blink.common.ledger import Ledger
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import Outcome
from blink.common.states import SLOT_COUNT
from blink.common.trace import Ints, TraceHeader, open_writer
from blink.hw.native.clients import RealClients
from blink.hw.native.driver import EVIDENCE
from blink.hw.native.frontend_child import Setup
from blink.hw.native.frontend_process import FrontendProcess
from blink.hw.native.instance import Instance
from blink.hw.native.library import address_of, load_library
from blink.hw.native.link import Message
from blink.hw.native.process import SchedulerProcess, Stop
from blink.hw.native.records import RecordReader
from blink.hw.native.run import MONOTONIC_CLOCK, monotonic_ns, settings_of
from blink.hw.native.settings import NativeSettings
from blink.hw.ring import Records, TakenRing
from blink.perf.admission import request_rows
from blink.perf.plant import Plant
from blink.workload.drill import Case
from blink.workload.streams import Stream, generator

SPAN_NS = 600_000_000
"""The time in which a native drill's faults happen; processes start and die in tens of milliseconds."""
RING_DEAD_AFTER_NS = 1_000_000_000
"""How long a heart may stand still: a scheduler that shares its cores may be held up for a while."""
GRAPH_TIMEOUT_NS = 200_000_000
"""Of the watchdog: many times the slowest graph of a drill's model, eightfold slowness included."""
TRACE_CAPACITY = 1 << 18
_DEADLINE_NS = 25_000_000_000
_STEPS_OF_RECOVERY = 4
_GRAPHS_AHEAD = 2
"""From the moment of the fault to the graph that hangs: a few, so that it cannot slip through meanwhile."""
_PAUSE_S = 0.0005
_NOBODY_READ_THE_RING = {"free": 0, "in_use": 0, "recovering": SLOT_COUNT}


class Export(Protocol):
    """Another way from the frontend's process to a ring than the memory that it inherits."""

    @property
    def opener(self) -> Callable[[NativeSettings], TakenRing]:
        """What opens it there; it is pickled."""

    def drop(self) -> None:
        """The frontend is gone: from here on nothing of it arrives."""

    def close(self) -> None:
        """Nobody reaches the ring this way any more."""


@dataclass(slots=True)
class _Ring:
    """One ring, its scheduler, its trace, and the frontend that serves it now."""

    instance: Instance
    scheduler: SchedulerProcess
    recorder: Recorder
    records: RecordReader
    trace: Path
    owners: dict[tuple[int, int], Request]  # (slot, generation) -> request, as the frontend posted it
    frontend: FrontendProcess | None = None
    standby: FrontendProcess | None = None
    restarting: tuple[int, int] | None = None  # t_ns and epoch of a restart whose WRITE may not have happened
    started: bool = False  # the frontend's epoch is in the ring
    ready: bool = False
    scheduler_dead: bool = False
    told: bool = False  # its frontend was told to leave
    export: Export | None = None
    last_word: tuple[str, dict[str, int]] | None = None  # of a frontend that has left: why, and its counts of slots


def drill(
    case: Case,
    folder: Path,
    stop: Callable[[], bool] | None = None,
    *,
    flags: tuple[str, ...] = (),
    export: Callable[[Instance], Export] | None = None,
) -> Drill:
    """Carry out one case and leave the traces of its rings in `folder`; once `stop()` is true, that is a complaint.

    `flags` go to the compiler; with `export` frontends reach each ring by what it returns. Raises InputError without a
    compiler. No process and no memory is left behind.
    """
    run = _NativeDrill(case, folder, flags, export)
    try:
        return run.go(stop)
    finally:
        run.clean_up()


class _NativeDrill:
    def __init__(
        self, case: Case, folder: Path, flags: tuple[str, ...], export: Callable[[Instance], Export] | None
    ) -> None:
        self._case, self._folder, self._export = case, folder, export
        plant = Plant.of(case.scenario)
        rows, refusals, _ = request_rows(plant, case.scenario.limits.output_capacity_tokens, case.load, case.asked)
        assert not refusals, refusals  # a case is drawn so that every request can be served
        self._rows = rows
        self._library = load_library(flags)
        settings = settings_of(case.scenario, plant, 1.0)
        self._settings = replace(
            settings, kv_block_count=case.kv_block_count, graph_timeout_ns=GRAPH_TIMEOUT_NS,
            trace_capacity=TRACE_CAPACITY,
        )  # fmt: skip
        self._clients = RealClients(rows, case.load, case.patience_ns, None, 1.0)
        self._rng = generator(case.seed, Stream.READS)
        self._ledger, self._counts = Ledger(), FaultCounts()
        self._result = Drill(case.seed, case.plan, case.text, rows, case.probes)
        self._plan = list(case.plan)
        self._held: list[Request] = []  # probes that wait for the heal
        self._crash: Fault | None = None  # of the frontend, on its way
        self._restart_at: tuple[int, Moment] | None = None
        self._ring: _Ring | None = None
        self._healed = False
        self._slow_until_ns = self._limited_until_ns = 0
        self._start_ns = monotonic_ns()  # 0 of the traces
        self._begun_ns = 0  # 0 of the plan, on the traces' clock

    def _trace_ns(self) -> int:
        return monotonic_ns() - self._start_ns

    def _now(self) -> int:
        return self._trace_ns() - self._begun_ns

    # --- the loop ---

    def go(self, stop: Callable[[], bool] | None) -> Drill:
        """Everything until every client has an answer and the last ring has drained."""
        self._boot()
        self._start_clock()
        result, hang = self._result, ""
        while not self._over():
            self._turn()
            if self._now() > _DEADLINE_NS:
                hang = f"after {self._now() / 1e9:.0f} s {self._clients.open_count} requests have no answer"
                break
            if stop and stop():
                hang = f"the drill took too long, {self._clients.open_count} requests have no answer"
                break
        result.duration_ns = self._now()
        if hang:
            result.complaints.append(f"hang: {hang}")
            if self._ring is not None:
                self._retire(self._ring, "", _NOBODY_READ_THE_RING, drained=False)
        elif not self._finish():
            result.complaints.append("hang: the last frontend did not come to its end")
        self._ledger.close(self._rows)
        result.complaints += self._ledger.complaints
        result.counts = self._counts.counts
        return result

    def _start_clock(self) -> None:
        """The run begins once the first ring serves: from here on, times are those of the plan."""
        ring = self._ring
        assert ring is not None
        due = time.monotonic() + 20
        while not ring.ready and time.monotonic() < due:
            self._hear(ring, 0.05)
        self._begun_ns = self._trace_ns()

    def _over(self) -> bool:
        return self._served() and not self._clients.open_count and not self._held

    def _turn(self) -> None:
        self._clients_act()
        ring = self._ring
        if ring is None:
            self._boot()
            return
        self._faults_act(ring)
        self._hear(ring, _PAUSE_S)
        self._look_after(ring)
        if not self._healed and self._now() >= self._case.heal_ns:
            self._heal()

    def _clients_act(self) -> None:
        for request in self._clients.due(self._now()):
            if request.request_id in self._case.probes and not self._served():
                self._held.append(request)
            else:
                self._send(request)
        if self._held and self._served():
            for request in self._held:
                request.sent_ns = self._now()
                self._send(request)
            self._held = []
        for request in self._clients.hanging_up(self._now()):
            if request.outcome is Outcome.UNFINISHED:
                self._hang_up(request)

    def _served(self) -> bool:
        """Whether the faults are over and somebody serves on a ring that is well."""
        ring = self._ring
        if not self._healed or ring is None or not ring.ready or ring.scheduler_dead or ring.last_word is not None:
            return False
        if self._crash is not None or self._restart_at is not None:  # a frontend is dying, whether it shows or not
            return False
        return not ring.instance.state()["failed"]

    def _send(self, request: Request) -> None:
        ring = self._ring
        if ring is None or ring.frontend is None:
            request.outcome = Outcome.REFUSED
            self._counts.add("requests refused: no frontend, or a ring that is given up")
            self._answer(request)
            return
        ring.frontend.send(
            "request", request.request_id, request.prompt_tokens, request.eos_at, request.output_tokens_max
        )

    def _hang_up(self, request: Request) -> None:
        ring = self._ring
        request.cancelled_ns, request.outcome = self._now(), Outcome.CANCELLED
        if ring is not None and ring.frontend is not None:
            ring.frontend.send("cancel", request.request_id)
        self._answer(request)

    def _answer(self, request: Request) -> None:
        self._ledger.answer(request)
        self._clients.ended(request, self._now())

    def _open_requests(self) -> list[Request]:
        held = {request.request_id for request in self._held}
        return [
            row
            for row in self._rows
            if row.sent_ns >= 0 and row.outcome is Outcome.UNFINISHED and row.request_id not in held
        ]

    def _fail_all(self) -> int:
        open_requests = self._open_requests()
        for request in open_requests:
            request.outcome, request.output_tokens = Outcome.FAILED, self._ledger.delivered(request.request_id)
            self._answer(request)
        return len(open_requests)

    # --- rings and frontends ---

    def _boot(self) -> None:
        """A new ring, a scheduler on it, and a frontend that has nothing to recover."""
        number = len(self._result.lives)
        settings = replace(self._settings, boot_id=self._case.seed + number)
        instance = Instance(self._library, settings)
        try:
            scheduler = SchedulerProcess(instance, 1 + self._case.seed % 2)
        except BaseException:
            instance.close()
            raise
        trace = self._folder / f"seed-{self._case.seed}-ring-{number}.ndjson"
        recorder = self._recorder(trace, number)
        owners: dict[tuple[int, int], Request] = {}
        records = RecordReader(recorder, lambda slot, generation: owners.get((slot, generation)), self._start_ns)
        self._ring = ring = _Ring(instance, scheduler, recorder, records, trace, owners)
        ring.export = self._export(instance) if self._export is not None else None
        scheduler.wait_until_up()
        self._counts.add("rings started")
        self._start_frontend(ring, recover=False)
        ring.started = True

    def _recorder(self, trace: Path, number: int) -> Recorder:
        header = TraceHeader(
            run=f"drill-{self._case.seed}-{number}",
            backend="native",
            seed=self._case.seed,
            layout_hash=layout_hash(),
            configuration=self._case.scenario.resolved(),
            clock=MONOTONIC_CLOCK,
            token_reads="each",
            evidence=EVIDENCE,
        )
        return Recorder(open_writer(trace, header), reads_each=True, initial_rows=1 << 12, evidence=EVIDENCE)

    def _start_frontend(self, ring: _Ring, *, recover: bool, die_at: int = -1) -> None:
        """The one that stands by, if there is one; another takes its place if the plan will want it."""
        config = self._case.scenario.frontend
        assert self._library.path is not None
        ring.started = ring.ready = False
        ring.frontend = ring.standby or FrontendProcess(ring.instance.shared)
        ring.standby = FrontendProcess(ring.instance.shared) if self._crashes_to_come(die_at) else None
        ring.frontend.begin(
            Setup(
                library=self._library.path,
                settings=ring.instance.settings,
                start_ns=self._start_ns,
                reads_max=config.token_reads_per_poll_max,
                burst_max=config.submissions_per_burst_max,
                ring_dead_after_ns=RING_DEAD_AFTER_NS,
                seed=int(self._rng.integers(1 << 31)),
                recover=recover,
                die_at=die_at,
                opener=ring.export.opener if ring.export is not None else None,
            )
        )

    def _crashes_to_come(self, die_at: int) -> bool:
        crashes = [fault for fault in self._plan if fault.kind is FaultKind.FRONTEND_CRASH]
        return die_at >= 0 or bool(crashes)

    def _retire(self, ring: _Ring, ended_by: str, slots: dict[str, int], *, drained: bool) -> None:
        """The ring is given up, or the drill is over: its processes end, its trace is complete."""
        self._drain(ring, ring.frontend.kill() if ring.frontend is not None else [])
        for process in (ring.frontend, ring.standby):
            if process is not None:
                process.close()
        ring.frontend = ring.standby = None
        self._fail_all()
        if not ring.scheduler_dead and not ring.scheduler.stop(Stop.DRAIN if drained else Stop.ABORT):
            self._result.complaints.append("hang: the scheduler did not stop when it was told to")
        self._drain(ring, [])
        state = ring.instance.state()
        self._counts.add("KV blocks exhausted", state["wait_kv_ns"] > 0)
        ring.recorder.close(slots, complete=drained, idle_status_reads=0, dropped_by_gpu=state["trace_dropped"])
        self._result.lives.append(Life(ring.trace, slots, ended_by, drained))
        self._close(ring)
        self._ring = None

    @staticmethod
    def _close(ring: _Ring) -> None:
        if ring.export is not None:
            ring.export.close()
        ring.scheduler.kill()
        ring.instance.close()

    def _finish(self) -> bool:
        """Let the last frontend drain its ring and leave; False if it does not."""
        ring = self._ring
        if ring is None or ring.frontend is None:
            return False
        ring.frontend.send("finish")
        due = time.monotonic() + 10
        while self._ring is not None and time.monotonic() < due:
            self._hear(ring, 0.02)
            self._look_after(ring)
        return self._ring is None

    def clean_up(self) -> None:
        """End whatever still runs."""
        ring, self._ring = self._ring, None
        if ring is None:
            return
        for process in (ring.frontend, ring.standby):
            if process is not None:
                process.close()
        ring.recorder.abort()
        self._close(ring)

    # --- what is heard ---

    def _hear(self, ring: _Ring, wait_s: float) -> None:
        """What scheduler and frontend have said.

        The frontend's rows are read after the scheduler's records: what a record is about was sent before it was made.
        """
        records = ring.instance.drain()
        if ring.frontend is None:
            time.sleep(wait_s)
        self._take(ring, records, ring.frontend.receive(wait_s) if ring.frontend is not None else [])

    def _drain(self, ring: _Ring, messages: list[Message]) -> None:
        """The same to the last record; `messages` are the last words of a frontend that is gone."""
        self._take(ring, ring.instance.drain(), messages)
        while (records := ring.instance.drain()).size:
            self._take(ring, records, [])

    def _take(self, ring: _Ring, records: Records, messages: list[Message]) -> None:
        for what, *rest in messages:
            if what == "rows":
                self._take_rows(ring, *rest)
            elif what == "tokens":
                for request_id, start, end in rest[0]:
                    if self._rows[request_id].outcome is not Outcome.CANCELLED:  # its client has hung up
                        self._ledger.deliver(request_id, start, end)
            elif what == "ended":
                self._ended(*rest)
            elif what == "count":
                self._counts.add(rest[0], rest[1])
            elif what == "given_up":
                self._counts.happened(FaultKind.STUCK_GRAPH)
                self._counts.add("watchdog gave a graph up")
            elif what == "restarting":
                ring.restarting = rest[0], rest[1]
            elif what == "restarted":
                self._restarted(ring)
            elif what == "ready":
                ring.ready = ring.started = True
            elif what == "disarmed":
                self._crash = None
            elif what == "left":
                ring.last_word = rest[0], rest[1]
                self._count_frontend(rest[2])
        if records.size:
            ring.records.take(records)

    def _count_frontend(self, counters: dict[str, int]) -> None:
        if counters["wrong_tokens"]:
            self._result.complaints.append(f"I2: {counters['wrong_tokens']} tokens are not those that were sampled")
        self._counts.add("slots exhausted", counters["slots_in_use_max"] == SLOT_COUNT)

    def _take_rows(self, ring: _Ring, count: int, columns: dict[str, Ints]) -> None:
        stream = ring.recorder.reader
        rows = stream.reserve(count)
        for name, values in columns.items():
            if name != "seq":
                stream.columns[name][rows] = values
        self._name_recycled(ring, columns, rows)
        prompts = np.flatnonzero(columns["event"] == Event.PROMPT_POSTED)
        if not prompts.size:
            return
        lives = zip(*(columns[name][prompts].tolist() for name in ("slot", "generation", "request_id")), strict=True)
        for slot, generation, request_id in lives:
            ring.owners[slot, generation] = self._rows[request_id]

    @staticmethod
    def _name_recycled(ring: _Ring, columns: dict[str, Ints], rows: slice) -> None:
        """A frontend that finds a damaged descriptor does not know whose it is; the host saw it posted."""
        ids = columns.get("request_id", np.array(NOTHING))
        for at in np.flatnonzero((columns["event"] == Event.RECYCLE) & (ids == NOTHING)).tolist():
            ended = (int(columns["generation"][at]) - 1) % GENERATION_NONE
            owner = ring.owners.get((int(columns["slot"][at]), ended))
            if owner is not None:
                ring.recorder.reader.columns["request_id"][rows.start + at] = owner.request_id

    def _ended(self, request_id: int, outcome: int, status: int, output_tokens: int) -> None:
        request = self._rows[request_id]
        if request.outcome is Outcome.CANCELLED:
            return
        request.outcome, request.status, request.output_tokens = Outcome(outcome), status, output_tokens
        self._answer(request)

    def _restarted(self, ring: _Ring) -> None:
        """The new epoch is in the ring: the trace says so, at the time before its WRITE."""
        assert ring.restarting is not None
        t_ns, epoch = ring.restarting
        ring.recorder.reader.add(event=Event.RESTARTED, t_ns=t_ns, epoch=epoch % EPOCH_MODULUS)
        ring.restarting, ring.started = None, True

    def _look_after(self, ring: _Ring) -> None:
        """A frontend that has ended without a word was killed: by the plan, or by itself at a point of the plan."""
        if ring.frontend is not None and ring.frontend.exit_code is not None:
            self._drain(ring, ring.frontend.kill())
            if ring.last_word is None:
                self._bury(ring, ring.frontend)
        if ring.last_word is not None:
            why, slots = ring.last_word
            gone = "the scheduler is gone" if ring.scheduler_dead else ""
            self._retire(ring, why or gone, slots, drained=slots["free"] == SLOT_COUNT)
        elif self._healed and ring.scheduler_dead and ring.ready and not ring.told and not self._open_requests():
            assert ring.frontend is not None
            ring.frontend.send("finish")  # nobody waits, so nobody watches the heart: whoever operates it steps in
            ring.told = True
        elif ring.frontend is None and self._restart_at is not None and self._restart_at[0] <= self._now():
            again = self._restart_at[1] is Moment.RECOVERY
            self._restart_at = None
            die_at = int(self._rng.integers(_STEPS_OF_RECOVERY)) if again else -1
            self._start_frontend(ring, recover=True, die_at=die_at)

    def _bury(self, ring: _Ring, frontend: FrontendProcess) -> None:
        """E2 begins: the old process is gone, and so is all that it could still have written."""
        frontend.close()
        if ring.export is not None:
            ring.export.drop()
        if ring.restarting is not None and ring.instance.header_epoch == ring.restarting[1]:
            self._restarted(ring)
        self._counts.add("frontend crashes before the ring was adopted", not ring.ready)
        if frontend.exit_code != -signal.SIGKILL:
            self._result.complaints.append(f"the frontend's process ended by itself (exit code {frontend.exit_code})")
        self._counts.happened(FaultKind.FRONTEND_CRASH)
        if ring.started:
            ring.recorder.reader.add(event=Event.CRASHED, t_ns=self._trace_ns())
        ring.frontend, ring.restarting, ring.ready = None, None, False
        self._counts.add("requests failed by a frontend crash", self._fail_all())
        crash, self._crash = self._crash, None
        moment = "over its recovery" if crash is None else crash.moment.value
        self._counts.add(f"frontend died {moment}")
        if crash is None:
            self._restart_at = self._now(), Moment.ANY
        else:
            self._restart_at = self._now() + crash.duration_ns, crash.moment

    # --- faults ---

    def _faults_act(self, ring: _Ring) -> None:
        now = self._now()
        while self._plan and self._plan[0].at_ns <= now and self._ring is ring:
            self._inject(ring, self._plan.pop(0))
        if self._slow_until_ns and now >= self._slow_until_ns:
            self._slow_until_ns = 0
            self._set_durations(ring, 1)
        if self._limited_until_ns and now >= self._limited_until_ns:
            self._limited_until_ns = 0
            self._set_config(ring, "time_limit_ns", 0)

    def _inject(self, ring: _Ring, fault: Fault) -> None:
        kind, frontend = fault.kind, ring.frontend
        if kind is FaultKind.FRONTEND_CRASH:
            self._crash_frontend(ring, fault)
        elif kind is FaultKind.SCHEDULER_CRASH and not ring.scheduler_dead:
            self._kill_scheduler(ring)
        elif kind is FaultKind.STUCK_GRAPH:
            self._set_config(ring, "hang_at", ring.instance.state()["graph_sequence"] + _GRAPHS_AHEAD)
        elif kind is FaultKind.SLOW_GRAPHS:
            self._counts.happened(kind)
            self._slow_until_ns = fault.at_ns + fault.duration_ns
            self._set_durations(ring, fault.size)
        elif kind is FaultKind.CANCEL_STORM:
            self._counts.happened(kind)
            waiting = self._open_requests()
            for request in waiting[: -(-len(waiting) * fault.size // 100)]:
                self._counts.add("requests cancelled by a storm")
                self._hang_up(request)
        elif kind in (FaultKind.STALE_READS, FaultKind.REORDERED_READS) and frontend is not None:
            self._counts.happened(kind)
            name = "reordered" if kind is FaultKind.REORDERED_READS else "stale"
            frontend.send("trouble", name, self._begun_ns + fault.at_ns + fault.duration_ns, fault.size)
        elif kind is FaultKind.BAD_DESCRIPTOR and frontend is not None:
            frontend.send("damage", fault.size)  # it counts once a descriptor is damaged
        elif kind is FaultKind.TIME_LIMIT:
            self._counts.happened(kind)
            self._limited_until_ns = fault.at_ns + fault.duration_ns
            self._set_config(ring, "time_limit_ns", 1_000 * fault.size)

    def _crash_frontend(self, ring: _Ring, fault: Fault) -> None:
        if ring.frontend is None:
            self._counts.add("frontend crashes while it was down")
            return
        if self._crash is not None:
            return  # one that waits for its moment is on its way
        self._crash = fault
        if fault.moment is Moment.WRITES:
            ring.frontend.send("die", int(self._rng.integers(0, 12)))
        else:
            os.kill(ring.frontend.pid, signal.SIGKILL)

    def _kill_scheduler(self, ring: _Ring) -> None:
        """kill -9; then the records that it had written and not yet committed are read as well."""
        ring.scheduler.kill()
        ring.scheduler_dead = True
        self._counts.happened(FaultKind.SCHEDULER_CRASH)
        died_ns = self._trace_ns()
        self._hear(ring, 0)
        self._drain(ring, [])
        left = ring.instance.salvage()
        self._counts.add("records read after a scheduler's death", left.size)
        if left.size:
            self._take(ring, left, [])
        ring.recorder.gpu.add(event=Event.CRASHED, t_ns=died_ns)

    def _set_durations(self, ring: _Ring, factor: int) -> None:
        durations = self._settings.durations
        scaled = [factor * part.astype(np.uint64) for part in (durations.prefill_ns, durations.decode_ns)]
        self._library.set_durations(ring.instance.base, *(address_of(part) for part in scaled))

    @staticmethod
    def _set_config(ring: _Ring, name: str, value: int) -> None:
        """A field that the scheduler reads at every step: the graph that never ends, the time limit."""
        offset = ring.instance.library.dtypes["config"].fields[name][1]  # type: ignore[index]
        ring.instance.block.view(offset, 8)[:] = value.to_bytes(8, "little")

    def _heal(self) -> None:
        """The faults are over. What nobody has noticed, because nobody waited, is put right by whoever operates it."""
        self._healed = True
        self._plan.clear()
        self._slow_until_ns = self._limited_until_ns = 0
        ring = self._ring
        if ring is None:
            return
        self._set_config(ring, "hang_at", 0)
        self._set_config(ring, "time_limit_ns", 0)
        self._set_durations(ring, 1)
        if ring.frontend is not None:
            ring.frontend.send("damage", None)
        if ring.frontend is not None and self._crash is not None and self._crash.moment is Moment.WRITES:
            ring.frontend.send("die", None)
