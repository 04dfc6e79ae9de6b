"""Serving with a model: the scheduler's settings from an engine, prompts that the model knows, texts that it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from blink.common.config import Scenario
from blink.common.events import GraphKind
from blink.common.policy import PADDING_TOKENS_MAX, RESUME_AFTER_TOKENS, Limits
from blink.common.request import Request
from blink.common.results import RunResult
from blink.common.states import SLOT_COUNT
from blink.hw.cuda.host_scheduler import HostCalls, HostRing, HostScheduler
from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.lockstep import load_kernels
from blink.hw.cuda.marks import GraphMarks
from blink.hw.cuda.ports import Ingress
from blink.hw.cuda.ring import CudaRing
from blink.hw.cuda.run import GPU_CLOCK
from blink.hw.cuda.scheduler import CudaScheduler
from blink.hw.engines.contract import Described, Engine
from blink.hw.native.library import load_library
from blink.hw.native.run import GRAPH_TIMEOUT_MIN_NS, MONOTONIC_CLOCK, Admitted, Progress, serve_over
from blink.hw.native.settings import NO_TOKEN, Durations, NativeSettings
from blink.hw.native.tokens import prompt_of
from blink.hw.ring import Tokens
from blink.hw.texts import Sampling, Texts
from blink.perf.admission import Bounds, bounded_rows
from blink.workload.build import output_tokens_asked
from blink.workload.requests import Requests

GRAPH_TIMEOUT_NS = 10_000_000_000
assert GRAPH_TIMEOUT_NS >= GRAPH_TIMEOUT_MIN_NS


def engine_settings(
    engine: Engine | Described,
    *,
    window: int = 120,
    prompt_tokens: int | None = None,
    output_tokens: int,
    ignore_eos: bool,
    padding_tokens_max: int = PADDING_TOKENS_MAX,
    resume_after_tokens: int = RESUME_AFTER_TOKENS,
) -> NativeSettings:
    """The scheduler's settings over an engine. `prompt_tokens` and `output_tokens`: room for each request's.

    `padding_tokens_max` and `resume_after_tokens`: those of the policy's limits.
    """
    prefill, decode = engine.tables[GraphKind.PREFILL], engine.tables[GraphKind.DECODE]
    longest = prompt_tokens or prefill.fallback.sequence
    eos_token = NO_TOKEN if ignore_eos or engine.eos_token is None else engine.eos_token
    return NativeSettings(
        limits=Limits(
            decode.fallback.batch,
            prefill.batches[-1],
            engine.block_tokens,
            window,
            padding_tokens_max,
            resume_after_tokens,
        ),
        prefill_table=prefill,
        decode_table=decode,
        kv_block_count=engine.block_count,
        prompt_area_tokens=SLOT_COUNT * longest,
        output_capacity_tokens=output_tokens,
        slot_count=SLOT_COUNT,
        durations=Durations.none(prefill, decode),
        graph_timeout_ns=GRAPH_TIMEOUT_NS,
        eos_token=eos_token,
    )


@dataclass(slots=True)
class System:
    """A ring with the scheduler over it: on the GPU, or on the host (`cpu-resident`). `close` it."""

    ring: CudaRing | HostRing
    scheduler: CudaScheduler | HostScheduler

    @classmethod
    def on_gpu(
        cls,
        kernels: Kernels,
        settings: NativeSettings,
        engine: Engine | None = None,
        ingress: Ingress = Ingress.COPY,
        marks: GraphMarks | None = None,
    ) -> Self:
        """`engine` None is the stub. With `marks` graphs note there when they begin and end."""
        ring = CudaRing(kernels.cuda, load_library(), settings, ingress)
        return cls(ring, CudaScheduler(kernels, ring, engine, marks=marks))

    @classmethod
    def on_host(
        cls,
        kernels: Kernels,
        settings: NativeSettings,
        engine: Engine | None = None,
        cores: frozenset[int] | None = None,
    ) -> Self:
        """`cores`: where the scheduler's thread may run."""
        ring = HostRing(kernels.cuda, settings)
        return cls(ring, HostScheduler(kernels, ring, engine, cores))

    @property
    def name(self) -> str:
        """As traces call it."""
        return self.ring.backend

    @property
    def clock(self) -> dict[str, object]:
        """What a trace says of its times."""
        return GPU_CLOCK if isinstance(self.ring, CudaRing) else MONOTONIC_CLOCK

    @property
    def host_calls(self) -> HostCalls:
        """What a loop of the host calls; of a system on the host."""
        assert isinstance(self.scheduler, HostScheduler)
        return self.scheduler.calls

    def close(self) -> None:
        """Give everything back, unless a scheduler would not end."""
        self.scheduler.close()
        if not self.scheduler.is_running:
            self.ring.close()


@dataclass(slots=True)
class Answers:
    """Tokens of each request as they came, by request_id."""

    tokens: dict[int, list[int]] = field(default_factory=dict)

    def take(self, request: Request, index: int, tokens: Tokens) -> None:
        """For Texts.taken."""
        have = self.tokens.setdefault(request.request_id, [])
        assert len(have) == index, "tokens come in their order"
        have += tokens.tolist()


def drawn_prompts(vocabulary_count: int) -> Callable[[Request], Tokens]:
    """Prompts of a load that has lengths alone: the stub's, folded into a vocabulary."""
    return lambda request: prompt_of(request.request_id, request.prompt_tokens) % np.uint32(vocabulary_count)


def bounds_of(settings: NativeSettings) -> Bounds:
    """What the engine behind a ring can serve."""
    longest = settings.prefill_table.fallback.sequence
    return Bounds(
        context_tokens=settings.decode_table.fallback.sequence,
        prompt_tokens_max=longest,
        prompt_rule=f"the longest captured prompt has {longest}",
        output_tokens_max=settings.output_capacity_tokens,
        block_tokens=settings.limits.block_tokens,
        block_count=settings.kv_block_count,
    )


def admitted_by(settings: NativeSettings, scenario: Scenario, requests: Requests) -> Admitted:
    """A load as a model serves it: texts end where the load says that they do, by their length."""
    asked = np.minimum(output_tokens_asked(scenario, requests), requests.output_tokens)
    rows, refusals, cut = bounded_rows(bounds_of(settings), requests, asked)
    notes = [f"the output of {cut} requests was cut to what the engine was built for"] if cut else []
    return Admitted(rows, refusals, notes)


def serve_engine(
    system: System,
    engine: Engine,
    scenario: Scenario,
    requests: Requests,
    *,
    trace_path: Path | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    time_scale: float = 1.0,
    sampling: Sampling | None = None,
    answers: Answers | None = None,
    prompts: Callable[[Request], Tokens] | None = None,
) -> RunResult:
    """Serve a load with a model. Prompts are drawn unless they are given."""
    answers = answers or Answers()
    texts = Texts(prompts or drawn_prompts(engine.vocabulary_count), answers.take, sampling or Sampling())
    return serve_over(
        scenario, requests, admitted_by(system.ring.settings, scenario, requests), system.ring, system.scheduler,
        system.clock, trace_path=trace_path, progress=progress, stop=stop, time_scale=time_scale, texts=texts,
    )  # fmt: skip


def gpu_system(
    engine: Engine, *, output_tokens: int, ignore_eos: bool, ingress: Ingress = Ingress.COPY, window: int = 120
) -> System:
    """A system on the GPU for an engine."""
    settings = engine_settings(engine, window=window, output_tokens=output_tokens, ignore_eos=ignore_eos)
    return System.on_gpu(load_kernels(), settings, engine, ingress)
