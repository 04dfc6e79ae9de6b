"""Fit what other jobs' kernel work does to reserved cores: `python -m blink.plan.calibrate_host --out DIR`.

Free are the pace of `kernel_share` (all jobs of the published mix alike) and the host's `section_ns`. The loss is over
the quantities that published/calibration.toml names for the fact that sets these constants: the mean of the engines
against the middle of the published range, on the runs of published/testbed.toml for that fact's model. Nothing else is
looked at. Each trial is printed; the profiles are written. A trial takes about two minutes of one core.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blink.common.config import Scenario, parse_scenario
from blink.common.errors import InputError
from blink.perf.host.colocation import Colocation
from blink.perf.host.interference import InterfererProfile
from blink.perf.host.profile import HostProfile
from blink.perf.search import Constants, fit_constants
from blink.plan.point import run_points
from blink.plan.reproduce.carry_out import by_point, predictions
from blink.plan.reproduce.evidence import Evidence, geometric_mean
from blink.plan.reproduce.facts import CALIBRATED, Fact, Quantity, calibration, load_facts
from blink.plan.reproduce.testbed import INTERFERED, Testbed
from blink.plan.variant import COLOCATION

PACE, SECTION = "kernel_share_pace", "section_ms"
BOUNDS = {PACE: (0.1, 10.0), SECTION: (0.5, 200.0)}
STEPS = (0.16, 0.08, 0.04)
SETS = "kernel_share"
SOURCE = "python -m blink.plan.calibrate_host"
NS_PER_MS = 1e6


class HostCalibration:
    """Runs of the testbed beside the jobs under different guesses; those alone are made once."""

    def __init__(self, bed: Testbed, fact: Fact, folder: Path, workers: int | None) -> None:
        document = {**bed.document, "load": {**bed.document["load"], "models": [fact.model]}}
        self._bed, self._fact, self._folder, self._workers = replace(bed, document=document), fact, folder, workers
        self._host = HostProfile.load(document["scenario"]["host"]["profile"])
        self._jobs = {name: InterfererProfile.load(name) for name in Colocation.load(COLOCATION).threads}
        runs = self._bed.runs(frozenset({"load"}))
        self._beside = [run for run in runs if INTERFERED in run.at and run.scenario.system.kind != "blink"]
        self._alone = [run for run in runs if run not in self._beside]
        self._results = run_points(self._alone, workers=workers)
        self.start: Constants = {PACE: 1.0, SECTION: self._host.section_ns / NS_PER_MS}
        self.quantities = [quantity for quantity in fact.quantities if fact.use[quantity.name] == CALIBRATED]

    def predicted(self, guess: Constants) -> dict[str, float]:
        """Each quantity that is fitted, as the geometric mean over the engines."""
        self.write(guess, self._folder)
        runs = [replace(run, scenario=self._guessed(run.scenario)) for run in self._beside]
        results = [*self._results, *run_points(runs, workers=self._workers)]
        evidence = Evidence(self._bed, by_point([*self._alone, *runs], results))
        found = predictions(self._fact, evidence)
        return {quantity.name: geometric_mean(found[quantity.name].values.values()) for quantity in self.quantities}

    def loss(self, guess: Constants) -> float:
        """Root of the mean squared logarithm of prediction over the middle of the range."""
        found = self.predicted(guess)
        squares = [math.log(found[quantity.name] / middle(quantity)) ** 2 for quantity in self.quantities]
        loss = math.sqrt(math.fsum(squares) / len(squares))
        told = ", ".join(f"{name} {value:.3f}" for name, value in (guess | found).items())
        print(f"{told}: loss {loss:.3f}", flush=True)
        return loss

    def fit(self, steps: Sequence[float] = STEPS) -> Constants:
        """Search along one constant after the other."""
        return fit_constants(self.start, BOUNDS, self.loss, tuple(steps))

    def write(self, guess: Constants, folder: Path) -> None:
        """Profiles of a guess: of the host and of each job, as `<name>-fitted.toml`."""
        section_ns = round(guess[SECTION] * NS_PER_MS)
        self._profile(folder, "host", self._host.name, f'section_ns = {{ value = {section_ns}, unit = "ns"')
        for name, job in self._jobs.items():
            share = round(job.kernel_share * guess[PACE], 4)
            self._profile(folder, "interferer", name, f'kernel_share = {{ value = {share}, unit = "ratio"')

    def _profile(self, folder: Path, kind: str, name: str, constant: str) -> None:
        lines = [
            f'profile = "{kind}"',
            f'name = "{name}-fitted"',
            f'description = "{name}, fitted to a published slow-down."',
            f'carry_over = "{name}"',
            "",
            "[constants]",
            f'{constant}, kind = "fitted", source = "{SOURCE}", range = {{ threads = [90, 90] }} }}',
        ]
        (folder / f"{name}-fitted.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _guessed(self, scenario: Scenario) -> Scenario:
        document = scenario.resolved()
        document["host"]["profile"] = str(self._folder / f"{self._host.name}-fitted.toml")
        for job in document["interference"]["jobs"]:
            job["profile"] = str(self._folder / f"{job['profile']}-fitted.toml")
        return parse_scenario(document, scenario.name)


def middle(quantity: Quantity) -> float:
    """The geometric middle of a published range."""
    return math.sqrt(quantity.low * quantity.high)


def fact_that_sets(constant: str) -> Fact:
    """The fact that calibration.toml says sets a constant."""
    named = {table["id"] for table in calibration() if any(constant in text for text in table["sets"])}
    return next(fact for fact in load_facts() if fact.id in named)


def main(arguments: list[str] | None = None) -> int:
    """Fit, print each trial, write the profiles; 2 with one line on stderr if an input is wrong."""
    parser = argparse.ArgumentParser(prog="python -m blink.plan.calibrate_host", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the profiles")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each point (default: 1)")
    parser.add_argument("--duration", type=float, metavar="S", help="seconds of load (default: the testbed's)")
    parser.add_argument("--workers", type=int, help="runs at the same time (default: one a processor)")
    parser.add_argument("--quick", action="store_true", help="few rates and short runs: shows only that it works")
    parser.add_argument("--check", action="store_true", help="the loss of the shipped constants alone, no search")
    options = parser.parse_args(arguments)
    try:
        bed = Testbed.load(quick=options.quick, seeds=options.seeds, duration_s=options.duration)
        with tempfile.TemporaryDirectory() as folder:
            fit = HostCalibration(bed, fact_that_sets(SETS), Path(folder), options.workers)
            if options.check:
                fit.loss(fit.start)
                found = fit.start
            else:
                found = fit.fit()
        options.out.mkdir(parents=True, exist_ok=True)
        fit.write(found, options.out)
        for quantity in fit.quantities:
            print(f"{quantity.name}: published {quantity.low:g} to {quantity.high:g}, middle {middle(quantity):.3f}")
    except InputError as error:
        print(f"blink: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
