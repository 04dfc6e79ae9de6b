"""The simulator against the native scheduler whose frontend reaches it by verbs: in lock-step, and in real time."""

from __future__ import annotations

import pytest

from blink.conform.backend import NativeRdma, Sim
from blink.conform.levels import Campaign, Level
from blink.conform.lockstep import Compared, compare_script, random_scripts
from blink.workload.build import build_load
from tests.hw.native_help import needs_compiler, scenario_of

pytestmark = [pytest.mark.rdma, needs_compiler]
SCRIPTS = 12


def test_decisions_in_lock_step_are_those_of_the_simulator() -> None:
    names, tally = ("sim", "native-rdma"), Compared()
    openers = (Sim().stepper, NativeRdma().stepper)
    for script in random_scripts(seed=7, count=SCRIPTS):
        difference = compare_script(names, openers, script, tally)
        assert difference is None, "\n".join(difference.lines())
    assert tally.scripts == SCRIPTS
    assert tally.decisions > 10 * SCRIPTS
    assert {"claim", "pause", "resume", "finish", "relaunched", "cancel_seen"} <= set(tally.kinds)


def test_a_run_in_real_time_is_legal_and_equivalent() -> None:
    scenario, requests = build_load(scenario_of(workload={"requests": 30}))
    sim, other = Sim(), NativeRdma()
    campaign = Campaign([sim, other], scenario, requests)
    for level, found in (
        (Level.LEGAL, campaign.legal(other)),
        (Level.EQUIVALENT, campaign.equivalent(sim, other)),
        (Level.REPLAY, campaign.replay(other)),
    ):
        assert found.code == 0, (level, found)
