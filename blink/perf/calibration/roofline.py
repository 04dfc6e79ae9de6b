"""Constants of the roofline from steps on a GPU that has idled, and what it lacks at each shape, with a holdout."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blink.common.events import GraphKind
from blink.common.units import NS_PER_S
from blink.perf.calibration.cold_steps import ColdFit, ColdStep
from blink.perf.corrections import MeasuredStep, StepCorrections
from blink.perf.engine import EngineProfile
from blink.perf.gpu import GpuProfile
from blink.perf.search import Constants, fit_constants
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel

FREE = {
    "kernel_floor_ns": (1.0, 50_000.0),
    "gemm_ramp_ns": (1.0, 50_000.0),
    "gemm_overlap_exponent": (1.0, 16.0),
    "attention_flops_efficiency": (0.01, 1.0),
    "flops_efficiency": (0.05, 1.0),
}
DIGITS = {"kernel_floor_ns": 0, "gemm_ramp_ns": 0}
STEPS = (0.3, 0.15, 0.08, 0.04, 0.02, 0.01)
EVERY = 4
DTYPE_BYTES = 2
Shape = tuple[str, int, int]
"""Kind, batch and sequence of a captured shape; a decode shape has sequence 0."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Measured shapes beside a roofline: each as a ratio, and the errors over those fitted and those held out."""

    steps: tuple[MeasuredStep, ...]
    rms_alone: float  # of the roofline, over the fitted shapes
    rms_holdout: float  # of roofline and corrections, over the shapes held out
    worst_holdout: float


def fit_roofline(
    found: ColdFit, shape: ModelShape, gpu: GpuProfile, engine: EngineProfile, held_out: Sequence[Shape]
) -> tuple[GpuProfile, Constants]:
    """The GPU's profile with constants fitted to all shapes but those held out, and these constants."""
    kv_bytes = shape.kv_bytes_per_token(DTYPE_BYTES)
    attention = kv_bytes * NS_PER_S / (gpu.memory_bandwidth_bytes_per_s * found.kv_token_ns)
    fitted = [step for step in found.steps if shape_of(step) not in set(held_out)]

    def on(constants: Constants) -> GpuProfile:
        changes: dict[str, Any] = {name: _rounded(name, value) for name, value in constants.items()}
        return dataclasses.replace(gpu, attention_bandwidth_efficiency=round(min(1.0, attention), 4), **changes)

    def loss(constants: Constants) -> float:
        model = StepModel(shape, on(constants), engine=engine)
        return _rms([predicted_ns(model, step) / step.p50_ns - 1 for step in fitted])

    best = fit_constants({name: float(getattr(gpu, name)) for name in FREE}, FREE, loss, STEPS)
    profile = on(best)
    names = (*FREE, "attention_bandwidth_efficiency")
    return profile, {name: getattr(profile, name) for name in names}


def beside(model: StepModel, found: ColdFit, held_out: Sequence[Shape]) -> Beside:
    """Every measured shape beside the roofline of a model; corrections are those of the shapes not held out."""
    aside = set(held_out)
    plain = [
        _measured(step, "fit", step.p50_ns / predicted_ns(model, step))
        for step in found.steps
        if shape_of(step) not in aside
    ]
    corrections = StepCorrections("", tuple(plain))
    held = [
        _measured(step, "holdout", step.p50_ns / (predicted_ns(model, step) * _ratio(corrections, step)))
        for step in found.steps
        if shape_of(step) in aside
    ]
    errors = [1 / step.ratio - 1 for step in held]
    steps = sorted([*plain, *held], key=lambda step: (step.kind, step.batch, step.sequence))
    alone = [1 / step.ratio - 1 for step in plain]
    return Beside(tuple(steps), _rms(alone), _rms(errors), max(map(abs, errors), default=0.0))


def holdout_of(found: ColdFit) -> list[Shape]:
    """Which shapes to hold out: every fourth of each kind, by its size; never the smallest or the largest."""
    held = []
    for kind in GraphKind:
        steps = sorted(
            (s for s in found.steps if s.kind is kind), key=lambda s: (s.batch * max(1, s.sequence), s.batch)
        )
        held += [shape_of(step) for step in steps[2:-1:EVERY]]
    return held


def predicted_ns(model: StepModel, step: ColdStep) -> float:
    """What a roofline says of a shape, without KV tokens."""
    if step.kind is GraphKind.PREFILL:
        return model.prefill_breakdown(step.batch, step.sequence).sum_ns
    return model.decode_breakdown(step.batch, 0).sum_ns


def _ratio(corrections: StepCorrections, step: ColdStep) -> float:
    if step.kind is GraphKind.PREFILL:
        return corrections.prefill_ratio(step.batch, step.sequence)
    return corrections.decode_ratio(step.batch)


def _measured(step: ColdStep, use: str, ratio: float) -> MeasuredStep:
    return MeasuredStep(
        step.kind.label, step.batch, step.sequence, use, round(ratio, 5), round(step.error, 5), round(step.p50_ns),
        step.samples, step.curve,
    )  # fmt: skip


def shape_of(step: ColdStep) -> Shape:
    """What names a captured shape."""
    return step.kind.label, step.batch, step.sequence


def _rounded(name: str, value: float) -> float | int:
    return round(value) if DIGITS.get(name) == 0 else round(value, 4)


def _rms(errors: list[float]) -> float:
    return math.sqrt(math.fsum(error * error for error in errors) / len(errors)) if errors else 0.0
