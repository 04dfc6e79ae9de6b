"""Replicas on one host: host-driven ones feel their neighbours through the host model, Blink's do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.common.results import RunResult
from tests.model.test_fleet import FREE, fleet, run, scenario

ALONE = FREE + 'gpus_per_host = { value = 1, unit = "GPUs", kind = "assumed", source = "a host each, for this test" }\n'
JOBS = [{"profile": "pbzip2", "threads": 45}, {"profile": "llvm-build", "threads": 45}]
SMALL = """\
profile = "host"
name = "small"
description = "The published testbed with two cores."
carry_over = "xeon-6336y-2s"
[constants]
cores_per_socket = { value = 1, unit = "cores", kind = "assumed", source = "little, for this test" }
"""


def mean_ttft_ms(result: RunResult) -> float:
    """Over all requests that have a first token."""
    rows = result.requests
    return float(np.mean(rows["ttft_ns"][rows["first_token_ns"] >= 0])) / 1e6


def both(kind: str, folder: Path, **more: Any) -> tuple[RunResult, RunResult]:
    """Four replicas on one host, and on a host each."""
    (folder / "free.toml").write_text(FREE)
    (folder / "alone.toml").write_text(ALONE)
    found = [
        run(scenario(kind, **fleet(4, profile=str(folder / f"{name}.toml")), **more)) for name in ("free", "alone")
    ]
    assert [one.fleet["hosts"] for one in found] == [1, 4]
    return found[0], found[1]


@pytest.mark.parametrize("jobs", [[], JOBS])
def test_blinks_replicas_are_nothing_to_one_another(jobs: list[Any], tmp_path: Path) -> None:
    together, apart = both("blink", tmp_path, interference={"jobs": jobs})
    for name, column in together.requests.items():
        assert np.array_equal(column, apart.requests[name]), name


@pytest.mark.parametrize("kind", ["cpu-resident", "vllm", "sglang", "trtllm"])
def test_host_driven_replicas_without_threads_of_their_own_compete_on_one_host(kind: str, tmp_path: Path) -> None:
    """A host of four hardware threads: one engine has enough of them beside two jobs or beside one, four have not."""
    (tmp_path / "host.toml").write_text(SMALL)
    host = {"profile": str(tmp_path / "host.toml"), "reserved_cores": 0}
    jobs = [{"profile": "bz2-fault", "threads": 2}]
    together, apart = both(kind, tmp_path, host=host, interference={"jobs": jobs})
    assert mean_ttft_ms(together) > 1.05 * mean_ttft_ms(apart)


@pytest.mark.parametrize("kind", ["cpu-resident", "vllm"])
def test_alone_on_a_host_with_threads_of_their_own_they_hardly_disturb_one_another(kind: str, tmp_path: Path) -> None:
    together, apart = both(kind, tmp_path)
    assert mean_ttft_ms(together) == pytest.approx(mean_ttft_ms(apart), rel=0.01)


def test_jobs_beside_several_replicas_have_what_all_of_these_leave(tmp_path: Path) -> None:
    """So the more replicas keep threads of a host, the fewer jobs disturb them, and the less its CPUs draw for jobs."""
    together, apart = both("vllm", tmp_path, host={"reserved_cores": 12}, interference={"jobs": JOBS})
    assert together.accounts["cpu_w"] < apart.accounts["cpu_w"]
    assert mean_ttft_ms(together) < mean_ttft_ms(apart)
