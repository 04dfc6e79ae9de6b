"""Runs a scenario: builds the model, lets virtual time pass until everything has drained, gathers the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as FilePath

from blink.common import policy
from blink.common.config import Scenario
from blink.common.config.system import CpuResidentSystem, HostDrivenSystem
from blink.common.errors import InputError
from blink.common.layout import layout_hash
from blink.common.ranges import range_notes
from blink.common.recorder import Recorder
from blink.common.request import Request, request_table
from blink.common.results import Outcome, RunResult
from blink.common.ring import Ring
from blink.common.states import SLOT_COUNT
from blink.common.trace import VIRTUAL_CLOCK, TraceHeader, open_writer
from blink.common.units import KIB
from blink.frontend.prompt_area import PromptArea
from blink.frontend.request_tracker import RequestTracker
from blink.frontend.slot_tracker import SlotTracker
from blink.frontend.submission import Submitter
from blink.frontend.token_reader import PollSchedule, TokenReader
from blink.perf.admission import request_rows
from blink.perf.energy import account
from blink.perf.host.scenario import host_conditions
from blink.perf.host_engine import HostEngineProfile
from blink.perf.plant import Plant
from blink.perf.serving import served, served_gpu
from blink.perf.throttle import Throttle
from blink.sim.client import Clients, Ends
from blink.sim.clock import Clock
from blink.sim.dpu import Cores, Dpu
from blink.sim.engines.run import simulate_engine
from blink.sim.gpu import Gpu
from blink.sim.gpu_settings import GpuSettings
from blink.sim.options import gpu_options
from blink.sim.overheads import DeviceOverheads, HostOverheads, StepOverheads
from blink.sim.run_loop import Progress, TraceSettings, drain, run_digest
from blink.sim.token_path import ReadCosts, TextCosts, TokenPath
from blink.sim.topology import Path, topology
from blink.workload.build import cancel_after_ns, load_notes, output_tokens_asked
from blink.workload.message import MessageProfile
from blink.workload.requests import Requests
from blink.workload.streams import Stream, generator

_NO_WINDOW = 1 << 40
ROOM_SHARE = 16
"""Of a replica's trace: rows that are held over rows that a stream has room for at first."""


def simulate(
    scenario: Scenario,
    requests: Requests,
    *,
    trace_path: FilePath | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> RunResult:
    """Simulate a scenario on these requests.

    `scenario.system.kind` says which serving stack. Writes the trace (of slot transitions; of requests and steps for a
    host-driven engine) to `trace_path` if given (renamed into place at the end). `progress(ended, total,
    now_ns)` is called now and then; once `stop()` is true the run ends early and its result is marked partial.
    Raises InputError for what cannot run.
    """
    if scenario.fleet is not None:
        from blink.sim.fleet.run import simulate_fleet  # it is made of what stands here

        return simulate_fleet(scenario, requests, trace_path=trace_path, progress=progress, stop=stop)
    system = scenario.system
    if isinstance(system, HostDrivenSystem):
        return simulate_engine(scenario, system, requests, trace_path=trace_path, progress=progress, stop=stop)
    plant = Plant.of(scenario)
    asked = output_tokens_asked(scenario, requests)
    rows, refusals, notes = request_rows(plant, scenario.limits.output_capacity_tokens, requests, asked)
    recorder = recorder_of(scenario, requests, trace_path)
    model = Model(scenario, plant, rows, refusals, requests, recorder)
    try:
        partial = model.run(progress, stop)
        notes += range_notes(plant.step.range_violations(model.observed()))
        result = model.result(load_notes(scenario, requests) + notes, partial)
        result.accounts = account(scenario, result)
        model.close_trace(complete=not partial)
    except BaseException:
        if recorder:
            recorder.abort()
        raise
    return result


class Model:
    """All parts of one run, wired together."""

    def __init__(
        self,
        scenario: Scenario,
        plant: Plant,
        rows: list[Request],
        refusals: dict[int, str],
        load: Requests,
        recorder: Recorder | None,
        path: type[TokenPath] = TokenPath,
        env: Clock | None = None,
        ends: Ends | None = None,
        received: bool = False,
        engines: int = 1,
    ) -> None:
        """`env` and `ends`: of a fleet, in which others keep the time and send the requests, by `receive`.

        `received`: other replicas send it keys and values of prompts. `engines` of its kind stand on its host.
        """
        self._scenario, self._plant, self._rows, self._refusals, self._rec = scenario, plant, rows, refusals, recorder
        self._env = self.env = env = env or Clock()
        self._messages = MessageProfile.load()
        stepwise = scenario.run.mode == "step"
        graph = topology(scenario)
        to_dpu, to_client = Path(graph, "client", "dpu"), Path(graph, "dpu", "client")
        to_gpu, from_gpu = Path(graph, "dpu", "gpu"), Path(graph, "gpu", "dpu")
        self._to_gpu = to_gpu
        phase = int(generator(scenario.seed, Stream.PHASE).integers(plant.gpu.scan_ns))
        ring = self.ring = Ring.in_memory(boot_id=scenario.seed)
        overheads, limits = overheads_of(scenario, plant, engines)
        settings = GpuSettings(
            limits,
            plant.prefill_table,
            plant.decode_table,
            plant.memory.kv_block_count,
            scenario.limits.time_limit_ns,
            stepwise,
            throttle=Throttle.of(plant.gpu, plant.step.prefill_busy),
            options=gpu_options(scenario, load, plant.step, received=received),
        )
        by_id = self.requests = {request.request_id: request for request in rows}
        self.gpu = Gpu(env, ring, overheads, plant.step, settings, by_id, recorder, phase)
        frontend = scenario.frontend
        read = read_costs(plant, to_gpu, from_gpu)
        by_slot: dict[int, Request] = {}
        reader = TokenReader(frontend.token_reads_per_poll_max)
        cycle_ns = read.request_ns + read.status_ns
        schedule = PollSchedule(frontend.poll_min_ns, frontend.poll_max_ns, cycle_ns)
        cores, workers = _cores(scenario, plant)
        text = TextCosts(
            workers,
            plant.dpu.sse_chunk_ns,
            plant.dpu.detokenize_ns(1),
            to_client.one_way_ns(self._messages.chunk_bytes),
        )
        self.path = path(env, ring, self.gpu, reader, schedule, read, text, by_slot, recorder, stepwise=stepwise)
        self.gpu.listener = self.path
        self.slots = SlotTracker()
        prompts = PromptArea(SLOT_COUNT * scenario.limits.prompt_capacity_tokens)
        submitter = Submitter(
            self.slots,
            prompts,
            scenario.limits.output_capacity_tokens,
            burst_max=frontend.submissions_per_burst_max,
        )
        tracker = RequestTracker(self.slots, prompts)
        self.dpu = Dpu(
            env, ring, self.gpu, self.path, plant.dpu, cores, to_dpu, to_gpu, self.slots, submitter, tracker, by_slot,
            recorder, queue_max=frontend.queue_max,
        )  # fmt: skip
        arrivals = scenario.workload.arrivals
        concurrency = arrivals.concurrency if arrivals is not None and arrivals.kind == "closed-loop" else None
        patience = cancel_after_ns(scenario, load)
        self.clients = Clients(env, rows, load, patience, concurrency, self._send, self.dpu.cancel)
        self._ends: Ends = ends or self.clients
        self.path.completed = self._completed
        self.dpu.refuse = self._refuse

    def _send(self, request: Request) -> None:
        if request.request_id in self._refusals:
            request.outcome = Outcome.REFUSED
            self._ends.ended(request, self._env.now)
            return
        self.dpu.receive(request, self._messages.request_bytes(request.prompt_tokens))

    def _refuse(self, request: Request, reason: str) -> None:
        self._refusals[request.request_id] = reason
        request.outcome = Outcome.REFUSED
        self._ends.ended(request, self._env.now)

    def _completed(self, request: Request) -> None:
        if request.outcome is not Outcome.CANCELLED:  # a client that hung up has gone already
            self._ends.ended(request, max(request.last_token_ns, self._env.now))

    def start(self) -> None:
        """The scheduler begins now."""
        self._env.process(self.gpu.run())

    def receive(self, request: Request) -> None:
        """A request of a fleet is handed to this replica now."""
        self._rows.append(request)
        self.requests[request.request_id] = request
        self._send(request)

    def cancel(self, request: Request) -> None:
        """The client of a request that was handed to this replica hangs up now."""
        self.dpu.cancel(request)

    @property
    def running_count(self) -> int:
        """Sequences that hold a place in the batch."""
        return self.gpu.running_count

    def run(self, progress: Progress | None, stop: Callable[[], bool] | None) -> bool:
        """Let time pass until nothing is left to happen; True if it was stopped before."""
        self.start()
        self._env.process(self.clients.run())
        return drain(self._env, self.clients, len(self._rows), progress, stop, self.flush_trace)

    def flush_trace(self) -> None:
        """Write what can be written of the trace, if enough of it is held."""
        if self._rec and self._rec.due():
            self._rec.flush(min(self.gpu.rows_from_ns, self.path.rows_from_ns))

    def cut_trace(self) -> None:
        """What happens from now on stays out of the trace, if there is one."""
        if self._rec:
            self._rec.cut(self._env.now, self.path.idle_status_reads)

    def close_trace(self, *, complete: bool) -> None:
        """Write what is left of the trace, if there is one, and its footer."""
        if self._rec:
            slots = self.slots
            counts = {"free": slots.free_count, "in_use": slots.in_use_count, "recovering": slots.recovering_count}
            self._rec.close(counts, complete=complete, idle_status_reads=self.path.idle_status_reads)

    def observed(self) -> dict[str, tuple[int, int]]:
        """What was asked of the step model."""
        return self.gpu.ranges.observed()

    def result(self, notes: list[str], partial: bool) -> RunResult:
        """Columns and counters of the run."""
        counters = self.gpu.counters
        dpu = self.dpu.counters
        counters.wait_slot_ns, counters.slots_in_use_max = dpu.wait_slot_ns, dpu.slots_in_use_max
        table = request_table(self._rows)
        sent = table["sent_ns"][table["sent_ns"] >= 0]
        start = int(sent.min()) if sent.size else 0
        end = max(self.gpu.last_end_ns, int(table["last_token_ns"].max(initial=0)), int(sent.max(initial=0)))
        return RunResult(
            scenario=self._scenario.resolved(),
            requests=table,
            refusals=dict(sorted(self._refusals.items())),
            itl=self.path.gaps.total(),
            scheduler=counters,
            duration_ns=end - start,
            partial=partial,
            notes=notes,
            counters={
                "status_reads": self.path.status_reads,
                "idle_status_reads": self.path.idle_status_reads,
                "writes": dpu.writes,
                "postings": dpu.postings,
                "submissions": dpu.submissions,
                "waiting_for_slot_max": dpu.waiting_max,
                "bytes_written": self._to_gpu.bytes_sent,
                **self._host_counters(end - start),
                **self.gpu.reuse_counters(),
            },
        )

    def _host_counters(self, duration_ns: int) -> dict[str, int]:
        """A scheduler on the CPU keeps one core busy throughout: it spins where it does not work."""
        return {"host_cpu_ns": duration_ns} if self._scenario.system.kind == "cpu-resident" else {}


def overheads_of(scenario: Scenario, plant: Plant, engines: int = 1) -> tuple[StepOverheads, policy.Limits]:
    """Where the scheduler runs. A host thread launches as often as it likes: it has no window to renew.

    `engines` of its kind stand on its host, this one too.
    """
    system = scenario.system
    if not isinstance(system, CpuResidentSystem):
        return DeviceOverheads(served_gpu(plant.gpu, scenario)), plant.limits
    profile = served(HostEngineProfile.load(system.profile), scenario)
    rng = generator(scenario.seed, Stream.CPU_SCHEDULER)
    overheads = HostOverheads(profile, host_conditions(scenario, 1, engines), rng)
    return overheads, replace(plant.limits, window=_NO_WINDOW)


def _cores(scenario: Scenario, plant: Plant) -> tuple[Cores, int]:
    """Cores for HTTP and tokenizing, and the number of detokenizers; one core is the token reader's."""
    count = scenario.dpu.cores or plant.dpu.core_count
    token_cores = scenario.dpu.token_cores
    if not 2 <= token_cores < count:
        raise InputError(
            f"dpu.token_cores = {token_cores}: must be between 2 (a token reader and a detokenizer) and {count - 1} "
            f"(of {count} cores, one must be left for HTTP and tokenizing)"
        )
    return Cores(count - token_cores), token_cores - 1


def read_costs(plant: Plant, to_gpu: Path, from_gpu: Path) -> ReadCosts:
    dpu, request_ns = plant.dpu, to_gpu.one_way_ns(0)
    done_ns = from_gpu.one_way_ns(64 * KIB) + dpu.completion_ns
    return ReadCosts(
        request_ns=request_ns,
        status_done_ns=done_ns,
        status_ns=done_ns + dpu.status_scan_ns,
        slot_ns=dpu.token_read_ns_per_slot + dpu.verb_post_ns,
        tokens_ns=request_ns + from_gpu.one_way_ns(KIB) + dpu.completion_ns,
    )


def recorder_of(
    scenario: Scenario, load: Requests, trace_path: FilePath | None, settings: TraceSettings | None = None
) -> Recorder | None:
    """The recorder of a run's trace; None without a path. `settings`: of a fleet."""
    if trace_path is None:
        return None
    settings = settings or TraceSettings(run_digest(scenario, load))
    header = TraceHeader(
        run=settings.run,
        backend="sim",
        seed=scenario.seed,
        layout_hash=layout_hash(),
        configuration=scenario.resolved(),
        clock=VIRTUAL_CLOCK,
        token_reads=scenario.trace.token_reads,
    )
    writer, each, held = open_writer(trace_path, header), scenario.trace.token_reads == "each", settings.flush_rows
    if held is None:
        return Recorder(writer, reads_each=each)
    return Recorder(writer, reads_each=each, flush_rows=held, initial_rows=held // ROOM_SHARE)
