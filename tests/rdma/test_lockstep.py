"""The simulator against the native scheduler whose frontend reaches it by verbs, in lock-step."""

from __future__ import annotations

import pytest

from blink.cli import main
from blink.conform.backend import NativeRdma, Sim
from blink.conform.lockstep import Compared, compare_script, random_scripts
from tests.hw.native_help import needs_compiler
from tests.shared import ROOT

pytestmark = [pytest.mark.rdma, needs_compiler]
SCRIPTS = 8


def test_decisions_in_lock_step_are_those_of_the_simulator() -> None:
    names, tally = ("sim", "native-rdma"), Compared()
    openers = (Sim().stepper, NativeRdma().stepper)
    for script in random_scripts(seed=7, count=SCRIPTS):
        difference = compare_script(names, openers, script, tally)
        assert difference is None, "\n".join(difference.lines())
    assert tally.scripts == SCRIPTS
    assert tally.decisions > 10 * SCRIPTS
    assert {"claim", "pause", "resume", "finish", "relaunched", "cancel_seen"} <= set(tally.kinds)


def test_the_command_finds_that_both_conform_at_all_levels(capsys: pytest.CaptureFixture[str]) -> None:
    scenario = str(ROOT / "scenarios/conformance-small.toml")
    assert main(["conform", "--backends", "sim,native-rdma", "--scripts", "2", scenario]) == 0
    said = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("conforms")]
    assert said == ["legal", "legal", "equivalent", "lockstep", "replay"]
