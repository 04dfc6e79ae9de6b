"""The fit of the jobs' kernel work: what it is fitted to is declared, and what it writes can be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from blink.perf.host.interference import InterfererProfile
from blink.perf.host.profile import HostProfile
from blink.plan.calibrate_host import PACE, SECTION, SETS, HostCalibration, fact_that_sets, middle
from blink.plan.reproduce import testbed
from blink.plan.reproduce.facts import CALIBRATED, Quantity


def test_one_declared_fact_sets_the_constants() -> None:
    fact = fact_that_sets(SETS)
    fitted = [quantity for quantity in fact.quantities if fact.use[quantity.name] == CALIBRATED]
    # Two constants are free, so no more than two quantities can be met.
    assert len(fitted) == 2
    assert all(0 < quantity.low < middle(quantity) < quantity.high for quantity in fitted)


def test_the_middle_of_a_range_is_as_far_from_both_ends() -> None:
    assert middle(Quantity("q", "ratio", 2.0, 8.0)) == pytest.approx(4.0)


def test_a_guess_becomes_profiles(tmp_path: Path) -> None:
    bed = testbed.Testbed.load(quick=True)
    nothing = testbed.Testbed(bed.document, (), bed.threads, bed.duration_s, bed.seeds, bed.quick)
    fit = HostCalibration(nothing, fact_that_sets(SETS), tmp_path, workers=1)
    fit.write({PACE: 2.0, SECTION: 12.5}, tmp_path)
    host = HostProfile.load(tmp_path / "xeon-6336y-2s-fitted.toml")
    assert host.section_ns == 12_500_000
    assert host.slice_ns == HostProfile.load("xeon-6336y-2s").slice_ns
    for job in ("pbzip2", "llvm-build"):
        fitted = InterfererProfile.load(tmp_path / f"{job}-fitted.toml")
        assert fitted.kernel_share == pytest.approx(2 * InterfererProfile.load(job).kernel_share)
