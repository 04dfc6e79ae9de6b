"""Small runs of host-driven engines for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blink.common.config import parse_scenario
from blink.common.config.system import HostDrivenSystem
from blink.common.results import RunResult
from blink.sim.engines.host import Conditions
from blink.sim.engines.run import simulate_engine
from blink.workload.build import build_load

KINDS = ("vllm", "sglang", "trtllm")


def document(kind: str, workload: dict[str, Any], **system: Any) -> dict[str, Any]:
    """A scenario of a small model on an H200."""
    return {
        "name": "test",
        "system": {"kind": kind, **system},
        "model": {"profile": "smollm2-135m"},
        "gpu": {"profile": "h200"},
        "workload": workload,
    }


def run(data: dict[str, Any], *, conditions: Conditions | None = None, trace: Path | None = None) -> RunResult:
    """One run; `conditions` in place of the scenario's host."""
    scenario, load = build_load(parse_scenario(data, "test"))
    assert isinstance(scenario.system, HostDrivenSystem)
    return simulate_engine(scenario, scenario.system, load, conditions=conditions, trace_path=trace)


def poisson(count: int, rate: float, prompt: int, output: int | tuple[int, int]) -> dict[str, Any]:
    """Poisson arrivals; one output length, or equally likely ones between two."""
    low, high = (output, output) if isinstance(output, int) else output
    return {
        "requests": count,
        "arrivals": {"kind": "poisson", "rate": rate},
        "lengths": {"kind": "uniform", "prompt_tokens": [prompt, prompt], "output_tokens": [low, high]},
    }
