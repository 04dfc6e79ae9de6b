"""What a scenario's names stand for: profiles, graph tables, memory, limits; refused here if it cannot run."""

from __future__ import annotations

from dataclasses import dataclass

from blink.common import policy
from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.policy import GraphShape, GraphTable
from blink.perf.corrections import StepCorrections
from blink.perf.dpu import DpuProfile
from blink.perf.engine import EngineProfile
from blink.perf.gpu import GpuProfile
from blink.perf.memory import MemoryBudget
from blink.perf.serving import ServingStep, switches_of
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel

_PROMPT_TOKENS = 1024  # of the two prompts for which it is asked whether one graph or two are computed sooner


@dataclass(frozen=True, slots=True)
class Plant:
    """Everything that stays the same during a run."""

    shape: ModelShape
    gpu: GpuProfile
    dpu: DpuProfile
    step: StepModel
    memory: MemoryBudget
    prefill_table: GraphTable
    decode_table: GraphTable
    context_tokens: int
    limits: policy.Limits

    @classmethod
    def of(cls, scenario: Scenario) -> Plant:
        """Load profiles and lay out memory. Raises InputError for an unknown profile or a model that does not fit."""
        step = step_model(scenario)
        shape, gpu = step.shape, step.gpu
        dpu = DpuProfile.load(scenario.dpu.profile)
        context = scenario.limits.context_tokens or shape.context_tokens_max
        if context > shape.context_tokens_max:
            raise InputError(
                f"limits.context_tokens = {context}: {shape.name} allows at most {shape.context_tokens_max}"
            )
        prefill, decode = graph_tables(scenario, context)
        memory = MemoryBudget.plan(
            step,
            graph_count=prefill.count() + decode.count(),
            prefill_tokens_max=max(prefill.tokens_max, prefill.sequences[-1], prefill.fallback.sequence),
            batch_max=scenario.limits.batch_max,
            prompt_tokens_max=scenario.limits.prompt_capacity_tokens,
            output_tokens_max=scenario.limits.output_capacity_tokens,
            kv_block_tokens=scenario.limits.kv_block_tokens,
            utilisation=scenario.gpu.memory_utilization,
        )
        limits = policy.Limits(
            scenario.limits.batch_max,
            min(scenario.limits.prefill_batch_max, scenario.limits.batch_max),
            scenario.limits.kv_block_tokens,
            scenario.limits.window,
            _padding_tokens_max(scenario, step, context),
            scenario.limits.resume_after_tokens,
        )
        return cls(shape, gpu, dpu, step, memory, prefill, decode, context, limits)


def _padding_tokens_max(scenario: Scenario, step: StepModel, context_tokens: int) -> int:
    given = scenario.limits.prefill_padding_tokens_max
    return step.padding_worth(min(_PROMPT_TOKENS, context_tokens)) if given is None else given


def graph_tables(scenario: Scenario, context_tokens: int) -> tuple[GraphTable, GraphTable]:
    """The captured shapes of prefill and decode, from the scenario's lists or the policy's defaults."""
    limits = scenario.limits
    together = min(limits.prefill_batch_max, limits.batch_max)
    prefill = GraphTable(
        GraphKind.PREFILL,
        limits.prefill_batches or tuple(range(1, together + 1)),
        limits.prefill_sequences or policy.default_prefill_sequences(context_tokens),
        policy.PREFILL_TOKENS_MAX,
        GraphShape(GraphKind.PREFILL, 1, context_tokens),
    )
    decode_batches = limits.decode_batches or policy.default_decode_batches(limits.batch_max)
    decode_sequences = limits.decode_sequences or policy.default_decode_sequences(context_tokens)
    decode = GraphTable(
        GraphKind.DECODE,
        decode_batches,
        decode_sequences,
        decode_batches[-1] * decode_sequences[-1],
        GraphShape(GraphKind.DECODE, decode_batches[-1], context_tokens),
    )
    return prefill, decode


def step_model(scenario: Scenario) -> StepModel:
    """How long steps of a scenario take, its what-if switches included. Raises InputError for an unknown profile."""
    shape = ModelShape.load(scenario.model.hf_config or scenario.model.profile or "")
    gpu = GpuProfile.load(scenario.gpu.profile)
    engine = EngineProfile.load(engine_name(scenario))
    blink_like = scenario.system.kind in ("blink", "cpu-resident")  # what was measured are captured shapes
    corrections = StepCorrections.load(scenario.model.steps) if scenario.model.steps and blink_like else None
    width, ways = scenario.model.dtype_bytes, scenario.gpu.tensor_parallel
    switches = switches_of(scenario)
    if switches is None:
        return StepModel(shape, gpu, width, ways, engine, corrections)
    return ServingStep(shape, gpu, width, ways, engine, corrections, switches)


def engine_name(scenario: Scenario) -> str:
    """The engine profile of a scenario: its own, or the one that goes with the serving system."""
    return scenario.model.engine or ("vllm" if scenario.system.kind in ("vllm", "sglang") else "tensorrt")
