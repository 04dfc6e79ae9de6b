"""Every backend, at every level: one body (tests/conformance/bodies.py), on fixed scenarios and on random workloads."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from blink.common.config import parse_scenario
from blink.conform.levels import Campaign, Level
from blink.conform.lockstep import Compared, compare_script, random_scripts
from blink.conform.script import Script
from blink.workload.build import build_load
from tests.conformance.bodies import BACKENDS, backend_of, compare
from tests.conformance.strategies import scripts
from tests.model.test_modes import scenarios

SCRIPTS = 2_000
WORKLOADS = 25
TIME_SCALE = 0.01
"""Of random workloads: the slowest of them takes a fifth of a second."""


@pytest.mark.parametrize("which", ["small", "cancels"])
@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("name", BACKENDS)
def test_a_backend_conforms_at_a_level(name: str, level: Level, which: str) -> None:
    found = compare(level, name, which)
    assert found.code == 0, found
    assert all(count > 0 for what, count in found.compared.items() if what != "ended by a clock")


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS[1:])
def test_decisions_in_lock_step_are_equal_on_random_scripts(name: str) -> None:
    names, tally, windows = ("sim", name), Compared(), Counter[int]()
    openers = (backend_of("sim").stepper, backend_of(name).stepper)

    @settings(max_examples=SCRIPTS, deadline=None, suppress_health_check=list(HealthCheck))
    @given(scripts())
    def body(script: Script) -> None:
        difference = compare_script(names, openers, script, tally)
        assert difference is None, "\n".join(difference.lines())
        windows[script.machine.limits.window] += 1

    body()
    print(f"{tally.scripts:,} scripts, {tally.decisions:,} decisions, {tally.events:,} events; windows {dict(windows)}")
    assert tally.scripts >= SCRIPTS
    assert tally.decisions > 10 * SCRIPTS
    assert min(windows[window] for window in (3, 120)) > SCRIPTS // 20


@pytest.mark.parametrize("name", BACKENDS)
def test_random_workloads_are_legal_equivalent_and_replayed(name: str) -> None:
    backend = backend_of(name, time_scale=TIME_SCALE)

    @settings(max_examples=WORKLOADS, deadline=None, suppress_health_check=list(HealthCheck))
    @given(scenarios(("blink",)))  # the system whose ring every backend serves
    def body(document: dict[str, Any]) -> None:
        scenario, requests = build_load(parse_scenario(document, "random"))
        first = backend_of("sim")
        campaign = Campaign([first, backend], scenario, requests)
        for found in (campaign.legal(backend), campaign.equivalent(first, backend), campaign.replay(backend)):
            assert found.difference is None, "\n".join(found.difference.lines())
            assert found.code == 0 or "ended by a clock" in found.reason, found.reason

    body()


def test_scripts_reach_every_decision_event_and_status() -> None:
    """A comparison that never sees a pause says nothing about pauses."""
    tally = Compared()
    stepper = backend_of("sim").stepper
    for script in random_scripts(seed=1, count=150):
        assert compare_script(("sim", "again"), (stepper, stepper), script, tally) is None
    missing = {
        "idle", "prefill", "decode", "relaunch",
        "waits for batch", "waits for kv", "waits for window", "waits for turn",
        "claim", "reject", "first_token", "finish_at_prefill", "token", "pause", "resume", "finish", "abort",
        "cancel_seen", "relaunched", "stop", "length", "cancelled", "time_limit",
    } - set(tally.kinds)  # fmt: skip
    assert not missing
