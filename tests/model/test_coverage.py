"""Invariant S: what the traces of this suite hold, taken together, is all that the specification names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from blink.common.checker import check_trace
from blink.common.coverage import Coverage, missing_from
from blink.common.faults import Fault, FaultKind
from blink.common.verdict import CONFORMS
from blink.prove.configurations import CONFIGURATION_BY_NAME
from blink.prove.recording import trace_of
from blink.prove.rules import Rules
from blink.sim.drill import SPAN_NS, drill
from blink.workload.drill import Shape, draw_case
from tests.model.prove_paths import random_path

PATHS = 600
DAMAGE = Fault(SPAN_NS // 3, FaultKind.BAD_DESCRIPTOR)


def paths_of(name: str) -> list[Coverage]:
    """Of the traces of random runs of the model."""
    configuration, choices = CONFIGURATION_BY_NAME[name], np.random.default_rng(1)
    verdicts = []
    for _ in range(PATHS):
        steps = random_path(configuration, choices, int(choices.integers(20, 120)))
        verdicts.append(check_trace(trace_of(Rules.of(configuration), steps, drained=True)))
    assert all(verdict.code == CONFORMS for verdict in verdicts)
    return [verdict.coverage for verdict in verdicts]


def test_every_transition_status_event_and_race_occurs_and_each_source_alone_misses_some(tmp_path: Path) -> None:
    faults, errors = paths_of("one-slot-faults"), paths_of("one-slot-errors")
    run = drill(replace(draw_case(2, SPAN_NS, (Shape.STEADY,)), plan=(DAMAGE,)), tmp_path)
    assert run.judge() == []
    assert missing_from([*faults, *errors, *run.coverage]) == []
    assert "statuses bad_descriptor" in missing_from([*faults, *errors])
    assert "statuses time_limit" in missing_from([*faults, *run.coverage])
    assert missing_from(run.coverage)
