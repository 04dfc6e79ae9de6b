"""Facts that need no run: constants of profiles, the layout, the capture policy, the host's conditions."""

from __future__ import annotations

from blink.common.layout import STATUS_ARRAY_BYTES
from blink.common.states import SLOT_COUNT
from blink.perf.dpu import DpuProfile
from blink.perf.gpu import GpuProfile
from blink.perf.host.conditions import HostConditions
from blink.perf.host.operation import HostOp
from blink.perf.host.scenario import host_conditions
from blink.perf.host_engine import HostEngineProfile
from blink.perf.plant import Plant
from blink.plan import variant
from blink.plan.reproduce.evidence import SERVICEABLE_SHARE, Evidence
from blink.plan.reproduce.predict import Prediction, Registry, gathered, not_modelled, one, register
from blink.sim.engines.run import LAYOUTS

PROFILED: Registry = {}
GENERATED_TOKENS = 512
NS_PER_US = 1e3
OPERATIONS = {
    "attention_dispatch": HostOp.BUILD_INPUTS,
    "cuda_launch_kernel": HostOp.LAUNCH,
    "kv_dispatch": HostOp.SCHEDULE,
    "aten_empty": HostOp.ALLOCATE,
}


def _gpu(evidence: Evidence) -> GpuProfile:
    return GpuProfile.load(evidence.bed.document["scenario"]["gpu"]["profile"])


def _source(gpu: GpuProfile, name: str) -> str:
    found = gpu.constants[name]
    return f"{name} of gpu {gpu.name}, {found.kind}"


@register(PROFILED, "launch.fire_and_forget_us")
def _fire_and_forget(evidence: Evidence) -> dict[str, Prediction]:
    gpu = _gpu(evidence)
    return {"value": one(gpu.launch_ns / NS_PER_US, _source(gpu, "launch_ns"))}


@register(PROFILED, "launch.tail_us")
def _tail(evidence: Evidence) -> dict[str, Prediction]:
    gpu = _gpu(evidence)
    note = f"{_source(gpu, 'relaunch_ns')}; measured on this project's H200"
    return {
        "value": one(gpu.relaunch_ns / NS_PER_US, note),
        "over_fire_and_forget": one(gpu.relaunch_ns / gpu.launch_ns),
    }


@register(PROFILED, "launch.host_us")
def _host_launch(evidence: Evidence) -> dict[str, Prediction]:
    gpu = _gpu(evidence)
    return {"value": one(gpu.host_loop_ns / NS_PER_US, _source(gpu, "host_loop_ns"))}


@register(PROFILED, "launch.window")
def _window(evidence: Evidence) -> dict[str, Prediction]:
    gpu = _gpu(evidence)
    return {
        "value": one(gpu.launch_window_max, f"{_source(gpu, 'launch_window_max')}; measured on this project's H200")
    }


@register(PROFILED, "launch.saved_512_tokens_ms")
def _saved(evidence: Evidence) -> dict[str, Prediction]:
    gpu = _gpu(evidence)
    device_ns = gpu.loop_overhead_ns + gpu.relaunch_ns / gpu.launch_window_max
    saved_ms = GENERATED_TOKENS * (gpu.host_loop_ns - device_ns) / 1e6
    return {
        "value": one(saved_ms, "512 times host_loop_ns less launch, completion, publication and share of a relaunch")
    }


@register(PROFILED, "ring.slots")
def _slots(_: Evidence) -> dict[str, Prediction]:
    return {"value": one(SLOT_COUNT)}


@register(PROFILED, "ring.scan_us")
def _scan(evidence: Evidence) -> dict[str, Prediction]:
    gpu = _gpu(evidence)
    return {"value": one(gpu.scan_ns / NS_PER_US, f"{_source(gpu, 'scan_ns')}; measured on this project's H200")}


@register(PROFILED, "ring.metadata_read_bytes")
def _metadata(_: Evidence) -> dict[str, Prediction]:
    return {"value": one(STATUS_ARRAY_BYTES)}


@register(PROFILED, "graphs.count")
def _graphs(evidence: Evidence) -> dict[str, Prediction]:
    def count(model: str) -> float:
        plant = Plant.of(evidence.bed.scenario(model, 1.0))
        return float(plant.prefill_table.count() + plant.decode_table.count())

    return {"value": gathered(evidence.bed.models, count, "prefill and decode graphs of the load's runs")}


@register(PROFILED, "tokenizer.speedup_vs_hf")
def _tokenizer(_: Evidence) -> dict[str, Prediction]:
    dpu = DpuProfile.load("bluefield-3")
    return {"value": one(dpu.tokenizer_speedup, f"tokenizer_speedup of dpu {dpu.name}")}


@register(PROFILED, "motivation.dispatch_gap_us")
def _gap(evidence: Evidence) -> dict[str, Prediction]:
    launch_us = HostEngineProfile.load("vllm-0.13").kernel_launch_ns / NS_PER_US
    after_us = _beside(evidence, 90).mean_op_ns(HostOp.LAUNCH, launch_us * NS_PER_US) / NS_PER_US
    return {
        "value": not_modelled(
            "steps, not gaps between kernels, are modelled; the launch of one kernel, which stretches a gap once it is "
            f"longer than the kernel before, takes {launch_us:.1f} us alone and {after_us:.1f} us disturbed on average"
        )
    }


@register(PROFILED, "motivation.host_op_inflation")
def _operations(evidence: Evidence) -> dict[str, Prediction]:
    inflation = _beside(evidence, 90).inflation
    found = {name: one(inflation[kind]) for name, kind in OPERATIONS.items()}
    return {**found, "gpu_kernel": one(1.0, "the step model does not know of the host")}


@register(PROFILED, "microarchitecture.baseline")
def _baseline(evidence: Evidence) -> dict[str, Prediction]:
    counters = _beside(evidence, 0).counters
    return {
        "page_walk_share_of_llc_stall": one(counters.page_walk_share_of_llc_stall),
        "llc_miss_rate": one(counters.llc_miss_rate),
    }


@register(PROFILED, "microarchitecture.interfered")
def _interfered(evidence: Evidence) -> dict[str, Prediction]:
    counters = _beside(evidence, 90).counters
    return {
        "tlb_misses_ratio": one(counters.dtlb_misses_ratio),
        "walk_active_ratio": one(counters.walk_active_ratio),
        "llc_stall_ratio": one(counters.llc_stall_ratio),
        "page_walk_share_of_llc_stall_max": one(
            counters.page_walk_share_of_llc_stall, "walk-active over LLC stall cycles"
        ),
        "llc_miss_rate": one(counters.llc_miss_rate),
    }


@register(PROFILED, "serviceable.definition")
def _serviceable(_: Evidence) -> dict[str, Prediction]:
    return {"offered_share": one(SERVICEABLE_SHARE)}


def _beside(evidence: Evidence, threads: int) -> HostConditions:
    plain = evidence.bed.scenario(evidence.bed.models[0], 1.0)
    engine = evidence.bed.document["motivation"]["system"]
    return host_conditions(variant.with_threads(plain, threads), LAYOUTS[engine].busy_threads)
