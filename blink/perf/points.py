"""Points: measured steps of one model shape, engine and GPU, as `profiles/points/` holds them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.profile import SHIPPED, read_toml
from blink.perf.engine import EngineProfile
from blink.perf.gpu import GpuProfile
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel

USES = ("fit", "holdout", "excluded")
STEP_KINDS = ("prefill", "decode")
SIZES = ("batch", "sequence", "layers", "p50_ns", "samples")


@dataclass(frozen=True, slots=True)
class Point:
    """One measured step: `batch` sequences of `sequence` tokens, in the prompt (prefill) or the cache (decode).

    `p50_ns` is the median of `samples`, `max_ns` their largest (0: not kept). `why` says why a point is excluded.
    """

    use: str
    kind: str
    batch: int
    sequence: int
    layers: int
    p50_ns: int
    samples: int
    max_ns: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Points:
    """A file of measured steps; `loop`: they are periods of the device's launch loop, not durations of bare graphs."""

    name: str
    gpu: GpuProfile
    engine: EngineProfile
    shape: ModelShape
    dtype_bytes: int
    loop: bool
    points: tuple[Point, ...]

    def predicted_ns(self, point: Point, gpu: GpuProfile, engine: EngineProfile) -> float:
        """What was measured at `point`, by the model with these constants; the layer count is the point's."""
        model = StepModel(
            dataclasses.replace(self.shape, layer_count=point.layers), gpu, self.dtype_bytes, engine=engine
        )
        if point.kind == "prefill":
            parts = model.prefill_breakdown(point.batch, point.sequence)
        else:
            parts = model.decode_breakdown(point.batch, point.batch * point.sequence)
        return parts.sum_ns + (gpu.loop_overhead_ns if self.loop else 0)


def shipped_points() -> list[Path]:
    """The files of the package, in the order of their names."""
    return sorted((SHIPPED / "points").glob("*.toml"))


def load_points(path: str | Path) -> Points:
    """Read a points file. InputError names the file and the field that is wrong."""
    origin = str(path)
    raw = read_toml(Path(path), origin)
    try:
        tables: list[dict[str, Any]] = raw["point"]
        points = tuple(Point(**table) for table in tables)
        gpu, engine, model = raw["gpu"], raw["engine"], raw["model"]
        dtype_bytes, loop = raw["dtype_bytes"], raw["loop"]
    except KeyError as error:
        raise InputError(f"{origin}: {error.args[0]}: missing") from error
    except TypeError as error:
        raise InputError(f"{origin}: point: allowed: {', '.join(Point.__dataclass_fields__)}; {error}") from error
    if type(loop) is not bool:
        raise InputError(f"{origin}: loop: {loop!r} is not allowed; allowed: true, false")
    for index, point in enumerate(points):
        _check(f"{origin}: point {index}", point)
    return Points(
        Path(path).stem,
        GpuProfile.load(gpu),
        EngineProfile.load(engine),
        ModelShape.load(model),
        dtype_bytes,
        loop,
        points,
    )


def _check(where: str, point: Point) -> None:
    for name, allowed in (("use", USES), ("kind", STEP_KINDS)):
        if getattr(point, name) not in allowed:
            raise InputError(f"{where}: {name}: {getattr(point, name)!r} is not allowed; allowed: {', '.join(allowed)}")
    for name in SIZES:
        if type(getattr(point, name)) is not int or getattr(point, name) < 1:
            raise InputError(f"{where}: {name}: {getattr(point, name)!r}; allowed: an integer >= 1")
    if (point.use == "excluded") != bool(point.why):
        raise InputError(
            f"{where}: why: {point.why!r} is not allowed; allowed: a reason, if and only if it is excluded"
        )
