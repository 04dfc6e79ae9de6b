"""The table of launched graphs, by the rows of a scheduler."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blink.common.config import parse_scenario
from blink.common.events import GraphKind
from blink.common.steps import StepTable, scheduler_rows
from blink.common.trace import read_trace
from blink.perf.plant import Plant
from blink.sim.run import simulate
from blink.workload.build import build_load


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> StepTable:
    """Of a simulated run that relaunches often."""
    path = tmp_path_factory.mktemp("steps") / "trace.parquet"
    simulate(*build_load(scenario()), trace_path=path)
    return StepTable.of_trace(read_trace(path))


def scenario() -> object:
    return parse_scenario(
        {
            "name": "steps", "model": {"profile": "smollm2-135m"}, "gpu": {"profile": "h200"},
            "workload": {
                "requests": 30, "arrivals": {"kind": "poisson", "rate": 300.0},
                "lengths": {"kind": "uniform", "prompt_tokens": [5, 300], "output_tokens": [1, 40]},
            },
            "limits": {"window": 7, "batch_max": 8},
        },
        "test",
    )  # fmt: skip


def test_durations_are_those_of_the_model_for_batch_and_kv_tokens(steps: StepTable) -> None:
    """KV tokens and shapes must be right in every step: else the model would say another duration."""
    plant = Plant.of(scenario())  # type: ignore[arg-type]
    launch, seen = plant.gpu.launch_ns, 0
    for row in range(len(steps)):
        batch, sequence = int(steps.batch[row]), int(steps.sequence[row])
        if steps.kind[row] == GraphKind.DECODE:
            expected = plant.step.decode_ns(batch, int(steps.kv_tokens[row]))
            seen += 1
        else:
            expected = plant.step.prefill_ns(batch, sequence)
            assert 0 < steps.prompt_tokens[row] <= batch * sequence
        assert steps.graph_ns[row] == expected + launch
    assert seen > 20


def test_times_follow_one_another(steps: StepTable) -> None:
    assert np.all(np.diff(steps.step) == 1)
    assert np.all(steps.launched_ns < steps.done_ns)
    assert np.all(steps.done_ns <= steps.stored_ns)
    assert np.all(steps.boundary_ns[1:] == steps.ended_ns[:-1])
    assert steps.boundary_ns[0] == -1
    assert steps.relaunched.sum() >= len(steps) // 7 - 1


def test_a_trace_without_a_graph_is_an_empty_table() -> None:
    names = (
        "t_ns",
        "event",
        "instance",
        "step",
        "request_id",
        "from",
        "token_count",
        "graph",
        "batch",
        "sequence",
        "live",
    )
    empty = StepTable.of({name: np.zeros(0, np.int64) for name in names}, {})
    assert len(empty) == 0
    assert len(empty.of_kind(GraphKind.DECODE)) == 0


def test_rows_are_the_schedulers_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    simulate(*build_load(scenario()), trace_path=path)  # type: ignore[arg-type]
    rows = scheduler_rows(read_trace(path))
    assert np.all(np.diff(rows["step"]) >= 0)
