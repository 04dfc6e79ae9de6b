"""What a sweep costs beside its runs, and the sweep of docs/sweeps.md: rates, systems, jobs beside them, seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.scale import TINY, scaled
from blink.common.config import load_scenario
from blink.plan.point import PointResult
from blink.plan.sweep.grid import Grid, parse_rates
from blink.plan.sweep.question import Question
from blink.plan.sweep.row import row_of
from blink.plan.sweep.run import make
from blink.plan.sweep.store import RESULTS_NAME, Store, read_results
from blink.plan.variant import with_duration
from tests.shared import ROOT

SCENARIO = ROOT / "scenarios" / ("ci-tiny.toml" if TINY else "llama3-8b-h100.toml")
ROWS = scaled(1000, 20)
SYSTEMS = ("blink", "trtllm", "vllm", "sglang")


def test_rows_kept_one_by_one(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Every row is a file written anew, at most so often that it is a tenth of the time."""
    digests = [f"{number:016x}" for number in range(ROWS)]
    kept = {"summary": {"blink": {"notes": ["x" * 4000]}}, "window": {}, "within": {}}
    rows = [row_of(PointResult((("seed", number),), kept), digest, ()) for number, digest in enumerate(digests)]

    def keep() -> None:
        with Store(tmp_path, {}, digests) as store:
            for index, row in enumerate(rows):
                store.put(index, row)

    benchmark.pedantic(keep, rounds=1, iterations=1)
    assert len(read_results(tmp_path / RESULTS_NAME)[1]) == ROWS


@pytest.mark.parametrize("workers", [1] if TINY else [1, 2])
def test_ten_minutes_at_thirteen_rates(benchmark: BenchmarkFixture, workers: int) -> None:
    """One seed and one level of jobs of the whole: a sixth of 13 rates, 4 systems, 2 levels, 3 seeds."""
    scenario = with_duration(load_scenario(SCENARIO), scaled(600, 1))
    rates = parse_rates("20:40:2" if TINY else "1:32:13")
    question = Question(scenario, Grid.of({"system": SYSTEMS, "interference": ["none"]}, rates, 1))
    made = benchmark.pedantic(lambda: make(question, workers=workers), rounds=1, iterations=1)
    assert len(made.rows) == len(rates) * len(SYSTEMS)
    assert not any(row["error"] for row in made.rows)
