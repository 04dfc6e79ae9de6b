"""From a scenario's what-if switches to what the schedulers are given."""

from __future__ import annotations

from blink.common.config import Scenario
from blink.common.units import GIB, NS_PER_S
from blink.perf.fabric import FabricProfile
from blink.perf.serving import DEFAULT_FABRIC
from blink.perf.step import StepModel
from blink.sim.gpu_settings import GpuOptions
from blink.sim.reuse import Reuse
from blink.workload.requests import Requests


def reuse_of(scenario: Scenario, load: Requests, step: StepModel, *, received: bool = False) -> Reuse | None:
    """The prompts' cache of one replica; None without one. `received`: other replicas send it keys and values."""
    serving = scenario.serving
    if serving is None or not serving.prefix_caching:
        return Reuse(None) if received else None
    fabric = FabricProfile.load(scenario.gpu.fabric or DEFAULT_FABRIC)
    # Every GPU of the group has its share of each token, and its own way to the host.
    token_bytes = step.kv_bytes(1)
    host_tokens = int(serving.kv_offload_gib * GIB / (token_bytes * scenario.gpu.gpu_count)) if token_bytes else 0
    return Reuse(load.prefixes, host_tokens, token_bytes / fabric.pcie_bytes_per_s * NS_PER_S)


def gpu_options(scenario: Scenario, load: Requests, step: StepModel, *, received: bool = False) -> GpuOptions | None:
    """What the scheduler on the GPU is told; None if nothing is switched on."""
    reuse = reuse_of(scenario, load, step, received=received)
    chunk = (scenario.serving.chunk_tokens or 0) if scenario.serving else 0
    return GpuOptions(chunk, reuse, step.context_ns) if chunk or reuse else None
