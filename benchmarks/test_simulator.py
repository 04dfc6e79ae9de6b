"""Simulated requests and tokens per second of one core, with the peak of memory of the process.

The time in the table is that of the whole process, imports and drawing of the load included; `wall_s` and `cpu_s` are
those of `simulate` alone. Nothing here fails for being slow: the figures and their story are in
docs/measurements/simulator-speed.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.scale import TINY, scaled
from tests.shared import ROOT, shared_path

SCENARIO = str(ROOT / "scenarios" / "llama3-8b-h100.toml")
HOUR_REQUESTS = scaled(28_800, 60)
"""An hour at 8 requests/s."""
AZURE = "traces/AzureLLMInferenceTrace_conv.csv"
AZURE_REQUESTS = scaled(19_366, 60)
MIB = 1 << 20


@pytest.mark.parametrize("trace", ["off", "on"])
def test_an_hour_of_llama_3_8b_on_h100(benchmark: BenchmarkFixture, tmp_path: Path, trace: str) -> None:
    overrides = [f"workload.requests={HOUR_REQUESTS}", "workload.duration_s=100000"]
    figures = measured(benchmark, overrides, tmp_path / "trace.parquet" if trace == "on" else None)
    assert figures["requests"] == HOUR_REQUESTS
    if not TINY:
        assert figures["output_tokens"] == pytest.approx(13.3e6, rel=0.02)


@pytest.mark.parametrize("trace", ["off", "on"])
def test_the_azure_trace(benchmark: BenchmarkFixture, tmp_path: Path, trace: str) -> None:
    source = {"file": str(shared_path(AZURE)), "limit": AZURE_REQUESTS}
    text = ", ".join(f"{name} = {json.dumps(value)}" for name, value in source.items())
    overrides = [f"workload.trace={{{text}}}", "workload.requests=1000000", "workload.duration_s=1000000"]
    figures = measured(benchmark, overrides, tmp_path / "trace.parquet" if trace == "on" else None)
    assert figures["requests"] == AZURE_REQUESTS


def measured(benchmark: BenchmarkFixture, overrides: list[str], trace_path: Path | None) -> dict[str, Any]:
    """The figures of one run, which also go into the benchmark's record."""
    job = {"scenario": SCENARIO, "set": overrides, "trace": str(trace_path) if trace_path else None}
    command = [sys.executable, "-m", "benchmarks.one_run", json.dumps(job)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def run() -> str:
        return subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout

    figures: dict[str, Any] = json.loads(benchmark.pedantic(run, rounds=1, iterations=1))
    benchmark.extra_info.update(
        requests=figures["requests"],
        output_tokens=figures["output_tokens"],
        wall_s=figures["wall_s"],
        cpu_s=figures["cpu_s"],
        requests_per_s=figures["requests"] / figures["wall_s"],
        output_tokens_per_s=figures["output_tokens"] / figures["wall_s"],
        peak_mib=figures["peak_bytes"] / MIB,
    )
    if trace_path:
        benchmark.extra_info["trace_mib"] = trace_path.stat().st_size / MIB
    return figures
