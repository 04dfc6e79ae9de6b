"""Fit the two free constants of the decode roofline to measured steps: `python -m blink.perf.fit [points.toml]`.

Free are the floor of a captured kernel and the share of the memory bandwidth that attention reaches; the
bandwidth of the matrix products and the FLOP rate are measured apart. A step is linear in the floor and in the
reciprocal of that share, so least squares over relative errors has a closed form. Points whose use is "holdout"
are predicted, never fitted.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.perf.engine import EngineProfile
from blink.perf.gpu import GpuProfile
from blink.perf.profile import SHIPPED, read_toml
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel

DEFAULT_POINTS = SHIPPED / "points" / "h200-llama-3-8b.toml"
USES = ("fit", "holdout")
ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Point:
    """One measured decode step: the period of the launch loop for `batch` sequences of `kv_length` tokens each."""

    use: str
    batch: int
    kv_length: int
    layers: int
    period_ns: int
    steps: int


@dataclass(frozen=True, slots=True)
class Points:
    """A file of measured steps of one model shape, engine and GPU."""

    gpu: GpuProfile
    engine: EngineProfile
    shape: ModelShape
    dtype_bytes: int
    points: tuple[Point, ...]

    def model(self, point: Point, gpu: GpuProfile) -> StepModel:
        """The step model of a point, whose layer count may differ from the shape's."""
        shape = dataclasses.replace(self.shape, layer_count=point.layers)
        return StepModel(shape, gpu, self.dtype_bytes, engine=self.engine)


@dataclass(frozen=True, slots=True)
class Fit:
    """What the fit determines, rounded as a profile states it."""

    kernel_floor_ns: int
    attention_bandwidth_efficiency: float

    def applied(self, gpu: GpuProfile) -> GpuProfile:
        """`gpu` with these constants."""
        return dataclasses.replace(
            gpu,
            kernel_floor_ns=self.kernel_floor_ns,
            attention_bandwidth_efficiency=self.attention_bandwidth_efficiency,
        )


@dataclass(frozen=True, slots=True)
class Residual:
    """A point beside the model's period, with the error relative to the measurement."""

    point: Point
    predicted_ns: int
    error: float


def load_points(path: str | Path = DEFAULT_POINTS) -> Points:
    """Read a points file. InputError names the file and the field that is wrong."""
    origin = str(path)
    raw = read_toml(Path(path), origin)
    try:
        tables: list[dict[str, Any]] = raw["point"]
        points = tuple(Point(**table) for table in tables)
        gpu, engine, model = raw["gpu"], raw["engine"], raw["model"]
        dtype_bytes = raw["dtype_bytes"]
    except KeyError as error:
        raise InputError(f"{origin}: {error.args[0]}: missing") from error
    except TypeError as error:
        raise InputError(f"{origin}: point: allowed: {', '.join(Point.__dataclass_fields__)}; {error}") from error
    for index, point in enumerate(points):
        if point.use not in USES:
            raise InputError(f"{origin}: point {index}: use: {point.use!r} is not allowed; allowed: {', '.join(USES)}")
        for name in ("batch", "kv_length", "layers", "period_ns", "steps"):
            if type(getattr(point, name)) is not int or getattr(point, name) < 1:
                raise InputError(f"{origin}: point {index}: {name}: {getattr(point, name)!r}; allowed: an integer >= 1")
    return Points(GpuProfile.load(gpu), EngineProfile.load(engine), ModelShape.load(model), dtype_bytes, points)


def fit(data: Points) -> Fit:
    """Least squares over the relative errors of the fit points. InputError if they do not settle both constants."""
    # Element-wise bytes count only beyond the floor, so the rest depends on the floor: solve until it stands still.
    found = Fit(1000, 1.0)
    for _ in range(ROUNDS):
        following = _solve(data, found.applied(data.gpu))
        if following == found:
            return found
        found = following
    raise InputError(f"fit: no fixed point after {ROUNDS} rounds; the points contradict the model")


def residuals(data: Points, gpu: GpuProfile) -> list[Residual]:
    """Every point, fitted or held out, beside the prediction with `gpu`'s constants."""
    rows = []
    for point in data.points:
        step_ns = data.model(point, gpu).decode_ns(point.batch, point.batch * point.kv_length)
        predicted = step_ns + gpu.loop_overhead_ns
        rows.append(Residual(point, predicted, predicted / point.period_ns - 1))
    return rows


def _solve(data: Points, gpu: GpuProfile) -> Fit:
    """One solve of (period - rest) / period = (kernels * floor + ideal attention / efficiency) / period."""
    rows = []
    for point in data.points:
        if point.use != "fit":
            continue
        parts = data.model(point, gpu).decode_breakdown(point.batch, point.batch * point.kv_length)
        ideal = parts.attention_bytes_ns * gpu.attention_bandwidth_efficiency
        rest = parts.total_ns - parts.floor_ns - parts.attention_ns + gpu.loop_overhead_ns
        period = point.period_ns
        rows.append((parts.floor_kernel_count / period, ideal / period, (period - rest) / period))
    aa = math.fsum(a * a for a, _, _ in rows)
    ab = math.fsum(a * b for a, b, _ in rows)
    bb = math.fsum(b * b for _, b, _ in rows)
    ay = math.fsum(a * y for a, _, y in rows)
    by = math.fsum(b * y for _, b, y in rows)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-9 * aa * bb:
        raise InputError("fit: the points do not determine both constants; allowed: at least two batches in use 'fit'")
    floor, inverse = (ay * bb - by * ab) / determinant, (by * aa - ay * ab) / determinant
    if floor <= 0 or inverse < 1:
        raise InputError(f"fit: floor {floor:.0f} ns and efficiency 1/{inverse:.3f} are not physical; check the points")
    return Fit(round(floor), round(1 / inverse, 4))


def report(data: Points, found: Fit) -> str:
    """The constants as a profile states them, and the table of residuals."""
    lines = [
        f"kernel_floor_ns = {found.kernel_floor_ns}",
        f"attention_bandwidth_efficiency = {found.attention_bandwidth_efficiency}",
        "",
        f"{'use':8} {'batch':>5} {'kv_length':>9} {'layers':>6} {'measured_ms':>11} {'model_ms':>9} {'error':>7}",
    ]
    for row in residuals(data, found.applied(data.gpu)):
        point = row.point
        lines.append(
            f"{point.use:8} {point.batch:5d} {point.kv_length:9d} {point.layers:6d} {point.period_ns / 1e6:11.4f} "
            f"{row.predicted_ns / 1e6:9.4f} {row.error:+7.2%}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the fit of a points file; 2 with one line on stderr when the file is wrong."""
    parser = argparse.ArgumentParser(prog="python -m blink.perf.fit", description=__doc__)
    parser.add_argument("points", nargs="?", default=DEFAULT_POINTS, help="TOML file of measured steps")
    try:
        data = load_points(parser.parse_args(arguments).points)
        print(report(data, fit(data)))
    except InputError as error:
        print(f"blink: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
