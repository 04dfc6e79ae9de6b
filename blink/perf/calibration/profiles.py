"""The folder that a calibration leaves behind: profiles with their sources, and how a scenario comes to use them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blink.common.errors import InputError
from blink.common.profile import read_toml
from blink.common.results import I64
from blink.common.units import KIB
from blink.perf.calibration.cold_steps import ColdFit, fit_cold_steps
from blink.perf.calibration.host import HostShare, host_share
from blink.perf.calibration.loop import Estimate, FrontendCosts, LoopCosts, frontend_costs, line, loop_costs
from blink.perf.calibration.measurements import Measurements
from blink.perf.calibration.roofline import DTYPE_BYTES, Beside, beside, fit_roofline, holdout_of
from blink.perf.engine import EngineProfile
from blink.perf.gpu import GpuProfile
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel

MANIFEST = "calibration.toml"
MEASURED = "measurements.npz"
POLL_MIN_NS, POLL_MAX_NS = 15_000, 110_000
"""Pauses of the frontend's loop between two looks (blink/hw/native/driver.py: none at first, then naps of 50 us, which
take about twice as long)."""
_BANDWIDTH_NONE = 100_000_000_000_000


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything that was fitted."""

    about: Mapping[str, Any]
    gpu_base: str
    engine: str
    gpu: GpuProfile
    constants: Mapping[str, float]
    cold: ColdFit
    cold_host: ColdFit
    steps: Beside
    steps_host: Beside
    loop: LoopCosts
    loop_host: LoopCosts
    frontend: FrontendCosts
    share: HostShare
    times: Mapping[str, I64]


def calibrate(found: Measurements, gpu_base: str, engine_name: str, shape: ModelShape) -> Calibration:
    """Fit all profiles. `gpu_base` and `engine_name` are shipped profiles that the constants are refined from."""
    gpu, engine = GpuProfile.load(gpu_base), EngineProfile.load(engine_name)
    flat = StepModel(shape, gpu, engine=engine)
    cold = fit_cold_steps(found.steps["gpu"], flat.prefill_peak_ns)
    held_out = holdout_of(cold)
    fitted, constants = fit_roofline(cold, shape, gpu, engine, held_out)
    model = StepModel(shape, fitted, DTYPE_BYTES, engine=engine)
    cold_host = fit_cold_steps(found.steps["host"], flat.prefill_peak_ns, like=cold)
    work, cores, busy = found.about["host_work"], found.about["cores"]["others"], found.about["busy"]
    frontend = {name: values for name, values in found.frontend.items() if name != "live"}
    return Calibration(
        about=found.about, gpu_base=gpu_base, engine=engine_name, gpu=fitted, constants=constants, cold=cold,
        cold_host=cold_host, steps=beside(model, cold, held_out), steps_host=beside(model, cold_host, held_out),
        loop=loop_costs(found.steps["gpu"]), loop_host=loop_costs(found.steps["host"]),
        frontend=frontend_costs(frontend, found.frontend["live"]),
        share=host_share(work[str(busy)], work["0"], found.steps["host-busy"], busy, cores, _placements(found)),
        times=found.times,
    )  # fmt: skip


def _placements(found: Measurements) -> list[I64]:
    """Tables of where threads ran, one of each set of busy processes."""
    return [table for name, table in sorted(found.times.items()) if name.startswith("cores_")]


def log_manifest(system: str, folder: Path, about: Mapping[str, Any]) -> str:
    """The manifest of a calibration to a log: what lies in the folder, for scenarios of that serving system."""
    found = {"gpu.profile": "gpu.toml", "system.profile": "host-engine.toml"}
    keys = [(key, name) for key, name in found.items() if (folder / name).is_file()]
    lines = ['profile = "calibration"', *_items(about.items()), "", f"[scenario.{system}]", *_items(keys)]
    return "\n".join(lines) + "\n"


def overrides(folder: Path, system: str) -> list[str]:
    """What a scenario is told (`KEY=VALUE`) so that it uses a calibration. `system`: the kind of its serving system.

    Raises InputError if the folder holds no calibration, or none for such a system.
    """
    path = folder / MANIFEST
    raw = read_toml(path, str(path))
    tables = raw.get("scenario")
    if raw.get("profile") != "calibration" or not isinstance(tables, dict):
        raise InputError(f"{path}: is not the manifest of a calibration")
    if system not in tables:
        raise InputError(f"{path}: system {system!r} was not calibrated; allowed: {', '.join(tables)}")
    found = []
    for key, value in tables[system].items():
        if isinstance(value, str) and value.endswith(".toml"):
            value = str(folder / value)
        found.append(f"{key}={json.dumps(value)}")
    return found


def files(found: Calibration) -> dict[str, str]:
    """Name -> text of each profile, and of the manifest."""
    return {
        "gpu.toml": _gpu(found),
        "steps.toml": _steps(found, found.steps, "the scheduler on the GPU"),
        "steps-host.toml": _steps(found, found.steps_host, "the same scheduler on the host"),
        "dpu.toml": _dpu(found),
        "link.toml": _link(found),
        "host.toml": _host(found),
        "host-engine.toml": _host_engine(found),
        MANIFEST: _manifest(found),
    }


def _source(found: Calibration) -> str:
    machine = found.about["machine"]
    return f"blink calibrate, {found.about['date']}, {machine.get('gpu', '')}, driver {machine.get('driver', '')}"


def _head(kind: str, found: Calibration, description: str, carry_over: str = "") -> list[str]:
    name = f"{found.gpu_base}-{kind}-calibrated"
    lines = [f'profile = "{kind}"', f'name = "{name}"', f'description = "{description}"']
    return [*lines, *([f'carry_over = "{carry_over}"'] if carry_over else []), "", "[constants]"]


def _line(found: Calibration, name: str, value: float, unit: str, note: str, where: str) -> str:
    shown = round(value) if unit in ("ns", "cores", "bytes/s") else float(f"{value:.6g}")
    return (
        f'{name} = {{ value = {shown}, unit = "{unit}", kind = "fitted", '
        f'source = "{_source(found)}; {note}", range = {where} }}'
    )


def _gpu(found: Calibration) -> str:
    loop, cold = found.loop, found.cold
    limits = found.about["limits"]
    batch = f"{{ batch = [1, {limits['batch_max']}] }}"
    sizes = [step.tokens for step in found.steps.steps if step.kind == "prefill"]
    tokens = f"{{ tokens = [{min(sizes)}, {max(sizes)}], batch = [1, {limits['batch_max']}] }}"
    rms = f"with them the roofline alone is off by {found.steps.rms_alone:.1%} rms"
    units = {"kernel_floor_ns": "ns", "gemm_ramp_ns": "ns", "gemm_overlap_exponent": "exponent"}
    lines = _head("gpu", found, f"{found.gpu_base} behind the {found.engine} engine.", found.gpu_base)
    lines += [
        _line(found, name, value, units.get(name, "ratio"), rms, tokens) for name, value in found.constants.items()
    ]
    left = f"steps are then off by {cold.left_prefill:.1%} (prefill) and {cold.left_decode:.1%} (decode) rms"
    lines += [
        _line(found, "throttle_time_ns", cold.time_ns, "ns", left, tokens),
        _line(found, "throttle_compute", cold.compute, "ratio", left, tokens),
        _line(found, "throttle_memory", cold.memory, "ratio", left, tokens),
        _line(found, "throttle_exponent", cold.exponent, "exponent", left, tokens),
        _line(found, "padding_saving", cold.padding, "ratio", left, tokens),
        _line(found, "launch_ns", loop.launch.value, "ns", _plus(loop.launch, "boundary to launch"), batch),
        _line(found, "completion_ns", 0, "ns", "within a graph's duration, from launch to seen", batch),
        _line(found, "publish_ns", loop.publish.value, "ns", _plus(loop.publish, "seen to stored"), batch),
        _line(found, "publish_per_slot_ns", loop.publish_per_slot.value, "ns", _plus(loop.publish_per_slot), batch),
        _line(found, "claim_ns", loop.claim.value, "ns", _plus(loop.claim, "pause and claim"), batch),
        _line(found, "claim_per_slot_ns", loop.claim_per_slot.value, "ns", _plus(loop.claim_per_slot), batch),
        _line(found, "pause_ns", 0, "ns", "within claim_ns", batch),
        _line(found, "relaunch_ns", loop.relaunch.value, "ns", _plus(loop.relaunch), batch),
        _line(found, "scan_ns", float(np.median(found.times["scan"])), "ns", "median", "{ slots = [4096, 4096] }"),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _plus(estimate: Estimate, what: str = "") -> str:
    return f"{what + ': ' if what else ''}{estimate.samples} samples, standard error {estimate.error:.2g} ns"


def _steps(found: Calibration, steps: Beside, whose: str) -> str:
    count = sum(step.use == "holdout" for step in steps.steps)
    held = f"The model is off by {steps.rms_holdout:.2%} rms, {steps.worst_holdout:.2%} at most, on {count} held out."
    lines = [
        'profile = "steps"', f'name = "{found.gpu_base}-{found.engine}-{found.about["model"]}"',
        f'description = "Captured steps of {whose}: {len(steps.steps)} shapes. {held}"',
        f'model = "{found.about["model"]}"', 'gpu = "gpu.toml"', f'engine = "{found.engine}"',
        f'source = "{_source(found)}"',
    ]  # fmt: skip
    for step in steps.steps:
        values = {name: getattr(step, name) for name in step.__slots__ if name != "curve" or step.curve}
        lines += ["", "[[step]]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    return "\n".join(lines) + "\n"


def _dpu(found: Calibration) -> str:
    costs, batch = found.frontend, f"{{ batch = [1, {found.about['limits']['batch_max']}] }}"
    link_ns, copy_ns = _link_times(found)
    scan_ns = max(0.0, float(np.median(found.times["status_read"])) - copy_ns)
    wait_ns = (POLL_MAX_NS + copy_ns + scan_ns) / 2
    fixed_ns = max(0.0, costs.read.value - wait_ns - copy_ns - scan_ns - 2 * link_ns)
    parse_ns = costs.ingress.value + costs.tokenize.value
    post_ns = max(0.0, costs.post.value - link_ns) / 3
    lines = _head("dpu", found, "This project's frontend in Python on a host core, not on a DPU.", "bluefield-3")
    encode = "drawing the prompt in place of a tokenizer"
    lines += [
        _line(found, "http_parse_ns", parse_ns, "ns", _plus(costs.ingress, "due to taken in, and any prompt"), batch),
        _line(found, "tokenize_reference_ns_per_token", costs.tokenize_per_token.value, "ns/token", encode, batch),
        _line(found, "tokenizer_speedup", 1, "ratio", "nothing beside it", batch),
        _line(found, "detokenize_ns_per_token", 0, "ns/token", "tokens are not made text", batch),
        _line(found, "sse_chunk_ns", 0, "ns", "no chunk is written", batch),
        _line(found, "verb_post_ns", 0, "ns", "within the other constants", batch),
        _line(found, "write_post_ns", post_ns, "ns", _plus(costs.post, "of three WRITEs"), batch),
        _line(found, "completion_ns", fixed_ns / 2, "ns", _plus(costs.read, "rest of stored to read"), batch),
        _line(found, "status_scan_ns", scan_ns, "ns", "READ of the array beyond its copy", "{ slots = [4096, 4096] }"),
        _line(found, "token_read_ns_per_slot", costs.read_per_slot.value, "ns", _plus(costs.read_per_slot), batch),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _link_times(found: Calibration) -> tuple[float, float]:
    """Of the copy engine: one way for a word, and 64 KiB back."""
    return float(np.median(found.times["echo"])) / 2, float(np.median(found.times["status_copy"]))


def _link(found: Calibration) -> str:
    link_ns, copy_ns = _link_times(found)
    rate = round(64 * KIB / max(1.0, copy_ns - 2 * link_ns) * 1e9)
    here = 'kind = "assumed", source = "the same process" }'
    one = "{ devices = [1, 1] }"
    lines = [
        'profile = "link"', f'name = "{found.gpu_base}-copy-engine"',
        'description = "Clients in the process of the frontend; the copy engine between host and GPU memory."',
        "", "[[hop]]", 'name = "client-dpu"', 'from = "client"', 'to = "dpu"',
        f'latency_ns = {{ value = 0, unit = "ns", {here}',
        f'bandwidth_bytes_per_s = {{ value = {_BANDWIDTH_NONE}, unit = "bytes/s", {here}',
        "", "[[hop]]", 'name = "dpu-gpu"', 'from = "dpu"', 'to = "gpu"',
        _line(found, "latency_ns", link_ns, "ns", "half of a word there and its answer", one),
        _line(found, "bandwidth_bytes_per_s", rate, "bytes/s", "64 KiB, less latency", one),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _host(found: Calibration) -> str:
    share, busy = found.share, found.about["busy"]
    where, alone = f"{{ threads = [{busy}, {busy}] }}", "{ threads = [0, 0] }"
    slow = ", ".join(f"{name} x{ratio:.2f}" for name, ratio in share.inflation.items())
    rivals = (
        f"{share.competitors:.2f} competitors of any busy thread, standard error {share.error:.2g} over sets of "
        f"processes, {share.samples} samples; of the scheduler's thread alone {share.own:.2f}"
    )
    lines = _head("host", found, "The cores of this node that the frontend does not have.", "h200-node")
    lines += [
        _line(found, "cores_per_socket", found.about["cores"]["others"], "cores", "cores beside the frontend's", where),
        _line(found, "slice_ns", share.slice_ns, "ns", "gaps of a spinning thread, median", where),
        _line(found, "noise_per_s", share.noise_per_s, "1/s", "short gaps of a thread that spins alone", alone),
        _line(found, "noise_ns", share.noise_ns, "ns", "their mean", alone),
        _line(found, "crowding", share.crowding, "ratio", f"{rivals}; work between turns: {slow}", where),
        _line(found, "imbalance_share", share.imbalance, "ratio", "samples away from the mean", where),
        _line(found, "placement_ns", share.stay_ns, "ns", "how fast a thread's competitors are forgotten", where),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _host_engine(found: Calibration) -> str:
    loop, batch = found.loop_host, f"{{ batch = [1, {found.about['limits']['batch_max']}] }}"
    lines = _head("host-engine", found, "Blink's scheduler on a host thread, by its own records.", "cpu-resident")
    lines += [
        _line(found, "schedule_ns", 0.0, "ns", "within launch_ns", batch),
        _line(found, "schedule_ns_per_sequence", 0.0, "ns", "within launch_ns", batch),
        _line(found, "prepare_ns", 0.0, "ns", "within launch_ns", batch),
        _line(found, "prepare_ns_per_sequence", 0.0, "ns", "within launch_ns", batch),
        _line(found, "launch_ns", loop.launch.value, "ns", _plus(loop.launch, "boundary to launch"), batch),
        _line(found, "sync_ns", 0.0, "ns", "within a graph's duration", batch),
        _line(found, "update_ns", loop.publish.value, "ns", _plus(loop.publish, "seen to stored"), batch),
        _line(found, "update_ns_per_sequence", loop.publish_per_slot.value, "ns", _plus(loop.publish_per_slot), batch),
        _line(found, "admit_ns", loop.claim.value + loop.claim_per_slot.value, "ns", _plus(loop.claim), batch),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _manifest(found: Calibration) -> str:
    about, common = found.about, {
        "gpu.profile": "gpu.toml", "model.engine": found.engine, "dpu.profile": "dpu.toml",
        "links.profile": "link.toml", "frontend.poll_min_ns": POLL_MIN_NS, "frontend.poll_max_ns": POLL_MAX_NS,
        "dpu.token_cores": 2,
    }  # fmt: skip
    on_host = {
        "system.profile": "host-engine.toml", "host.profile": "host.toml", "host.reserved_cores": 0,
        "model.steps": "steps-host.toml",
    }  # fmt: skip
    errors = {
        "steps_rms_roofline": found.steps.rms_alone, "steps_rms_holdout": found.steps.rms_holdout,
        "steps_worst_holdout": found.steps.worst_holdout, "steps_host_rms_holdout": found.steps_host.rms_holdout,
        "prefill_rms_left": found.cold.left_prefill, "decode_rms_left": found.cold.left_decode,
    }  # fmt: skip
    lines = ['profile = "calibration"', f'date = "{about["date"]}"', f'model = "{about["model"]}"']
    lines += [f"seconds = {about.get('seconds', 0)}", "", "[machine]"]
    lines += _items(about["machine"].items())
    lines += ["", "[error] # relative", *_items((name, round(value, 5)) for name, value in errors.items())]
    on_gpu = [*common.items(), ("model.steps", "steps.toml")]
    lines += ["", "[scenario.blink] # what a scenario is told to use it", *_items(on_gpu)]
    lines += ["", "[scenario.cpu-resident]", *_items([*common.items(), *on_host.items()])]
    if "tokenizer_tokens" in found.times:
        lines += ["", "[tokenizer]", *_tokenizer(found)]
    return "\n".join(lines) + "\n"


def _tokenizer(found: Calibration) -> Iterable[str]:
    """A line through the medians of texts of several lengths, on a core of this host."""
    tokens = found.times["tokenizer_tokens"]
    where = f"{{ tokens = [{tokens.min()}, {tokens.max()}] }}"
    yield f"name = {json.dumps(found.about.get('tokenizer', ''))}"
    for name in ("encode", "decode"):
        fixed, each = line(tokens.astype(np.float64), found.times[f"tokenizer_{name}"].astype(np.float64))
        yield _line(found, f"{name}_ns", fixed.value, "ns", _plus(fixed, "of a text"), where)
        yield _line(found, f"{name}_ns_per_token", each.value, "ns/token", _plus(each, "a token"), where)


def _items(pairs: Iterable[tuple[str, Any]]) -> list[str]:
    return [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in pairs]
