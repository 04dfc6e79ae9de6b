"""What a host-driven scenario's names stand for: profiles, KV blocks, limits; refused here if it cannot run."""

from __future__ import annotations

from dataclasses import dataclass

from blink.common.config import Scenario
from blink.common.config.system import HostDrivenSystem
from blink.common.errors import InputError
from blink.common.policy import default_decode_batches
from blink.common.units import GIB
from blink.perf.host_engine import HostEngineProfile
from blink.perf.memory import workspace_bytes
from blink.perf.plant import step_model
from blink.perf.serving import served
from blink.perf.step import StepModel
from blink.sim.engines.batching import BatchLimits


@dataclass(frozen=True, slots=True)
class EnginePlant:
    """Everything that stays the same during a run of a host-driven engine."""

    system: HostDrivenSystem
    profile: HostEngineProfile
    step: StepModel
    context_tokens: int
    block_count: int
    limits: BatchLimits

    @classmethod
    def of(cls, scenario: Scenario, system: HostDrivenSystem) -> EnginePlant:
        """Load profiles and lay out memory. Raises InputError for an unknown profile or a model that does not fit."""
        step = step_model(scenario)
        shape = step.shape
        profile = served(HostEngineProfile.load(system.profile), scenario)
        context = scenario.limits.context_tokens or shape.context_tokens_max
        if context > shape.context_tokens_max:
            raise InputError(
                f"limits.context_tokens = {context}: {shape.name} allows at most {shape.context_tokens_max}"
            )
        overlap = profile.overlap if system.async_scheduling is None else system.async_scheduling
        chunk = scenario.serving.chunk_tokens if scenario.serving else None
        limits = BatchLimits(
            seqs_max=system.max_num_seqs,
            tokens_max=system.max_num_batched_tokens if chunk is None else max(chunk, system.max_num_seqs),
            block_tokens=scenario.limits.kv_block_tokens,
            chunked=system.chunked_prefill or chunk is not None,
            overlap=overlap,
            reserve_prompt=profile.reserve_prompt,
            reserve_output=system.kind == "trtllm" and system.kv_policy == "guaranteed-no-evict",
        )
        blocks = system.num_gpu_blocks or _kv_blocks(scenario, step, profile, limits)
        return cls(system, profile, step, context, blocks, limits)

    @property
    def captured_count(self) -> int:
        """Graphs that are captured before it serves: one for each batch size of decoding."""
        if not self.system.cuda_graphs:
            return 0
        return len(default_decode_batches(min(self.profile.captured_batch_max, self.limits.seqs_max)))


def _kv_blocks(scenario: Scenario, step: StepModel, profile: HostEngineProfile, limits: BatchLimits) -> int:
    """KV blocks that fill what weights, activations and the engine's own memory leave."""
    usable = int(step.gpu.memory_bytes * scenario.gpu.memory_utilization)
    weights = step.weights_bytes
    work = workspace_bytes(step, limits.tokens_max, limits.seqs_max)
    block_bytes = step.kv_bytes(limits.block_tokens)
    left = usable - weights - work - profile.reserved_bytes
    if left < 2 * block_bytes:
        parts = {"weights": weights, "workspace": work, "engine": profile.reserved_bytes, "two blocks": 2 * block_bytes}
        listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
        raise InputError(
            f"memory: {step.shape.name} on {step.tensor_parallel} x {step.gpu.name} leaves no room for KV blocks: "
            f"{usable / GIB:.2f} GiB usable, needed in GiB: {listed}"
        )
    return left // block_bytes
