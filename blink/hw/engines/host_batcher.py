"""A small continuous batcher on the host that drives an engine without a scheduler: for tests and comparisons."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from blink.common.events import GraphKind
from blink.common.policy import GraphShape, kv_blocks_needed
from blink.hw.engines.rows import Row, fill
from blink.hw.engines.torch_engine import TorchEngine


@dataclass(slots=True)
class Job:
    """One request and the tokens that it has so far. `arrives`: the step before which it is not there."""

    prompt: Sequence[int]
    limit: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    ignore_eos: bool = False
    min_tokens: int = 0
    arrives: int = 0
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    @property
    def context_tokens(self) -> int:
        """Tokens in the KV cache before the next decode."""
        return len(self.prompt) + len(self.tokens) - 1


class HostBatcher:
    """Prompts first, then one token for everyone who runs; KV blocks for the whole request are reserved at its start.

    Replays captured graphs on a GPU, one for each shape that comes up, and runs eagerly on a CPU. `jobs_max` bounds the
    batch; None means the engine's largest.
    """

    def __init__(self, engine: TorchEngine, jobs_max: int | None = None) -> None:
        self.engine, self.torch = engine, engine.torch
        self.jobs_max = min(jobs_max or engine.buffers.batch_max, engine.buffers.batch_max)
        self.free = list(range(engine.block_count))
        self.running: list[Job] = []
        self.steps = 0
        self._graphs: dict[GraphShape, Any] = {}

    def serve(self, jobs: Sequence[Job]) -> None:
        """Run all jobs to their ends; their tokens stand in them."""
        waiting = deque(sorted(jobs, key=lambda job: job.arrives))
        while waiting or self.running:
            started = self._start(waiting)
            if started:
                self._step(GraphKind.PREFILL, started)
            elif self.running:
                self._step(GraphKind.DECODE, self.running)
            self.steps += 1
            self._let_go()

    def _start(self, waiting: deque[Job]) -> list[Job]:
        """Jobs of the next prefill: those that have arrived, fit the KV cache, the batch and one graph."""
        started: list[Job] = []
        table, block_tokens = self.engine.tables[GraphKind.PREFILL], self.engine.block_tokens
        while waiting and waiting[0].arrives <= self.steps and len(self.running) + len(started) < self.jobs_max:
            job = waiting[0]
            need = kv_blocks_needed(len(job.prompt), job.limit, block_tokens)
            longest = max(len(other.prompt) for other in (*started, job))
            if need > len(self.free) or (started and table.dense(len(started) + 1, longest) is None):
                break
            waiting.popleft()
            job.blocks = [self.free.pop() for _ in range(need)]
            started.append(job)
        self.running += started
        return started

    def _step(self, kind: GraphKind, jobs: list[Job]) -> None:
        prefill = kind is GraphKind.PREFILL
        longest = max(len(job.prompt) if prefill else job.context_tokens + 1 for job in jobs)
        shape = self.engine.tables[kind].choose(len(jobs), longest)
        fill(self.engine, shape, [self._row(job, prefill=prefill) for job in jobs])
        self._launch(shape)
        for job, token in zip(jobs, self.engine.tensors.sampled[: len(jobs)].tolist(), strict=True):
            job.tokens.append(token)

    def _row(self, job: Job, *, prefill: bool) -> Row:
        tokens, context = (job.prompt, 0) if prefill else (job.tokens[-1:], job.context_tokens)
        return Row(
            tokens, context, job.blocks, len(job.tokens), job.temperature, job.top_p, job.top_k, job.seed,
            job.min_tokens,
        )  # fmt: skip

    def _launch(self, shape: GraphShape) -> None:
        if self.engine.device.type != "cuda":
            self.engine.run(shape)
            return
        graph = self._graphs.get(shape)
        if graph is None:
            graph = self._graphs[shape] = self.engine.captured(shape, _nothing, _nothing)
            graph.instantiate()
        graph.replay()

    def _let_go(self) -> None:
        eos = self.engine.eos_token
        for job in self.running:
            if len(job.tokens) >= job.limit or (job.tokens[-1] == eos and not job.ignore_eos):
                self.free += job.blocks
                job.blocks = []
        self.running = [job for job in self.running if job.blocks]


def _nothing(stream: int) -> None:
    """A prologue and epilogue that add no kernel."""
