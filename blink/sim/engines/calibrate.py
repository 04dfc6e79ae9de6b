"""Fit efficiencies to the beginning of a measured run: `python -m blink.sim.engines.calibrate SCENARIO --out DIR`.

The whole run is replayed, because later arrivals wait in the same line, but only the latencies of its first requests
take part in the fit. Free are what the GPU reaches of its bandwidth (products, attention) and of its FLOP rate, ramp
and overlap of its products, and the pace of the engine's host work. Written are profiles, of the GPU and, if its pace
moved, of the host engine, each stating what it was fitted on.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

from blink.common.config import Scenario, load_scenario
from blink.common.config.system import HostDrivenSystem
from blink.common.errors import InputError
from blink.perf.gpu import GpuProfile
from blink.perf.host_engine import HostEngineProfile
from blink.perf.search import Constants, fit_constants
from blink.sim.engines.replay import compare, replay, report

FREE_GPU = {
    "memory_efficiency": (0.05, 1.0),
    "attention_bandwidth_efficiency": (0.05, 1.0),
    "flops_efficiency": (0.05, 1.0),
    "gemm_ramp_ns": (100.0, 50_000.0),
    "gemm_overlap_exponent": (1.0, 16.0),
}
HELD_GPU = ("attention_flops_efficiency", "kernel_floor_ns")
"""What the fit relied on besides: stated in the profile, so that it stays as it was."""
PACE = "host_pace"
"""Factor on every cost of a step on the host."""
PACE_BOUNDS = (0.1, 10.0)
SEEDS = 3
PACED = ("schedule", "prepare", "launch", "kernel_launch", "sync", "update", "output")


class Calibration:
    """Replays of one scenario under different guesses."""

    def __init__(self, scenario: Scenario, first: int, folder: Path) -> None:
        if not isinstance(scenario.system, HostDrivenSystem):
            raise InputError(f"system.kind = {scenario.system.kind!r}: only a host-driven engine can be calibrated so")
        self._scenario, self._first, self._folder = scenario, first, folder
        self._system = scenario.system
        self._gpu = GpuProfile.load(scenario.gpu.profile)
        self._host = HostEngineProfile.load(scenario.system.profile)
        self.start: Constants = {name: float(getattr(self._gpu, name)) for name in FREE_GPU} | {PACE: 1.0}

    def loss(self, guess: Constants) -> float:
        """Root of the mean squared relative error of mean, P50 and P99 over the first requests, over a few seeds."""
        squares = []
        scenario = self.scenario(guess, self._folder)
        for seed in range(scenario.seed, scenario.seed + SEEDS):
            pair = replay(scenario.model_copy(update={"seed": seed}))
            squares += [row.error**2 for row in compare(*pair, slice(0, self._first))]
        return math.sqrt(math.fsum(squares) / len(squares))

    def fit(self) -> Constants:
        """Search along one constant after the other, with ever smaller steps."""
        return fit_constants(self.start, FREE_GPU | {PACE: PACE_BOUNDS}, self.loss)

    def scenario(self, guess: Constants, folder: Path) -> Scenario:
        """The scenario with profiles of a guess, which are written into `folder`; the host's only if its pace moved."""
        gpu, host = folder / "gpu.toml", folder / "host-engine.toml"
        gpu.write_text(self._gpu_toml(guess), encoding="utf-8")
        update: dict[str, object] = {"gpu": self._scenario.gpu.model_copy(update={"profile": str(gpu)})}
        if guess[PACE] != 1.0:
            host.write_text(self._host_toml(guess), encoding="utf-8")
            update["system"] = self._system.model_copy(update={"profile": str(host)})
        return self._scenario.model_copy(update=update)

    @property
    def _source(self) -> str:
        trace = self._scenario.workload.trace
        name = Path(trace.file).name if trace else ""
        return f"python -m blink.sim.engines.calibrate on the first {self._first} requests of {name}"

    def _gpu_toml(self, guess: Constants) -> str:
        held = "range = { batch = [1, 64], tokens = [1, 4096] }"
        lines = [
            'profile = "gpu"',
            f'name = "{self._gpu.name}-fitted"',
            f'description = "{self._gpu.name} with efficiencies fitted to a measured run."',
            f'carry_over = "{_base(self._scenario.gpu.profile)}"',
            "",
            "[constants]",
        ]
        lines += [
            f'{name} = {{ value = {_shown(guess[name], found.unit)}, unit = "{found.unit}", kind = "fitted", '
            f'source = "{self._source}", {held} }}'
            for name, found in ((name, self._gpu.constants[name]) for name in FREE_GPU)
        ]
        for name in HELD_GPU:
            found = self._gpu.constants[name]
            source = f"{self._gpu.name}, held fast in the fit"
            lines.append(
                f'{name} = {{ value = {found.value}, unit = "{found.unit}", kind = "assumed", source = "{source}" }}'
            )
        return "\n".join(lines) + "\n"

    def _host_toml(self, guess: Constants) -> str:
        held = "range = { batch = [1, 64] }"
        lines = [
            'profile = "host-engine"',
            f'name = "{self._host.name}-fitted"',
            f'description = "{self._host.name} at a pace fitted to a measured run."',
            f'carry_over = "{_base(self._system.profile)}"',
            "",
            "[constants]",
        ]
        for name, found in self._host.constants.items():
            if name.split("_ns")[0] in PACED and found.value:
                shown = _shown(found.value * guess[PACE], found.unit)
                lines.append(
                    f'{name} = {{ value = {shown}, unit = "{found.unit}", kind = "fitted", '
                    f'source = "{self._source}: {guess[PACE]} of {self._host.name}", {held} }}'
                )
        return "\n".join(lines) + "\n"


def _shown(value: float, unit: str) -> str:
    """As a profile states it: whole nanoseconds, other units with five digits after the point."""
    return str(round(value)) if unit == "ns" else str(round(value, 5))


def _base(profile: str) -> str:
    return profile if not profile.endswith(".toml") else str(Path(profile).resolve())


def calibrate_to(scenario: Scenario, first: int, out: Path) -> str:
    """Fit to the first requests of the scenario's run, write the profiles into `out`; what came of it, as text."""
    with tempfile.TemporaryDirectory() as folder:
        calibration = Calibration(scenario, first, Path(folder))
        found = calibration.fit()
        before, after = calibration.loss(calibration.start), calibration.loss(found)
        paces = {pace: calibration.loss({**found, PACE: pace}) for pace in (0.5, 2.0)}
    lines = [f"loss {before:.4f} -> {after:.4f}"]
    lines += [f"{name} = {value} (was {calibration.start[name]})" for name, value in found.items()]
    lines += [f"loss with host_pace {pace}: {loss:.4f}" for pace, loss in paces.items()]
    out.mkdir(parents=True, exist_ok=True)
    return "\n".join([*lines, report(*replay(calibration.scenario(found, out)), first)])


def main(arguments: list[str] | None = None) -> int:
    """Fit, write the profiles, print the errors; 2 with one line on stderr if an input is wrong."""
    parser = argparse.ArgumentParser(prog="python -m blink.sim.engines.calibrate", description=__doc__)
    parser.add_argument("scenario", help="scenario TOML whose workload.trace is a recorded run")
    parser.add_argument("--first", type=int, default=100, help="requests that are fitted (default: 100)")
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.toml and host-engine.toml")
    options = parser.parse_args(arguments)
    try:
        print(calibrate_to(load_scenario(options.scenario), options.first, options.out))
    except InputError as error:
        print(f"blink: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
