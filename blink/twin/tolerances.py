"""Tolerances: what a prediction may be off by, as a file says it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.profile import read_toml
from blink.twin.statistics import STATISTICS

LATENCIES = ("ttft", "tpot", "itl", "e2e")
THROUGHPUTS = ("output_tokens", "requests")
OCCUPANCIES = ("batch", "queue")
DISTANCES = ("wasserstein", "kolmogorov_smirnov")
PARTS = ("policy", "step_model", "frontend")
DEFAULT = Path(__file__).with_name("tolerances.toml")
_FLAGS = ("conformance", "each_regime", "by_start")
_TABLES: dict[str, tuple[str, ...]] = {
    "throughput": THROUGHPUTS, "occupancy": OCCUPANCIES, "distance": DISTANCES, "parts": PARTS,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tolerances:
    """Largest relative errors; a quantity that is not there is not judged.

    `by_start`: what a run scatters by from one start to the next counts. Intervals are of whole runs, and an error is
    outside only if all of its interval is.
    """

    source: str
    latency: Mapping[str, Mapping[str, float]]
    throughput: Mapping[str, float]
    occupancy: Mapping[str, float]
    distance: Mapping[str, float]
    parts: Mapping[str, float]
    floor_ms: float = 0.0
    conformance: bool = True
    each_regime: bool = False
    by_start: bool = False

    @classmethod
    def load(cls, path: Path | None = None) -> Tolerances:
        """Read a file, by default the one that comes with the package. InputError names what is wrong in it."""
        file = path or DEFAULT
        origin = str(file)
        raw = read_toml(file, origin)
        flags: dict[str, Any] = {name: raw.pop(name) for name in _FLAGS if name in raw}
        for name, value in flags.items():
            if not isinstance(value, bool):
                raise InputError(f"{origin}: {name}: {value!r} is not allowed; allowed: true, false")
        floor = _number(origin, "floor_ms", raw.pop("floor_ms", 0.0))
        latency = _table(origin, "latency", raw.pop("latency", {}), LATENCIES)
        found: dict[str, Any] = {name: _limits(origin, name, raw.pop(name, {}), keys) for name, keys in _TABLES.items()}
        if raw:
            allowed = ", ".join(("floor_ms", *_FLAGS, "latency", *_TABLES))
            raise InputError(f"{origin}: {next(iter(raw))}: unknown; allowed: {allowed}")
        per_latency = {
            name: _limits(origin, f"latency.{name}", table, tuple(STATISTICS)) for name, table in latency.items()
        }
        return cls(origin if path else "the package's tolerances", per_latency, **found, floor_ms=floor, **flags)


def _table(origin: str, name: str, table: Any, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise InputError(f"{origin}: {name}: {table!r} is not allowed; allowed: a table")
    for key in table:
        if key not in allowed:
            raise InputError(f"{origin}: {name}.{key}: unknown; allowed: {', '.join(allowed)}")
    return table


def _limits(origin: str, name: str, table: Any, allowed: tuple[str, ...]) -> dict[str, float]:
    found = _table(origin, name, table, allowed)
    return {key: _number(origin, f"{name}.{key}", value) for key, value in found.items()}


def _number(origin: str, where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"{origin}: {where}: {value!r} is not allowed; allowed: a number from 0")
    return float(value)
