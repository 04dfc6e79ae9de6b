"""The trace of a host-driven engine on disk, and what its checker catches: one wrong row for each rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.common.errors import InputError
from blink.common.lifecycle import (
    COLUMNS,
    LifeEvent,
    LifeHeader,
    LifeTrace,
    LifeWriter,
    is_lifecycle,
    read_lifecycle,
)
from blink.common.lifecycle_check import check_lifecycle
from blink.common.verdict import CONFORMS, INCONCLUSIVE, STUCK, VIOLATES
from tests.model.engine_runs import document, run

BURST = {
    "requests": 12,
    "arrivals": {"kind": "all-at-once"},
    "lengths": {"kind": "uniform", "prompt_tokens": [40, 200], "output_tokens": [5, 80]},
}
AT = {name: index for index, name in enumerate(COLUMNS)}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> LifeTrace:
    """A run with chunks and preemptions."""
    path = tmp_path_factory.mktemp("life") / "trace.parquet"
    result = run(document("vllm", BURST, num_gpu_blocks=30, max_num_batched_tokens=64, max_num_seqs=8), trace=path)
    assert result.counters["preemptions"] > 0
    return read_lifecycle(path)


def rows_of(trace: LifeTrace) -> list[list[int]]:
    return [list(row) for row in zip(*(trace.columns[name].tolist() for name in COLUMNS), strict=True)]


def changed(trace: LifeTrace, rows: list[list[int]]) -> LifeTrace:
    table = np.array(rows, np.int64)
    assert trace.footer is not None
    footer = replace(trace.footer, events=len(rows))
    return LifeTrace("test", trace.header, footer, {name: table[:, index] for name, index in AT.items()})


def first(rows: list[list[int]], event: LifeEvent, nth: int = 0) -> int:
    return [index for index, row in enumerate(rows) if row[AT["event"]] == event][nth]


def test_the_run_conforms(good: LifeTrace) -> None:
    verdict = check_lifecycle(good)
    assert (verdict.code, verdict.counts["requests"]) == (CONFORMS, 12)


def drop(event: LifeEvent, nth: int = 0) -> Any:
    def mutate(rows: list[list[int]]) -> None:
        del rows[first(rows, event, nth)]

    return mutate


def put(event: LifeEvent, column: str, value: int, nth: int = 0) -> Any:
    def mutate(rows: list[list[int]]) -> None:
        rows[first(rows, event, nth)][AT[column]] = value

    return mutate


def swap(event: LifeEvent, one: int, other: int) -> Any:
    def mutate(rows: list[list[int]]) -> None:
        a, b = first(rows, event, one), first(rows, event, other)
        for name in ("request_id", "tokens", "context"):
            rows[a][AT[name]], rows[b][AT[name]] = rows[b][AT[name]], rows[a][AT[name]]

    return mutate


def repeat(event: LifeEvent) -> Any:
    def mutate(rows: list[list[int]]) -> None:
        at = first(rows, event)
        rows.insert(at, list(rows[at]))

    return mutate


@pytest.mark.parametrize(
    ("rule", "mutate"),
    [
        ("R1", drop(LifeEvent.RECEIVED)),
        ("R1", drop(LifeEvent.TOKENIZED)),
        ("R1", repeat(LifeEvent.RECEIVED)),
        ("R1", put(LifeEvent.SCHEDULED, "t_ns", 0)),
        ("R2", drop(LifeEvent.TOKEN)),
        ("R2", repeat(LifeEvent.TOKEN)),
        ("R2", put(LifeEvent.TOKEN, "step", 0)),
        ("R3", put(LifeEvent.PREFILL_CHUNK, "context", 1)),
        ("R3", put(LifeEvent.PREFILL_CHUNK, "tokens", 5000)),
        ("R3", put(LifeEvent.RESUMED, "tokens", 1)),
        ("R2", put(LifeEvent.PREFILL_CHUNK, "tokens", 1, 1)),
        ("R4", drop(LifeEvent.RESUMED)),
        ("R5", put(LifeEvent.FINISHED, "tokens", 1)),
        ("R5", put(LifeEvent.DELIVERED, "tokens", 1)),
        ("R5", drop(LifeEvent.FINISHED)),
        ("R5", repeat(LifeEvent.DELIVERED)),
        ("S1", drop(LifeEvent.STEP_LAUNCHED)),
        ("S1", put(LifeEvent.STEP_DONE, "step", 7)),
        ("S2", put(LifeEvent.STEP_LAUNCHED, "rows", 9)),
        ("S2", put(LifeEvent.STEP_LAUNCHED, "tokens", 65)),
        ("S3", put(LifeEvent.STEP_LAUNCHED, "blocks", 31)),
        ("S4", swap(LifeEvent.QUEUED, 0, 1)),
    ],
)
def test_each_rule_catches_its_breach(good: LifeTrace, rule: str, mutate: Any) -> None:
    rows = rows_of(good)
    mutate(rows)
    verdict = check_lifecycle(changed(good, rows))
    assert verdict.code == VIOLATES
    assert rule in {finding.invariant for finding in verdict.violations}, verdict.report()


def test_a_request_without_an_end_is_stuck_and_a_cut_trace_is_inconclusive(good: LifeTrace) -> None:
    rows = rows_of(good)
    del rows[first(rows, LifeEvent.DELIVERED)]
    assert check_lifecycle(changed(good, rows)).code == STUCK
    assert check_lifecycle(replace(good, footer=None)).code == INCONCLUSIVE
    assert good.footer is not None
    assert check_lifecycle(replace(good, footer=replace(good.footer, complete=False))).code == INCONCLUSIVE


@pytest.mark.parametrize("suffix", ["ndjson", "parquet"])
def test_both_files_hold_the_same(good: LifeTrace, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"trace.{suffix}"
    writer = LifeWriter(path, good.header)
    writer.write(good.columns)
    assert not path.exists()
    writer.close(complete=True)
    assert is_lifecycle(path)
    found = read_lifecycle(path)
    assert (found.header, found.footer) == (good.header, good.footer)
    for name in COLUMNS:
        np.testing.assert_array_equal(found.columns[name], good.columns[name])


def test_wrong_files_are_refused_in_one_line(tmp_path: Path) -> None:
    header = LifeHeader("r", 1, 1, 1, 1, 16, True)
    with pytest.raises(InputError, match="suffix is"):
        LifeWriter(tmp_path / "a.csv", header)
    path = tmp_path / "a.ndjson"
    LifeWriter(path, header).close(complete=True)
    text = path.read_text()
    for wrong, message in (
        ('{"t_ns":1,"event":"slept"}\n', "line 2, column event: 'slept'; allowed: received"),
        ('{"t_ns":"x","event":"received"}\n', "line 2, column t_ns: 'x'; allowed: an integer"),
        ('{"when":1}\n', "line 2, column when: unknown"),
        ("[]\n", "line 2: is not an object"),
    ):
        path.write_text(text.splitlines()[0] + "\n" + wrong)
        with pytest.raises(InputError, match=message):
            read_lifecycle(path)
