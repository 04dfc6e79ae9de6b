"""`blink run --backend cuda --engine torch`: a scenario, or prompts of the command line, served with a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from blink.common.config import Scenario
from blink.common.config.replica import require_replica
from blink.common.errors import InputError
from blink.common.model_files import SMOLLM2
from blink.common.request import Request
from blink.common.results import RunResult
from blink.frontend.tokenizer import Tokenizer, open_tokenizer
from blink.hw.cuda.engine_run import Answers, System, engine_settings, serve_engine
from blink.hw.cuda.lockstep import load_kernels
from blink.hw.cuda.ports import Ingress
from blink.hw.engines.contract import Described, Engine
from blink.hw.engines.torch_engine import EngineLimits, TorchEngine, is_random
from blink.hw.native.run import Progress
from blink.hw.native.settings import NativeSettings
from blink.hw.ring import Tokens
from blink.perf.plant import Plant
from blink.workload.requests import Requests

KV_SHARE = 4
"""The KV cache gets at most this part of the blocks that the plan of the GPU's memory has room for: the model's weights
may be wider than the plan's, and graphs need memory, too."""


@dataclass(slots=True)
class ModelRun:
    """Serves with the torch engine. With `prompts` they are the load, and `texts` holds the answers afterwards.

    `model` is what TorchEngine.of_model takes; its tokenizer is that of SmolLM2, or of the model's folder.
    """

    model: str
    ingress: Ingress = Ingress.COPY
    time_scale: float = 1.0
    prompts: Sequence[str] = ()
    texts: list[str] = field(default_factory=list)

    def __call__(
        self,
        scenario: Scenario,
        requests: Requests,
        *,
        trace_path: Path | None = None,
        progress: Progress | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> RunResult:
        """Build the engine, serve, give it back. Raises InputError for what cannot run."""
        kernels = load_kernels()
        tokenizer = self._tokenizer() if self.prompts else None
        require_replica(scenario, "backend cuda")
        scenario = _patient(scenario) if self.prompts else scenario
        given = [tokenizer.chat([{"role": "user", "content": text}]) for text in self.prompts] if tokenizer else []
        engine: Engine = TorchEngine.of_model(self.model, engine_limits(scenario))
        try:
            settings = scenario_settings(scenario, engine, ignore_eos=not given)
            output_tokens = settings.output_capacity_tokens
            system = System.on_gpu(kernels, settings, engine, self.ingress)
            try:
                answers = Answers()
                result = serve_engine(
                    system, engine, scenario, _load_of(given, output_tokens) if given else requests,
                    trace_path=trace_path, progress=progress, stop=stop, time_scale=self.time_scale, answers=answers,
                    prompts=_prompts(given) if given else None,
                )  # fmt: skip
            finally:
                system.close()
        finally:
            engine.close()
        if tokenizer:
            self.texts = [tokenizer.decode(answers.tokens.get(index, [])) for index in range(len(given))]
        return result

    def _tokenizer(self) -> Tokenizer:
        if is_random(self.model):
            raise InputError(
                f"--model: {self.model!r} has random weights and no tokenizer, so it answers no prompt; allowed: "
                f"{SMOLLM2}, or a folder with a tokenizer.json"
            )
        return open_tokenizer("smollm2" if self.model == SMOLLM2 else self.model)


def engine_limits(scenario: Scenario) -> EngineLimits:
    """What the engine is built for, from a scenario's limits."""
    limits, plant = scenario.limits, Plant.of(scenario)
    context = min(plant.context_tokens, limits.prompt_capacity_tokens + limits.output_capacity_tokens)
    blocks = min(limits.batch_max * -(-context // limits.kv_block_tokens), plant.memory.kv_block_count // KV_SHARE)
    return EngineLimits(
        context_tokens=context, batch_max=limits.batch_max, block_tokens=limits.kv_block_tokens, block_count=blocks,
        prefill_batch_max=min(limits.prefill_batch_max, limits.batch_max), prefill_batches=limits.prefill_batches,
        prefill_sequences=limits.prefill_sequences, decode_batches=limits.decode_batches,
    )  # fmt: skip


def scenario_settings(scenario: Scenario, engine: Engine | Described, *, ignore_eos: bool) -> NativeSettings:
    """The scheduler's settings over an engine of `engine_limits`."""
    limits = Plant.of(scenario).limits
    return engine_settings(
        engine, window=limits.window, output_tokens=scenario.limits.output_capacity_tokens, ignore_eos=ignore_eos,
        padding_tokens_max=limits.prefill_padding_tokens_max, resume_after_tokens=limits.resume_after_tokens,
    )  # fmt: skip


def _patient(scenario: Scenario) -> Scenario:
    """Nobody hangs up on a prompt of the command line."""
    cancel = scenario.workload.cancel.model_copy(update={"fraction": 0.0})
    return scenario.model_copy(update={"workload": scenario.workload.model_copy(update={"cancel": cancel})})


def _load_of(prompts: Sequence[Sequence[int]], output_tokens: int) -> Requests:
    """All at once."""
    count = len(prompts)
    zeros = np.zeros(count, np.int64)
    lengths = np.array([len(prompt) for prompt in prompts], np.int64)
    nothing = np.full(count, -1, np.int64)
    return Requests(zeros, lengths, np.full(count, output_tokens, np.int64), nothing, nothing.copy(), zeros.copy())


def _prompts(given: Sequence[Sequence[int]]) -> Callable[[Request], Tokens]:
    return lambda request: np.array(given[request.request_id], np.uint32)
