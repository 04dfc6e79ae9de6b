"""Fit the free constants of the roofline to measured steps: `python -m blink.perf.fit [points.toml ...]`.

Free are six constants that no other measurement gives: what a kernel and a product take beyond their bytes, how well a
product overlaps bytes and FLOPs, the shares that attention reaches, and the share of a copy's bandwidth at which the
plain engine's element-wise kernels run. Least squares over relative errors, by Levenberg and Marquardt's method
from a fixed start. Points whose use is "holdout" are predicted, never fitted.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from blink.common.errors import InputError
from blink.perf.engine import EngineProfile
from blink.perf.gpu import GpuProfile
from blink.perf.points import Point, Points, load_points, shipped_points
from blink.perf.step import DEFAULT_ENGINE

Vector = npt.NDArray[np.float64]

START = (2000.0, 3000.0, 2.0, 0.9, 0.5, 0.7)
LOW = (1.0, 1.0, 1.0, 0.01, 0.01, 0.01)
HIGH = (1e6, 1e6, 100.0, 1.0, 1.0, 1.0)
DIGITS = (0, 0, 3, 4, 4, 4)
ROUNDS = 200
STEP = 1e-4  # relative, of a finite difference
STANDING = 1e-7  # relative, below which no constant moves any more
CONDITION = 1e-4  # least singular value over the largest, per relative change of a constant


@dataclass(frozen=True, slots=True)
class Fit:
    """What the fit determines, rounded as a profile states it."""

    kernel_floor_ns: int
    gemm_ramp_ns: int
    gemm_overlap_exponent: float
    attention_bandwidth_efficiency: float
    attention_flops_efficiency: float
    elementwise_efficiency: float

    def on_gpu(self, gpu: GpuProfile) -> GpuProfile:
        """`gpu` with these constants."""
        return dataclasses.replace(
            gpu,
            kernel_floor_ns=self.kernel_floor_ns,
            gemm_ramp_ns=self.gemm_ramp_ns,
            gemm_overlap_exponent=self.gemm_overlap_exponent,
            attention_bandwidth_efficiency=self.attention_bandwidth_efficiency,
            attention_flops_efficiency=self.attention_flops_efficiency,
        )

    def on_engine(self, engine: EngineProfile) -> EngineProfile:
        """`engine` with these constants; only the plain engine's are fitted."""
        if engine.name != DEFAULT_ENGINE:
            return engine
        return dataclasses.replace(engine, elementwise_efficiency=self.elementwise_efficiency)


@dataclass(frozen=True, slots=True)
class Residual:
    """A point beside the model's duration, with the error relative to the measurement."""

    point: Point
    predicted_ns: float
    error: float


def residuals(data: Points, found: Fit, uses: tuple[str, ...] = ("fit", "holdout")) -> list[Residual]:
    """Every point of these uses beside the prediction."""
    gpu, engine = found.on_gpu(data.gpu), found.on_engine(data.engine)
    rows = []
    for point in data.points:
        if point.use in uses:
            predicted = data.predicted_ns(point, gpu, engine)
            rows.append(Residual(point, predicted, predicted / point.p50_ns - 1))
    return rows


def fit(files: Sequence[Points]) -> Fit:
    """Least squares over the relative errors of all fit points. InputError if they do not settle every constant."""

    def errors(values: Vector) -> Vector:
        guess = Fit(*values.tolist())
        return np.array([row.error for data in files for row in residuals(data, guess, ("fit",))])

    values = np.array(START)
    left = errors(values)
    damping = 1e-3
    for _ in range(ROUNDS):
        slopes = _slopes(errors, values, left)
        normal = slopes.T @ slopes
        _determined(slopes, values)
        moves = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slopes.T @ left)
        following = np.clip(values * (1 + np.clip(moves, -0.3, 0.3)), LOW, HIGH)
        then = errors(following)
        if then @ then > left @ left:
            damping *= 4
            continue
        still = bool(np.all(np.abs(following / values - 1) < STANDING))
        values, left, damping = following, then, damping / 3
        if still:
            return _rounded(values)
    raise InputError(f"fit: not at rest after {ROUNDS} rounds; the points contradict the model")


def _slopes(errors: Any, values: Vector, left: Vector) -> Vector:
    """Change of each error per relative change of each constant."""
    columns = []
    for index in range(len(values)):
        moved = values.copy()
        moved[index] *= 1 + STEP
        columns.append((errors(moved) - left) / STEP)
    return np.array(columns).T


def _determined(slopes: Vector, values: Vector) -> None:
    singular = np.linalg.svd(slopes, compute_uv=False) if len(slopes) >= len(START) else np.zeros(1)
    if singular[-1] <= CONDITION * singular[0]:
        _inside(values)
        raise InputError(
            "fit: the points do not determine all constants; allowed: prefill and decode at several batches and "
            "sequences, of two engines, in use 'fit'"
        )


def _inside(values: Vector) -> None:
    for name, value, low, high in zip(Fit.__dataclass_fields__, values, LOW, HIGH, strict=True):
        if value in (low, high):
            raise InputError(f"fit: {name} stands at its limit, {value:g}; check the points")


def _rounded(values: Vector) -> Fit:
    _inside(values)
    numbers = [
        round(value, digits) if digits else round(value) for value, digits in zip(values.tolist(), DIGITS, strict=True)
    ]
    return Fit(*numbers)


def constants_report(found: Fit) -> str:
    """The constants as a profile states them."""
    return "\n".join(f"{name} = {value}" for name, value in dataclasses.asdict(found).items())


def summary_report(files: Sequence[Points], found: Fit) -> str:
    """Errors of each file by use and kind of step: how many, the root of their mean square, least and largest."""
    groups: dict[tuple[str, str, str], list[float]] = {}
    for data in files:
        for row in residuals(data, found):
            groups.setdefault((row.point.use, data.name, row.point.kind), []).append(row.error)
    lines = [f"{'use':8} {'points':22} {'kind':7} {'count':>5} {'rms':>6} {'least':>7} {'largest':>7}"]
    for (use, name, kind), errors in sorted(groups.items()):
        rms = math.sqrt(math.fsum(error * error for error in errors) / len(errors))
        lines.append(f"{use:8} {name:22} {kind:7} {len(errors):5d} {rms:6.2%} {min(errors):+7.2%} {max(errors):+7.2%}")
    return "\n".join(lines)


def residuals_report(data: Points, found: Fit) -> str:
    """The table of residuals of one file, and why points are missing from it."""
    sizes = f"{'batch':>5} {'sequence':>8} {'layers':>6}"
    lines = [
        f"{data.name} ({data.engine.name})",
        f"{'use':8} {'kind':7} {sizes} {'measured_ms':>11} {'model_ms':>9} {'error':>7}",
    ]
    for row in residuals(data, found):
        point = row.point
        lines.append(
            f"{point.use:8} {point.kind:7} {point.batch:5d} {point.sequence:8d} {point.layers:6d} "
            f"{point.p50_ns / 1e6:11.4f} {row.predicted_ns / 1e6:9.4f} {row.error:+7.2%}"
        )
    reasons = [point.why for point in data.points if point.use == "excluded"]
    lines += [f"excluded: {reasons.count(why)} points: {why}" for why in sorted(set(reasons))]
    return "\n".join(lines)


def report(files: Sequence[Points], found: Fit) -> str:
    """The constants, the errors in short, and every table."""
    return "\n\n".join(
        [constants_report(found), summary_report(files, found), *(residuals_report(data, found) for data in files)]
    )


def main(arguments: list[str] | None = None) -> int:
    """Print the fit of the points files; 2 with one line on stderr when a file is wrong."""
    parser = argparse.ArgumentParser(prog="python -m blink.perf.fit", description=__doc__)
    parser.add_argument("points", nargs="*", type=Path, help="TOML files of measured steps (default: all shipped)")
    try:
        files = [load_points(path) for path in parser.parse_args(arguments).points or shipped_points()]
        print(report(files, fit(files)))
    except InputError as error:
        print(f"blink: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
