"""Energy and cost of a run: wall power of the server and the DPU, and what the hardware is charged at.

cpu  = sockets (idle + (max - idle) x utilisation)
gpu  = idle + (max - idle) min(1, active share x busy + memory share x traffic + compute share x rate)
wall = (server + cpu + gpus) / efficiency of the supplies + dpu
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from blink.common.config import Scenario
from blink.common.profile import Constant, constant, load_profile, typed_values
from blink.common.results import RunResult
from blink.common.units import NS_PER_S
from blink.perf.dpu import DpuProfile
from blink.perf.gpu import GpuProfile
from blink.perf.host.profile import HostProfile
from blink.perf.host.scenario import interference_of
from blink.perf.placement import KINDS_WITHOUT_HOST, Placement
from blink.perf.shape import ModelShape

SECONDS_PER_HOUR = 3600
JOULES_PER_KWH = 3_600_000
KINDS_WITH_DPU = ("blink", "cpu-resident")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerProfile:
    """Wall power of a server beside its GPUs, and how a GPU's power follows from what it does."""

    name: str
    constants: Mapping[str, Constant] = field(repr=False)
    server_w: float = constant("W", 0)
    socket_count: int = constant("sockets", 1)
    socket_idle_w: float = constant("W", 0)
    socket_max_w: float = constant("W", 0)
    supply_efficiency: float = constant("ratio", 0.1, 1)
    gpu_active_share: float = constant("ratio", 0, 1)
    gpu_memory_share: float = constant("ratio", 0, 1)
    gpu_compute_share: float = constant("ratio", 0, 4)

    @classmethod
    def load(cls, name_or_path: str | Path) -> PowerProfile:
        """A shipped power profile by name, or a user's by path. InputError says what is wrong with it."""
        profile = load_profile("power", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))

    def cpu_w(self, utilization: float) -> float:
        """All sockets at a utilisation between 0 and 1."""
        return self.socket_count * (self.socket_idle_w + (self.socket_max_w - self.socket_idle_w) * utilization)

    def gpu_w(self, gpu: GpuProfile, busy: float, memory: float, compute: float) -> float:
        """One GPU whose kernels run a share `busy` of the time, at shares of its peak bandwidth and FLOP rate."""
        active = self.gpu_active_share * busy + self.gpu_memory_share * memory + self.gpu_compute_share * compute
        return gpu.power_idle_w + (gpu.power_max_w - gpu.power_idle_w) * min(1.0, active)

    def wall_w(self, cpu_w: float, gpu_w: float, dpu_w: float) -> float:
        """At the socket in the wall; `gpu_w` of all GPUs, the DPU's as it draws it."""
        return (self.server_w + cpu_w + gpu_w) / self.supply_efficiency + dpu_w


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceProfile:
    """Prices per hour, in US dollars."""

    name: str
    constants: Mapping[str, Constant] = field(repr=False)
    gpu_usd_per_hour: float = constant("USD/h", 0)
    dpu_usd_per_hour: float = constant("USD/h", 0)
    host_thread_usd_per_hour: float = constant("USD/h", 0)
    attended_threads: int = constant("threads", 0)
    energy_usd_per_kwh: float = constant("USD/kWh", 0)

    @classmethod
    def load(cls, name_or_path: str | Path) -> PriceProfile:
        """A shipped price profile by name, or a user's by path. InputError says what is wrong with it."""
        profile = load_profile("price", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))


@dataclass(frozen=True, slots=True)
class Utilization:
    """Means over a run, each between 0 and 1."""

    cpu: float
    gpu_busy: float
    gpu_memory: float
    gpu_compute: float


def utilization(scenario: Scenario, shape: ModelShape, gpu: GpuProfile, result: RunResult) -> Utilization:
    """How busy CPU and GPU were, from the run's counters.

    Traffic: the weights once a launch (of the experts that it reaches), and for each output token the keys and values
    before it. Rate: two FLOPs for each active weight and token computed, padding too. CPU: the other jobs' threads,
    and the engine's processor time where the run counts it (`host_cpu_ns`).
    """
    duration_ns, scheduler = result.duration_ns, result.scheduler
    if duration_ns <= 0:
        return Utilization(0.0, 0.0, 0.0, 0.0)
    gpus, seconds = scenario.gpu.gpu_count, duration_ns / NS_PER_S
    launches = scheduler.decode_launches + scheduler.prefill_launches
    rows = scheduler.decode_rows / max(1, scheduler.decode_launches)
    width = scenario.model.dtype_bytes
    traffic = launches * _weight_bytes(shape, rows, width) + _kv_bytes(shape, result, width)
    flops = 2.0 * shape.active_param_count * (scheduler.decode_rows + scheduler.prefill_tokens)
    return Utilization(
        cpu=_cpu(scenario, result),
        gpu_busy=min(1.0, (scheduler.decode_ns + scheduler.prefill_ns) / duration_ns),
        gpu_memory=min(1.0, traffic / gpus / seconds / gpu.memory_bandwidth_bytes_per_s),
        gpu_compute=min(1.0, flops / gpus / seconds / gpu.peak_flops(width)),
    )


def account(scenario: Scenario, result: RunResult) -> dict[str, float]:
    """Mean watts, joules and US dollars of a run, for `RunResult.accounts`; summary.json divides them by tokens."""
    shape = ModelShape.load(scenario.model.hf_config or scenario.model.profile or "")
    gpu = GpuProfile.load(scenario.gpu.profile)
    power, prices = PowerProfile.load(scenario.power.profile), PriceProfile.load(scenario.prices.profile)
    used = utilization(scenario, shape, gpu, result)
    gpus, kind = scenario.gpu.gpu_count, scenario.system.kind
    with_dpu = kind in KINDS_WITH_DPU
    cpu_w = power.cpu_w(used.cpu)
    gpu_w = gpus * power.gpu_w(gpu, used.gpu_busy, used.gpu_memory, used.gpu_compute)
    dpu_w = DpuProfile.load(scenario.dpu.profile).power_w if with_dpu else 0.0
    wall_w = power.wall_w(cpu_w, gpu_w, dpu_w)
    seconds = result.duration_ns / NS_PER_S
    per_hour = usd_per_hour(scenario, prices)
    joules = wall_w * seconds
    return {
        "cpu_utilization": used.cpu,
        "gpu_busy": used.gpu_busy,
        "gpu_memory_utilization": used.gpu_memory,
        "gpu_compute_utilization": used.gpu_compute,
        "cpu_w": cpu_w,
        "gpu_w": gpu_w,
        "dpu_w": dpu_w,
        "wall_w": wall_w,
        "energy_j": joules,
        "cost_usd": per_hour * seconds / SECONDS_PER_HOUR + joules / JOULES_PER_KWH * prices.energy_usd_per_kwh,
    }


@dataclass(frozen=True, slots=True)
class Part:
    """What one replica of a fleet did, and for how long it was paid for."""

    result: RunResult
    paid_ns: int


def fleet_account(scenario: Scenario, parts: Sequence[Part], duration_ns: int) -> dict[str, float]:
    """The same of a fleet: its replicas share hosts, each of which draws what a server draws beside its GPUs.

    Other jobs run on every host as the scenario has them. Replicas that were paid for during a part of the run count
    for that part; so do their hosts. Shares are means over the time that was paid for.
    """
    shape = ModelShape.load(scenario.model.hf_config or scenario.model.profile or "")
    gpu = GpuProfile.load(scenario.gpu.profile)
    power, prices = PowerProfile.load(scenario.power.profile), PriceProfile.load(scenario.prices.profile)
    gpus, kind = scenario.gpu.gpu_count, scenario.system.kind
    seconds, paid_ns = duration_ns / NS_PER_S, sum(part.paid_ns for part in parts)
    if duration_ns <= 0 or not paid_ns:
        return {}
    weights = [part.paid_ns / paid_ns for part in parts]
    used = [
        utilization(scenario, shape, gpu, replace(part.result, duration_ns=part.paid_ns))
        if part.paid_ns
        else Utilization(0.0, 0.0, 0.0, 0.0)
        for part in parts
    ]
    gpu_w = gpus * math.fsum(
        part.paid_ns / duration_ns * power.gpu_w(gpu, one.gpu_busy, one.gpu_memory, one.gpu_compute)
        for part, one in zip(parts, used, strict=True)
    )
    replicas = paid_ns / duration_ns
    placement, count = Placement.of(scenario), max(1, math.ceil(replicas - 1e-9))
    hosts = placement.hosts(count)
    own_ns = sum(part.result.counters.get("host_cpu_ns", 0) for part in parts)
    cpu = _cpu_share(scenario, own_ns / duration_ns / hosts, placement.engines(0, count))
    with_dpu = kind in KINDS_WITH_DPU
    cpu_w = hosts * power.cpu_w(cpu)
    dpu_w = replicas * DpuProfile.load(scenario.dpu.profile).power_w if with_dpu else 0.0
    wall_w = (hosts * power.server_w + cpu_w + gpu_w) / power.supply_efficiency + dpu_w
    joules = wall_w * seconds
    per_hour = replicas * usd_per_hour(scenario, prices)
    return {
        "cpu_utilization": cpu,
        "gpu_busy": math.fsum(share * one.gpu_busy for share, one in zip(weights, used, strict=True)),
        "gpu_memory_utilization": math.fsum(share * one.gpu_memory for share, one in zip(weights, used, strict=True)),
        "gpu_compute_utilization": math.fsum(share * one.gpu_compute for share, one in zip(weights, used, strict=True)),
        "cpu_w": cpu_w,
        "gpu_w": gpu_w,
        "dpu_w": dpu_w,
        "wall_w": wall_w,
        "energy_j": joules,
        "cost_usd": per_hour * seconds / SECONDS_PER_HOUR + joules / JOULES_PER_KWH * prices.energy_usd_per_kwh,
    }


def usd_per_hour(scenario: Scenario, prices: PriceProfile) -> float:
    """What one replica is charged at, energy apart: its GPUs, the threads kept for it, its DPU."""
    kind = scenario.system.kind
    threads = prices.attended_threads if kind in KINDS_WITHOUT_HOST else scenario.host.reserved_cores
    per_hour = scenario.gpu.gpu_count * prices.gpu_usd_per_hour + threads * prices.host_thread_usd_per_hour
    return per_hour + (prices.dpu_usd_per_hour if kind in KINDS_WITH_DPU else 0.0)


def _cpu(scenario: Scenario, result: RunResult) -> float:
    return _cpu_share(scenario, result.counters.get("host_cpu_ns", 0) / result.duration_ns)


def _cpu_share(scenario: Scenario, own_threads: float, engines: int = 1) -> float:
    """How busy a host is with the other jobs beside so many engines, and so many threads of these."""
    threads = HostProfile.load(scenario.host.profile).thread_count
    others = min(interference_of(scenario, engines).total("cpu_share"), threads)
    return min(1.0, (others + own_threads) / threads)


def _weight_bytes(shape: ModelShape, rows: float, width: int) -> float:
    """Weights that one launch of `rows` tokens reads; every token of a launch reaches its own experts."""
    if not shape.expert_count:
        return float(width * shape.param_count)
    unused = shape.expert_count - shape.experts_touched(max(1, round(rows)))
    return width * (shape.param_count - unused * shape.expert_params * shape.layer_count)


def _kv_bytes(shape: ModelShape, result: RunResult, width: int) -> float:
    """Keys and values that decoding read: token i of a request reads its prompt and the i tokens before."""
    rows = result.requests
    made = np.maximum(rows["output_tokens"], 0)
    read = made * np.maximum(rows["prompt_tokens"], 0) + made * (made - 1) // 2
    return float(int(read.sum()) * shape.kv_bytes_per_token(width))
