"""Schedulers compiled wrong on purpose fail the very body that the right one passes: the tests can fail."""

from __future__ import annotations

import re

import pytest
from hypothesis import find, settings

from blink.conform.levels import Level
from blink.conform.lockstep import Compared, compare_script
from blink.conform.mutants import MUTANTS
from blink.conform.script import Script
from tests.conformance.bodies import backend_of, compare, needs_compiler
from tests.conformance.strategies import scripts
from tests.shared import ROOT

CAUGHT = [
    ("claim-without-cas", Level.LEGAL, "small", "I4: native: in"),
    ("count-before-token", Level.LEGAL, "small", "native: I7:"),
    ("cancel-seen-and-ignored", Level.LEGAL, "cancels", "native: I10:"),
    ("cancel-seen-and-ignored", Level.LOCKSTEP, "small", "differ"),
    ("relaunch-adopts-nothing", Level.LEGAL, "small", "native: I10:"),
    ("relaunch-adopts-nothing", Level.LOCKSTEP, "small", "differ"),
    ("never-resume", Level.LEGAL, "small", "native: I10:"),
    ("never-resume", Level.EQUIVALENT, "small", "transition"),
    ("never-resume", Level.LOCKSTEP, "small", "differ"),
    ("never-resume", Level.REPLAY, "small", "step"),
    ("no-capacity-guard", Level.LOCKSTEP, "small", "differ"),
    ("kv-blocks-returned-at-claim", Level.LEGAL, "small", "native: I7:"),
    ("kv-blocks-returned-at-claim", Level.LOCKSTEP, "small", "claims and KV blocks of sim and native differ"),
]
"""Mutant, the level that catches it, the scenario, and what the first difference says."""


@needs_compiler
@pytest.mark.parametrize(("mutant", "level", "which", "says"), CAUGHT)
def test_a_mutant_is_caught_by_the_same_body(mutant: str, level: Level, which: str, says: str) -> None:
    found = compare(level, "native", which, mutant=mutant)
    assert found.code == 2
    assert found.difference is not None
    assert says in found.difference.what


def test_every_mutant_of_the_sources_is_listed_and_caught() -> None:
    text = "".join(path.read_text() for path in sorted((ROOT / "kernels").rglob("*.h")))
    compiled = {name.lower().replace("_", "-") for name in re.findall(r"BLINK_MUTANT_([A-Z_]+)", text)}
    assert compiled == set(MUTANTS) == {row[0] for row in CAUGHT}


@needs_compiler
@pytest.mark.parametrize("mutant", ["relaunch-adopts-nothing", "no-capacity-guard", "kv-blocks-returned-at-claim"])
def test_hypothesis_makes_the_script_that_shows_a_mutant_small(mutant: str) -> None:
    openers = (backend_of("sim").stepper, backend_of("native", mutant).stepper)

    def shows(script: Script) -> bool:
        return compare_script(("sim", "native"), openers, script, Compared()) is not None

    script = find(scripts(), shows, settings=settings(max_examples=300, deadline=None, database=None, derandomize=True))
    assert script.request_count <= 2
    assert len(str(script).splitlines()) <= 4  # two of the machine, one for each request
