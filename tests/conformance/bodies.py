"""What the tests of conformance share: backends by name, the body that all of them pass, a skip with a reason."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from blink.common.config import load_scenario, parse_scenario
from blink.conform.backend import Backend, Cuda, Native, Sim
from blink.conform.levels import Campaign, Comparison, Level
from blink.hw.native.build import find_compiler
from blink.workload.build import build_load
from tests.hw.cuda_help import GPU_MARKS
from tests.shared import ROOT

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler: install g++ or set CXX")
BACKENDS = ["sim", pytest.param("native", marks=needs_compiler), pytest.param("cuda", marks=GPU_MARKS)]
FAST_TO_COMPILE = ("-O0",)
SCENARIO = ROOT / "scenarios" / "conformance-small.toml"
CANCELS: dict[str, Any] = {
    "name": "cancels",
    "model": {"profile": "smollm2-135m"},
    "gpu": {"profile": "h200"},
    "workload": {
        "requests": 40,
        "arrivals": {"kind": "poisson", "rate": 4000.0},
        "lengths": {"kind": "uniform", "prompt_tokens": [3, 60], "output_tokens": [1, 60]},
        "cancel": {"fraction": 0.5, "after_s": 0.01},
    },
    "limits": {"batch_max": 6, "prompt_capacity_tokens": 64, "output_capacity_tokens": 64, "window": 5},
    "trace": {"token_reads": "each"},
}
"""Hundreds of steps, so that a cancel lands in the middle of most texts that get one."""


def backend_of(name: str, mutant: str | None = None, time_scale: float = 1.0) -> Backend:
    """The backend of a name, or a mutant of it."""
    if name == "cuda":
        return Cuda(mutant, time_scale)
    return Sim() if name == "sim" else Native(mutant, time_scale, FAST_TO_COMPILE if mutant else ())


@lru_cache
def campaign_of(name: str, which: str, mutant: str | None = None) -> Campaign:
    """The simulator and another backend on a scenario; their runs are made once."""
    scenario = load_scenario(str(SCENARIO)) if which == "small" else parse_scenario(CANCELS, "cancels")
    scenario, requests = build_load(scenario)
    return Campaign([Sim(), backend_of(name, mutant)], scenario, requests, stall_s=3.0)


def compare(level: Level, name: str, which: str, scripts: int = 30, mutant: str | None = None) -> Comparison:
    """The body: one level of one backend, held against the simulator."""
    campaign = campaign_of(name, which, mutant)
    first, other = campaign.backends
    if level is Level.LEGAL:
        return campaign.legal(other)
    if level is Level.EQUIVALENT:
        return campaign.equivalent(first, other)
    if level is Level.LOCKSTEP:
        return campaign.lockstep(first, other, scripts, seed=7)
    return campaign.replay(other)
