"""Serves a scenario with the native scheduler, in real time or as fast as it goes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from time import CLOCK_MONOTONIC, clock_gettime_ns
from typing import Any, Protocol

import numpy as np

from blink.common.config import Scenario
from blink.common.config.replica import require_replica
from blink.common.layout import layout_hash
from blink.common.ranges import range_notes
from blink.common.recorder import Recorder
from blink.common.request import Request, request_table
from blink.common.results import Outcome, RunResult, SchedulerCounters
from blink.common.states import SLOT_COUNT
from blink.common.trace import TraceHeader, open_writer
from blink.hw.native.clients import RealClients
from blink.hw.native.driver import EVIDENCE, Frontend, nap
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.process import SchedulerProcess, Stop, default_threads
from blink.hw.native.records import RecordReader
from blink.hw.native.settings import Durations, NativeSettings
from blink.hw.ring import Ring, Running
from blink.hw.texts import Texts
from blink.perf.admission import request_rows
from blink.perf.plant import Plant
from blink.workload.build import cancel_after_ns, load_notes, output_tokens_asked
from blink.workload.requests import Requests

Progress = Callable[[int, int, int], None]
MONOTONIC_CLOCK = {
    "frontend": {"name": "monotonic", "unit": "ns"},
    "gpu": {"name": "monotonic", "unit": "ns"},
    "shared": True,
}
"""Both processes read the machine's monotonic clock; times count from the start of the run."""
GRAPH_TIMEOUT_FACTOR = 20
GRAPH_TIMEOUT_MIN_NS = 2_000_000_000
_CHECK_NS = 20_000_000
_KV_BLOCKS_MAX = 1 << 22


def monotonic_ns() -> int:
    """The clock that the scheduler's process reads, too."""
    return clock_gettime_ns(CLOCK_MONOTONIC)


def serve(
    scenario: Scenario,
    requests: Requests,
    *,
    trace_path: Path | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    time_scale: float = 1.0,
    threads: int | None = None,
    flags: tuple[str, ...] = (),
) -> RunResult:
    """Serve these requests with the scheduler in a process of its own.

    Every time of the scenario (arrivals, patience, durations of graphs) is multiplied by `time_scale`; 0 is as fast as
    it goes. `progress(ended, total, now_ns)` is called now and then; once `stop()` is true the run ends early and its
    result is partial. `threads` scan the ring; `flags` go to the compiler. Raises InputError for what cannot run.
    """
    require_replica(scenario, "backend native")
    plant = Plant.of(scenario)
    instance = Instance(load_library(flags), settings_of(scenario, plant, time_scale))
    try:
        process = SchedulerProcess(instance, threads or default_threads())
        return serve_over(
            scenario, requests, admitted(scenario, requests, plant), instance, process, MONOTONIC_CLOCK,
            trace_path=trace_path, progress=progress, stop=stop, time_scale=time_scale, step=plant.step,
        )  # fmt: skip
    finally:
        instance.close()


class StepRanges(Protocol):
    """Says which durations that were asked of a model of steps lie outside the range that it was measured in."""

    def range_violations(self, observed: dict[str, tuple[int, int]]) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Admitted:
    """Requests as their clients send them, why some will be refused, and notes for the report."""

    rows: list[Request]
    refusals: dict[int, str]
    notes: list[str]


def admitted(scenario: Scenario, requests: Requests, plant: Plant) -> Admitted:
    """What a plant can serve of a load."""
    asked = output_tokens_asked(scenario, requests)
    return Admitted(*request_rows(plant, scenario.limits.output_capacity_tokens, requests, asked))


def serve_over(
    scenario: Scenario,
    requests: Requests,
    load: Admitted,
    ring: Ring,
    running: Running,
    clock: dict[str, Any],
    *,
    trace_path: Path | None,
    progress: Progress | None,
    stop: Callable[[], bool] | None,
    time_scale: float,
    texts: Texts | None = None,
    step: StepRanges | None = None,
) -> RunResult:
    """Serve these requests over a ring with the scheduler that runs over it, which has ended afterwards.

    `clock` is what the trace says of its times. With `texts` a model samples in place of the stub; `step` gave the
    stub's durations.
    """
    notes = list(load.notes)
    try:
        recorder = recorder_of(scenario, requests, trace_path, ring.backend, clock)
        try:
            run = RingRun(scenario, load.rows, load.refusals, requests, ring, recorder, time_scale, texts)
            run.go(running, progress, stop)
            if time_scale and step:  # else no duration of the model was used
                notes += range_notes(step.range_violations(run.observed()))
            result = run.result(load_notes(scenario, requests) + notes)
            run.close_trace()
        except BaseException:
            if recorder:
                recorder.abort()
            raise
    finally:
        running.kill()
    return result


def settings_of(scenario: Scenario, plant: Plant, time_scale: float) -> NativeSettings:
    """The scheduler's settings for a scenario on this plant."""
    limits = scenario.limits
    durations = Durations.of(plant.step, plant.prefill_table, plant.decode_table, time_scale)
    longest_ns = int(max(durations.prefill_ns.max(), durations.decode_ns.max()))
    return NativeSettings(
        limits=plant.limits,
        prefill_table=plant.prefill_table,
        decode_table=plant.decode_table,
        kv_block_count=min(plant.memory.kv_block_count, _KV_BLOCKS_MAX),
        prompt_area_tokens=SLOT_COUNT * limits.prompt_capacity_tokens,
        output_capacity_tokens=limits.output_capacity_tokens,
        slot_count=SLOT_COUNT,
        durations=durations,
        time_limit_ns=round(limits.time_limit_ns * time_scale),
        graph_timeout_ns=max(GRAPH_TIMEOUT_MIN_NS, GRAPH_TIMEOUT_FACTOR * longest_ns),
        boot_id=scenario.seed,
    )


class RingRun:
    """The loop of one run over a ring, and what comes of it."""

    def __init__(
        self,
        scenario: Scenario,
        rows: list[Request],
        refusals: dict[int, str],
        load: Requests,
        ring: Ring,
        recorder: Recorder | None,
        time_scale: float,
        texts: Texts | None = None,
    ) -> None:
        self._scenario, self._rows, self._refusals, self._ring = scenario, rows, refusals, ring
        self._rec = recorder
        self._start_ns = monotonic_ns()
        arrivals = scenario.workload.arrivals
        concurrency = arrivals.concurrency if arrivals is not None and arrivals.kind == "closed-loop" else None
        patience = cancel_after_ns(scenario, load)
        self.clients = RealClients(rows, load, patience, concurrency, time_scale)
        frontend = scenario.frontend
        self.frontend = Frontend(
            ring, self.now, self.clients.ended, recorder,
            prompt_area_tokens=ring.settings.prompt_area_tokens,
            reads_max=frontend.token_reads_per_poll_max,
            burst_max=frontend.submissions_per_burst_max,
            queue_max=frontend.queue_max,
            texts=texts,
        )  # fmt: skip
        self._records = RecordReader(recorder, self.frontend.request_of)
        self._partial = False
        self._lost = False  # the scheduler died: its last records may be missing
        self._notes: list[str] = []
        self._end_ns = 0

    def now(self) -> int:
        """Nanoseconds since the start of the run."""
        return monotonic_ns() - self._start_ns

    # --- the loop ---

    def go(self, process: Running, progress: Progress | None, stop: Callable[[], bool] | None) -> None:
        """Serve until every request is over and every slot is free again, or until something ends the run early."""
        process.wait_until_up()
        self._start_ns = monotonic_ns()
        self._records.start_ns = process.record_ns(self._start_ns)
        checked_ns, quiet = 0, 0
        while self.clients.open_count or self.frontend.in_ring_count:
            busy = self._cycle()
            now = self.now()
            quiet = 0 if busy else quiet + 1
            if not busy:
                nap(self.clients.next_ns(), now, quiet, self.frontend.in_ring_count)
            if now - checked_ns < _CHECK_NS:
                continue
            checked_ns = now
            if progress:
                progress(len(self._rows) - self.clients.open_count, len(self._rows), now)
            if stop and stop():
                self._partial = True
                break
            if not self._healthy(process):
                break
        self._finish(process)

    def _cycle(self) -> bool:
        """Everything that is due now; False if nothing was."""
        busy = False
        for request in self.clients.due(self.now()):
            busy = True
            reason = self._refusals.get(request.request_id) or self.frontend.receive(request)
            if reason is not None:
                self._refuse(request, reason)
        busy = self.frontend.post() or busy  # one burst, so that what arrives meanwhile is read before the next
        for request in self.clients.hanging_up(self.now()):
            if request.outcome is Outcome.UNFINISHED:
                busy = True
                self.frontend.cancel(request)
        busy = self.frontend.poll() or busy
        self._drain()
        return busy

    def _refuse(self, request: Request, reason: str) -> None:
        self._refusals[request.request_id] = reason
        request.outcome = Outcome.REFUSED
        self.clients.ended(request, self.now())

    def _drain(self) -> None:
        while (records := self._ring.drain()).size:
            self._records.take(records)
        if self._rec and self._rec.due():
            self._rec.flush(self._records.last_ns)

    def _healthy(self, process: Running) -> bool:
        fault = process.fault()
        if fault is not None:
            self._partial = self._lost = True
            self._notes.append(fault)
            return False
        if self._ring.state()["failed"]:
            self._give_up()
        return True

    def _give_up(self) -> None:
        """A graph hangs: the scheduler has aborted what ran and launches nothing any more."""
        note = "a graph was overdue: the scheduler gave up its requests and serves no more"
        if note not in self._notes:
            self._notes.append(note)
        for request in self.frontend.unfinished():
            self.frontend.cancel(request, Outcome.FAILED)

    def _finish(self, process: Running) -> None:
        self._end_ns = self.now()
        if not self._lost:
            self._lost = not process.stop(Stop.ABORT if self._partial else Stop.DRAIN)
        self._drain()

    # --- what comes of it ---

    def observed(self) -> dict[str, tuple[int, int]]:
        """What was asked of the step model. Call after `go`."""
        whole = not self._lost and not self._ring.state()["trace_dropped"]
        return self._records.asked.observed(whole=whole)

    def result(self, notes: list[str]) -> RunResult:
        """Columns and counters of the run. Call after `go`."""
        table = request_table(self._rows)
        state = self._ring.state()
        counters = self.frontend.counters
        scheduler = SchedulerCounters(
            kv_blocks_total=self._ring.settings.kv_block_count,
            batch_limit=self._ring.settings.limits.batch_max,
            slots_in_use_max=counters.slots_in_use_max,
            wait_slot_ns=counters.wait_slot_ns,
        )
        for field in fields(SchedulerCounters):
            if field.name in state:
                setattr(scheduler, field.name, state[field.name])
        if counters.wrong_tokens:
            notes = [
                *notes,
                f"{counters.wrong_tokens} tokens differ from what the engine sampled: the ring is broken",
            ]
        if state["trace_dropped"]:
            notes = [*notes, f"{state['trace_dropped']} events of the scheduler were dropped from the trace"]
        sent = table["sent_ns"][table["sent_ns"] >= 0]
        start = int(sent.min()) if sent.size else 0
        end = max(int(table["last_token_ns"].max(initial=0)), int(sent.max(initial=0)))
        return RunResult(
            scenario=self._scenario.resolved(),
            requests=table,
            refusals=dict(sorted(self._refusals.items())),
            itl=self.frontend.gaps(),
            scheduler=scheduler,
            duration_ns=end - start,
            partial=self._partial,
            notes=[*notes, *self._notes],
            counters={
                field.name: getattr(counters, field.name)
                for field in fields(counters)
                if field.name not in ("slots_in_use_max", "wait_slot_ns")
            },
        )

    def close_trace(self) -> None:
        """Write the footer; a trace whose end may be missing says so."""
        if self._rec is None:
            return
        slots = self.frontend.slots
        self._rec.close(
            {"free": slots.free_count, "in_use": slots.in_use_count, "recovering": slots.recovering_count},
            complete=not self._partial,
            idle_status_reads=self.frontend.counters.idle_status_reads,
            dropped_by_gpu=self._ring.state()["trace_dropped"] + self._lost,
        )


def recorder_of(
    scenario: Scenario, load: Requests, trace_path: Path | None, backend: str, clock: dict[str, Any]
) -> Recorder | None:
    """A recorder of both sides of a run; None where no trace is wanted."""
    if trace_path is None:
        return None
    resolved = scenario.resolved()
    digest = hashlib.blake2b(json.dumps(resolved, sort_keys=True).encode(), digest_size=8)
    for column in (load.arrival_ns, load.prompt_tokens, load.output_tokens):
        digest.update(np.ascontiguousarray(column).tobytes())
    header = TraceHeader(
        run=digest.hexdigest(),
        backend=backend,
        seed=scenario.seed,
        layout_hash=layout_hash(),
        configuration=resolved,
        clock=clock,
        token_reads=scenario.trace.token_reads,
        evidence=EVIDENCE,
    )
    writer = open_writer(trace_path, header)
    return Recorder(writer, reads_each=scenario.trace.token_reads == "each", evidence=EVIDENCE)
