"""A comparison: the figures of every system under every condition, their ratios, and what is significant."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from blink.common.config import Scenario
from blink.common.config.system import CpuResidentSystem, HostDrivenSystem
from blink.perf.host.conditions import HostCounters
from blink.perf.host.scenario import host_conditions
from blink.plan.axes import Axes, apply
from blink.plan.interval import CONFIDENCE, Interval, mean_interval, ratio_interval
from blink.plan.point import Key, PointResult
from blink.sim.engines.run import LAYOUTS

FIGURES: dict[str, tuple[str, ...]] = {
    "output_throughput": ("output_throughput",),
    "median_ttft_ms": ("median_ttft_ms",),
    "p99_ttft_ms": ("p99_ttft_ms",),
    "median_tpot_ms": ("median_tpot_ms",),
    "p99_tpot_ms": ("p99_tpot_ms",),
    "p99_itl_ms": ("p99_itl_ms",),
    "median_e2el_ms": ("median_e2el_ms",),
    "p99_e2el_ms": ("p99_e2el_ms",),
    "request_goodput": ("request_goodput",),
    "completed": ("completed",),
    "failed": ("failed",),
    "gpu_busy": ("blink", "accounts", "gpu_busy"),
    "wall_w": ("blink", "accounts", "wall_w"),
    "energy_mj_per_token": ("blink", "accounts", "energy_mj_per_token"),
    "cost_usd_per_million_tokens": ("blink", "accounts", "cost_usd_per_million_tokens"),
}
"""Name of a figure -> where summary.json has it."""

SIGNIFICANT_DIGITS = 6
CPU_RESIDENT_THREADS = 1  # the scheduler's own

_NUMBER = re.compile(r"\d+")


def compare(scenario: Scenario, axes: Axes, results: Sequence[PointResult]) -> dict[str, Any]:
    """All that the runs say, as plain data in a fixed order.

    `cells` has one entry a system and condition: `figures` with mean, interval and the value of each seed; `over_first`
    the ratio over the first system under the same condition; `over_isolated` over the same system without other jobs;
    `over_unmitigated` over the same without mitigations. A ratio is `significant` if its interval leaves out 1, None
    where a single seed gives no interval. Runs that are missing make the comparison `partial`.
    """
    by_key = {result.key: result.summary for result in results}
    seeds = axes.seeds(scenario)
    cells = []
    for system in axes.systems:
        for condition in axes.conditions():
            key = (("system", system), *condition)
            made = _values(by_key, key, seeds)
            cells.append(
                {
                    "key": dict(key),
                    "figures": {name: estimate(mean_interval(values), values) for name, values in made.items()},
                    "counters": host_counters(apply(scenario, key)),
                    "over_first": _ratios(by_key, key, _replaced(key, "system", axes.systems[0]), seeds),
                    "over_isolated": _ratios(by_key, key, _replaced(key, axes.level_name, axes.isolated), seeds),
                    "over_unmitigated": _ratios(by_key, key, _unmitigated(key, axes), seeds),
                }
            )
    return {
        "scenario": scenario.name,
        "description": scenario.description,
        "model": scenario.model.profile or scenario.model.hf_config,
        "gpu": scenario.gpu.profile,
        "host": scenario.host.profile,
        "partial": len(results) < len(cells) * len(seeds),
        "confidence": CONFIDENCE,
        "seeds": list(seeds),
        "axes": {
            "system": list(axes.systems),
            "rate": list(axes.rates),
            axes.level_name: list(axes.levels),
            "mitigations": list(axes.mitigations),
        },
        "notes": _notes(results),
        "cells": cells,
    }


def host_counters(scenario: Scenario) -> dict[str, float] | None:
    """What performance counters of the engine's cores would show; None for Blink, which has no work there."""
    system = scenario.system
    if isinstance(system, HostDrivenSystem):
        counters: HostCounters = host_conditions(scenario, LAYOUTS[system.kind].busy_threads).counters
    elif isinstance(system, CpuResidentSystem):
        counters = host_conditions(scenario, CPU_RESIDENT_THREADS).counters
    else:
        return None
    return {name: rounded(value) for name, value in asdict(counters).items()}


def figure(summary: Mapping[str, Any], name: str) -> float | None:
    """One of FIGURES out of a summary; None where there is none."""
    found: Any = summary
    for part in FIGURES[name]:
        found = found.get(part) if isinstance(found, Mapping) else None
    return None if found is None else float(found)


def _values(by_key: Mapping[Key, Mapping[str, Any]], key: Key, seeds: Sequence[int]) -> dict[str, list[float | None]]:
    made = [by_key.get((*key, ("seed", seed))) for seed in seeds]
    return {name: [None if one is None else figure(one, name) for one in made] for name in FIGURES}


def _ratios(
    by_key: Mapping[Key, Mapping[str, Any]], key: Key, base: Key | None, seeds: Sequence[int]
) -> dict[str, dict[str, Any] | None] | None:
    """Figure -> ratio over the base, paired by seed; None if there is no other base."""
    if base is None or base == key:
        return None
    over, under = _values(by_key, key, seeds), _values(by_key, base, seeds)
    return {name: ratio(ratio_interval(over[name], under[name])) for name in FIGURES}


def _replaced(key: Key, name: str, value: Any) -> Key | None:
    return None if value is None else tuple((part, value if part == name else own) for part, own in key)


def _unmitigated(key: Key, axes: Axes) -> Key | None:
    return _replaced(key, "mitigations", "none") if "none" in axes.mitigations else None


def estimate(found: Interval | None, values: Sequence[float | None]) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"mean": rounded(found.estimate), **_bounds(found), "values": list(values)}


def ratio(found: Interval | None) -> dict[str, Any] | None:
    if found is None:
        return None
    includes = found.includes(1.0)
    significant = None if includes is None else not includes
    return {"ratio": rounded(found.estimate), **_bounds(found), "significant": significant}


def _bounds(found: Interval) -> dict[str, float | None]:
    low = None if found.low is None else rounded(found.low)
    high = None if found.high is None else rounded(found.high)
    return {"low": low, "high": high}


def rounded(value: float) -> float:
    """Six digits that count: what lies beyond depends on the machine's logarithm."""
    return float(f"{value:.{SIGNIFICANT_DIGITS}g}")


def _notes(results: Sequence[PointResult]) -> list[str]:
    """What a reader must know, each with the systems that it holds for; alike but for numbers is the same."""
    said: dict[str, tuple[str, list[str]]] = {}
    for result in results:
        system = str(dict(result.key)["system"])
        for note in result.summary["blink"]["notes"]:
            systems = said.setdefault(_NUMBER.sub("0", note), (note, []))[1]
            if system not in systems:
                systems.append(system)
    return [f"{', '.join(systems)}: {note}" for note, systems in said.values()]
