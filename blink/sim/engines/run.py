"""Runs a scenario of a host-driven engine: wires server, core and text path together and gathers the result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path as FilePath

from blink.common.config import Scenario
from blink.common.config.system import HostDrivenSystem
from blink.common.lifecycle import LifeHeader, LifeWriter
from blink.common.ranges import range_notes
from blink.common.request import Request, request_table
from blink.common.results import Outcome, RunResult
from blink.perf.admission import Bounds, bounded_rows, cut_note
from blink.perf.energy import account
from blink.perf.host.scenario import host_conditions
from blink.sim.client import Clients, Ends
from blink.sim.clock import Clock
from blink.sim.engines import sglang, trtllm, vllm
from blink.sim.engines.blocks import BlockPool
from blink.sim.engines.core import CoreSettings, EngineCore
from blink.sim.engines.host import Conditions, HostThread
from blink.sim.engines.layout import Layout
from blink.sim.engines.lifecycle import LifecycleRecorder
from blink.sim.engines.plant import EnginePlant
from blink.sim.engines.sequence import Sequence
from blink.sim.engines.server import Server, ServerThreads
from blink.sim.engines.text import TextPath, TextThreads
from blink.sim.options import reuse_of
from blink.sim.run_loop import Progress, TraceSettings, drain, run_digest
from blink.sim.topology import Path, topology
from blink.workload.build import cancel_after_ns, load_notes, output_tokens_asked
from blink.workload.message import MessageProfile
from blink.workload.requests import Requests
from blink.workload.streams import Stream, generator

LAYOUTS: dict[str, Layout] = {"vllm": vllm.LAYOUT, "sglang": sglang.LAYOUT, "trtllm": trtllm.LAYOUT}


def simulate_engine(
    scenario: Scenario,
    system: HostDrivenSystem,
    requests: Requests,
    *,
    trace_path: FilePath | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    conditions: Conditions | None = None,
) -> RunResult:
    """As `blink.sim.run.simulate`, for a host-driven engine; `conditions` take the place of the scenario's host."""
    model = EngineModel(scenario, system, requests, trace_path, conditions)
    try:
        partial = model.run(progress, stop)
        result = model.result(partial)
        result.accounts = account(scenario, result)
        if model.recorder:
            model.recorder.close(complete=not partial)
    except BaseException:
        if model.recorder:
            model.recorder.abort()
        raise
    return result


class EngineModel:
    """All parts of one run, wired together."""

    def __init__(
        self,
        scenario: Scenario,
        system: HostDrivenSystem,
        load: Requests,
        trace_path: FilePath | None,
        conditions: Conditions | None,
        env: Clock | None = None,
        ends: Ends | None = None,
        plant: EnginePlant | None = None,
        received: bool = False,
        trace: TraceSettings | None = None,
    ) -> None:
        """`env` and `ends`: of a fleet, in which others keep the time and send the requests, by `receive`.

        `received`: other replicas send it keys and values of prompts. `trace`: how a fleet has its replicas record.
        """
        self._scenario, self._load = scenario, load
        self._plant = plant = plant or EnginePlant.of(scenario, system)
        self._layout = layout = LAYOUTS[system.kind]
        self._env = self.env = env = env or Clock()
        self._threads: list[HostThread] = []
        self._messages = MessageProfile.load()
        self._rows: list[Request] = []
        self._refusals: dict[int, str] = {}
        self._cut = 0
        if ends is None:
            asked = output_tokens_asked(scenario, load)
            self._rows, self._refusals, self._cut = bounded_rows(bounds_of(plant), load, asked)
        self.recorder = None
        if trace_path is not None:
            settings = trace or TraceSettings(run_digest(scenario, load))
            writer = LifeWriter(trace_path, _header(scenario, plant, settings.run))
            more = {} if settings.flush_rows is None else {"flush_rows": settings.flush_rows}
            self.recorder = LifecycleRecorder(env, writer, len(load), **more)
        host = conditions or host_conditions(scenario, layout.busy_threads)
        graph = topology(scenario)
        self._wire(host, Path(graph, "client", "dpu"), Path(graph, "dpu", "client"), received)
        arrivals = scenario.workload.arrivals
        concurrency = arrivals.concurrency if arrivals is not None and arrivals.kind == "closed-loop" else None
        patience = cancel_after_ns(scenario, load)
        self.clients = Clients(env, self._rows, load, patience, concurrency, self._send, self.server.cancel)
        self._ends: Ends = ends or self.clients
        self.server.ended = self._ends.ended

    def _wire(self, host: Conditions, to_host: Path, to_client: Path, received: bool) -> None:
        """Threads and what they work on. The clients' network ends at the host as it ends at the DPU with Blink."""
        plant, layout, seed = self._plant, self._layout, self._scenario.seed

        def thread(stream: Stream) -> HostThread:
            self._threads.append(HostThread(host, generator(seed, stream)))
            return self._threads[-1]

        profile = plant.profile
        loop = thread(Stream.API_SERVER)
        detokenizer = thread(Stream.DETOKENIZER) if layout.detokenizer_process else None
        tokenizer = thread(Stream.TOKENIZER) if layout.tokenizer_thread else None
        intake = thread(Stream.EXECUTOR_INTAKE) if layout.compiled_core else None
        response = thread(Stream.EXECUTOR_OUTPUT) if layout.compiled_core else None
        delivery_ns = to_client.one_way_ns(self._messages.chunk_bytes)
        self.text = TextPath(profile, TextThreads(loop, detokenizer, response), delivery_ns, len(self._load))
        self.server = Server(
            self._env, profile, ServerThreads(loop, tokenizer, intake), to_host, plant.limits.block_tokens,
            self.text, self.recorder,
        )  # fmt: skip
        watermark = int(plant.block_count * profile.watermark_share)
        pool = BlockPool(plant.block_count, watermark, caching=plant.system.prefix_caching)
        self._observer = Admissions(self._env, self.recorder)
        self.batching = layout.batching(plant.limits, pool, self._observer, profile)
        self.batching.reuse = reuse_of(self._scenario, self._load, plant.step, received=received)
        settings = CoreSettings(plant.limits.overlap, plant.system.cuda_graphs, layout.compiled_core)
        self.core = EngineCore(
            self._env, profile, plant.step, self.batching, thread(Stream.ENGINE_CORE), settings, self.server,
            self.recorder,
        )  # fmt: skip
        self.server.core = self.core

    def _send(self, request: Request) -> None:
        if request.request_id in self._refusals:
            request.outcome = Outcome.REFUSED
            self._ends.ended(request, self._env.now)
            return
        self.server.receive(request, self._messages.request_bytes(request.prompt_tokens))

    def start(self) -> None:
        """The core begins now."""
        self._env.process(self.core.run())

    def receive(self, request: Request) -> None:
        """A request of a fleet is handed to this replica now."""
        self._rows.append(request)
        self._send(request)

    def cancel(self, request: Request) -> None:
        """The client of a request that was handed to this replica hangs up now."""
        self.server.cancel(request)

    @property
    def running_count(self) -> int:
        """Sequences that hold a place in the batch."""
        return self.batching.running_count

    def run(self, progress: Progress | None, stop: Callable[[], bool] | None) -> bool:
        """Let time pass until nothing is left to happen; True if it was stopped before."""
        self.start()
        self._env.process(self.clients.run())
        return drain(self._env, self.clients, len(self._rows), progress, stop)

    def observed(self) -> dict[str, tuple[int, int]]:
        """What was asked of the step model."""
        return self.core.ranges.observed()

    def result(self, partial: bool) -> RunResult:
        """Columns and counters of the run."""
        notes = load_notes(self._scenario, self._load)
        if self._cut:
            notes.append(cut_note(bounds_of(self._plant), self._cut))
        notes += range_notes(self._plant.step.range_violations(self.observed()))
        table = request_table(self._rows)
        sent = table["sent_ns"][table["sent_ns"] >= 0]
        start = int(sent.min()) if sent.size else 0
        end = max(self.core.last_end_ns, int(table["last_token_ns"].max(initial=0)), int(sent.max(initial=0)))
        return RunResult(
            scenario=self._scenario.resolved(),
            requests=table,
            refusals=dict(sorted(self._refusals.items())),
            itl=self.text.gaps.total(),
            scheduler=self.core.counters,
            duration_ns=end - start,
            partial=partial,
            notes=notes,
            counters={
                "steps": self.core.steps,
                "preemptions": self.batching.preemptions,
                "recomputed_tokens": self.batching.recomputed_tokens,
                "cached_tokens": self.batching.cached_tokens,
                **(self.batching.reuse.counters() if self.batching.reuse else {}),
                "host_cpu_ns": sum(thread.busy_ns for thread in self._threads),
            },
        )


class Admissions:
    """Notes when a request is admitted first, and tells the recorder of it."""

    def __init__(self, env: Clock, recorder: LifecycleRecorder | None) -> None:
        self._env, self._rec = env, recorder

    def admitted(self, sequence: Sequence, resumed: bool) -> None:
        """It has a place and blocks."""
        if not resumed:
            sequence.request.claimed_ns = self._env.now
        if self._rec:
            self._rec.admitted(sequence, resumed)

    def preempted(self, sequence: Sequence) -> None:
        """It lost both."""
        if self._rec:
            self._rec.preempted(sequence)


def bounds_of(plant: EnginePlant) -> Bounds:
    """What a request of an engine must keep to."""
    longest, rule = plant.context_tokens - 1, f"the context holds {plant.context_tokens - 1} and one of output"
    if not plant.limits.chunked and plant.limits.tokens_max < longest:
        longest = plant.limits.tokens_max
        rule = f"a step without chunked prefill holds {longest}"
    cut = f"the context ({plant.context_tokens} tokens) holds"
    return Bounds(
        plant.context_tokens, longest, rule, plant.context_tokens, plant.limits.block_tokens, plant.block_count, cut
    )


def _header(scenario: Scenario, plant: EnginePlant, run: str) -> LifeHeader:
    return LifeHeader(
        run=run,
        seed=scenario.seed,
        max_num_seqs=plant.limits.seqs_max,
        max_num_batched_tokens=plant.limits.tokens_max,
        kv_blocks=plant.block_count,
        kv_block_tokens=plant.limits.block_tokens,
        chunked_prefill=plant.limits.chunked,
        configuration=scenario.resolved(),
    )
