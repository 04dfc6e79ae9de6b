"""A drill on the native backend: three processes, and two of them may be killed at any point.

This process is the host: it makes the ring's memory, starts the scheduler and the frontend, plays the clients, and
keeps the trace. A frontend that dies is followed by another on the same memory (E2) while the scheduler goes on. A ring
whose scheduler is dead, or gave a graph up, is given up by its frontend and followed by another ring.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from blink.common.drill import Drill, Life
from blink.common.events import Event
from blink.common.faults import FaultCounts, FaultKind, Moment
from blink.common.layout import layout_hash
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import Outcome
from blink.common.states import SLOT_COUNT
from blink.common.trace import TraceHeader, open_writer
from blink.hw.native.drill_clients import DrillClients
from blink.hw.native.drill_faults import DrillFaults
from blink.hw.native.drill_ring import DrillRing, Export
from blink.hw.native.driver import EVIDENCE
from blink.hw.native.frontend_child import Setup
from blink.hw.native.frontend_process import FrontendProcess
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.link import Message
from blink.hw.native.process import SchedulerProcess, Stop
from blink.hw.native.records import RecordReader
from blink.hw.native.run import MONOTONIC_CLOCK, monotonic_ns, settings_of
from blink.hw.ring import Records
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
_SILENCE_NS = 20_000_000_000
"""A drill in which no client is given anything for so long hangs. How long it takes in all depends on the machine."""
_LEAVE_LIMIT_S = 10.0
_STEPS_OF_RECOVERY = 4
_PAUSE_S = 0.0005
_NOBODY_READ_THE_RING = {"free": 0, "in_use": 0, "recovering": SLOT_COUNT}


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
        self._library = load_library(flags)
        settings = settings_of(case.scenario, plant, 1.0)
        self._settings = replace(
            settings, kv_block_count=case.kv_block_count, graph_timeout_ns=GRAPH_TIMEOUT_NS,
            trace_capacity=TRACE_CAPACITY,
        )  # fmt: skip
        self._rng = generator(case.seed, Stream.READS)
        self._counts = FaultCounts()
        self._clients = DrillClients(case, rows)
        self._faults = DrillFaults(case.plan, self, self._counts, self._rng)
        self._result = Drill(case.seed, case.plan, case.text, rows, case.probes)
        self._restart_at: tuple[int, Moment] | None = None
        self._ring: DrillRing | None = None
        self._start_ns = monotonic_ns()  # 0 of the traces
        self.begun_ns = 0  # 0 of the plan, on the traces' clock

    def _trace_ns(self) -> int:
        return monotonic_ns() - self._start_ns

    def _now(self) -> int:
        return self._trace_ns() - self.begun_ns

    # --- the loop ---

    def go(self, stop: Callable[[], bool] | None) -> Drill:
        """Everything until every client has an answer and the last ring has drained."""
        self._boot()
        self._start_clock()
        result, hang = self._result, ""
        while not self._over():
            self._turn()
            silence_ns = self._now() - self._clients.given_ns
            if silence_ns > _SILENCE_NS:
                hang = f"{silence_ns / 1e9:.0f} s brought nothing; {self._clients.open_count} requests have no answer"
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
        result.complaints += self._clients.close()
        result.counts = self._counts.counts
        return result

    def _start_clock(self) -> None:
        """The run begins once the first ring serves: from here on, times are those of the plan."""
        ring = self._ring
        assert ring is not None
        due = time.monotonic() + 20
        while not ring.ready and time.monotonic() < due:
            self._hear(ring, 0.05)
        self.begun_ns = self._trace_ns()

    def _over(self) -> bool:
        return self._served() and self._clients.over

    def _turn(self) -> None:
        self._clients_act()
        ring = self._ring
        if ring is None:
            self._boot()
            return
        now = self._now()  # one look at the clock: no fault of the plan is skipped by a turn that takes long
        self._faults.act(ring, now)
        self._hear(ring, _PAUSE_S)
        self._look_after(ring)
        if not self._faults.healed and now >= self._case.heal_ns and not self._faults.crash_is_sure:
            self._faults.heal(self._ring)

    def _clients_act(self) -> None:
        for request in self._clients.due(self._now(), served=self._served()):
            self._send(request)
        for request in self._clients.hanging_up(self._now()):
            self.hang_up(request)

    def _served(self) -> bool:
        """Whether the faults are over and somebody serves on a ring that is well."""
        ring = self._ring
        if not self._faults.healed or ring is None or not ring.is_served:
            return False
        if self._faults.crash is not None or self._restart_at is not None:
            return False  # a frontend is dying, whether it shows or not
        return not ring.instance.state()["failed"]

    def _send(self, request: Request) -> None:
        ring = self._ring
        if ring is None or ring.frontend is None:
            self._counts.add("requests refused: no frontend, or a ring that is given up")
            self._clients.answer(request, Outcome.REFUSED, self._now())
            return
        ring.frontend.send(
            "request", request.request_id, request.prompt_tokens, request.eos_at, request.output_tokens_max
        )

    # --- what its faults ask (blink.hw.native.drill_faults.Host) ---

    def open_requests(self) -> list[Request]:
        """Those that were sent and have no answer."""
        return self._clients.open_requests()

    def hang_up(self, request: Request) -> None:
        """Its client gives up."""
        request.cancelled_ns = self._now()
        ring = self._ring
        if ring is not None and ring.frontend is not None:
            ring.frontend.send("cancel", request.request_id)
        self._clients.answer(request, Outcome.CANCELLED, self._now())

    def kill_scheduler(self, ring: DrillRing) -> None:
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
        self._ring = ring = DrillRing(instance, scheduler, recorder, records, trace, owners)
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

    def _start_frontend(self, ring: DrillRing, *, recover: bool, die_at: int = -1) -> None:
        """The one that stands by, if there is one; another takes its place if the plan will want it."""
        config = self._case.scenario.frontend
        assert self._library.path is not None
        ring.started = ring.ready = False
        ring.frontend = ring.standby or FrontendProcess(ring.instance.shared)
        ring.standby = FrontendProcess(ring.instance.shared) if die_at >= 0 or self._faults.crash_to_come else None
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

    def _retire(self, ring: DrillRing, ended_by: str, slots: dict[str, int], *, drained: bool) -> None:
        """The ring is given up, or the drill is over: its processes end, its trace is complete."""
        self._drain(ring, ring.frontend.kill() if ring.frontend is not None else [])
        ring.close_frontends()
        self._clients.fail_all(self._now())
        if not ring.scheduler_dead and not ring.scheduler.stop(Stop.DRAIN if drained else Stop.ABORT):
            self._result.complaints.append("hang: the scheduler did not stop when it was told to")
        self._drain(ring, [])
        state = ring.instance.state()
        self._counts.add("KV blocks exhausted", state["wait_kv_ns"] > 0)
        ring.recorder.close(slots, complete=drained, idle_status_reads=0, dropped_by_gpu=state["trace_dropped"])
        self._result.lives.append(Life(ring.trace, slots, ended_by, drained))
        ring.close()
        self._ring = None

    def _finish(self) -> bool:
        """Let the last frontend drain its ring and leave; False if for a while nothing becomes of that."""
        ring = self._ring
        if ring is None or ring.frontend is None:
            return False
        ring.frontend.send("finish")
        busy, changed_s = SLOT_COUNT, time.monotonic()
        while self._ring is not None and time.monotonic() < changed_s + _LEAVE_LIMIT_S:
            if (left := ring.busy_count) != busy:
                busy, changed_s = left, time.monotonic()
            self._hear(ring, 0.02)
            self._look_after(ring)
        return self._ring is None

    def clean_up(self) -> None:
        """End whatever still runs."""
        ring, self._ring = self._ring, None
        if ring is None:
            return
        ring.close_frontends()
        ring.recorder.abort()
        ring.close()

    # --- what is heard ---

    def _hear(self, ring: DrillRing, wait_s: float) -> None:
        """What scheduler and frontend have said.

        The frontend's rows are read after the scheduler's records: what a record is about was sent before it was made.
        """
        records = ring.instance.drain()
        if ring.frontend is None:
            time.sleep(wait_s)
        self._take(ring, records, ring.frontend.receive(wait_s) if ring.frontend is not None else [])

    def _drain(self, ring: DrillRing, messages: list[Message]) -> None:
        """The same to the last record; `messages` are the last words of a frontend that is gone."""
        self._take(ring, ring.instance.drain(), messages)
        while (records := ring.instance.drain()).size:
            self._take(ring, records, [])

    def _take(self, ring: DrillRing, records: Records, messages: list[Message]) -> None:
        for what, *rest in messages:
            if what == "rows":
                ring.take_rows(self._clients.rows, *rest)
            elif what == "tokens":
                for request_id, start, end in rest[0]:
                    self._clients.deliver(request_id, start, end, self._now())
            elif what == "ended":
                self._clients.ended(self._now(), *rest)
            elif what == "count":
                self._counts.add(rest[0], rest[1])
            elif what == "given_up":
                self._counts.happened(FaultKind.STUCK_GRAPH)
                self._counts.add("watchdog gave a graph up")
            elif what == "restarting":
                ring.restarting = rest[0], rest[1]
            elif what == "restarted":
                ring.restarted()
            elif what == "ready":
                ring.ready = ring.started = True
            elif what == "disarmed":
                self._faults.crash = None
            elif what == "left":
                ring.last_word = rest[0], rest[1]
                self._count_frontend(rest[2])
        if records.size:
            ring.records.take(records)

    def _count_frontend(self, counters: dict[str, int]) -> None:
        if counters["wrong_tokens"]:
            self._result.complaints.append(f"I2: {counters['wrong_tokens']} tokens are not those that were sampled")
        self._counts.add("slots exhausted", counters["slots_in_use_max"] == SLOT_COUNT)

    def _look_after(self, ring: DrillRing) -> None:
        """A frontend that has ended without a word was killed: by the plan, or by itself at a point of the plan."""
        if ring.frontend is not None and ring.frontend.exit_code is not None:
            self._drain(ring, ring.frontend.kill())
            if ring.last_word is None:
                self._bury(ring, ring.frontend)
        if ring.last_word is not None:
            why, slots = ring.last_word
            gone = "the scheduler is gone" if ring.scheduler_dead else ""
            self._retire(ring, why or gone, slots, drained=slots["free"] == SLOT_COUNT)
        elif self._nobody_will_notice(ring):
            assert ring.frontend is not None
            ring.frontend.send("finish")  # whoever operates it steps in
            ring.told = True
        elif ring.frontend is None and self._restart_at is not None and self._restart_at[0] <= self._now():
            again = self._restart_at[1] is Moment.RECOVERY
            self._restart_at = None
            die_at = int(self._rng.integers(_STEPS_OF_RECOVERY)) if again else -1
            self._start_frontend(ring, recover=True, die_at=die_at)

    def _nobody_will_notice(self, ring: DrillRing) -> bool:
        """Whether the scheduler is dead and no request waits on it, so that its frontend does not watch its heart."""
        if not (self._faults.healed and ring.scheduler_dead and ring.ready) or ring.told:
            return False
        return not self._clients.open_requests()

    def _bury(self, ring: DrillRing, frontend: FrontendProcess) -> None:
        """E2 begins: the old process is gone, and so is all that it could still have written."""
        frontend.close()
        if ring.export is not None:
            ring.export.drop()
        if ring.restarting is not None and ring.instance.header_epoch == ring.restarting[1]:
            ring.restarted()
        self._counts.add("frontend crashes before the ring was adopted", not ring.ready)
        if frontend.exit_code != -signal.SIGKILL:
            self._result.complaints.append(f"the frontend's process ended by itself (exit code {frontend.exit_code})")
        self._counts.happened(FaultKind.FRONTEND_CRASH)
        if ring.started:
            ring.recorder.reader.add(event=Event.CRASHED, t_ns=self._trace_ns())
        ring.frontend, ring.restarting, ring.ready = None, None, False
        self._counts.add("requests failed by a frontend crash", self._clients.fail_all(self._now()))
        crash, self._faults.crash = self._faults.crash, None
        moment = "over its recovery" if crash is None else crash.moment.value
        self._counts.add(f"frontend died {moment}")
        if crash is None:
            self._restart_at = self._now(), Moment.ANY
        else:
            self._restart_at = self._now() + crash.duration_ns, crash.moment
