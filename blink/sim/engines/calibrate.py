"""Fit efficiencies to the beginning of a measured run: `python -m blink.sim.engines.calibrate SCENARIO --out DIR`.

The whole run is replayed, because later arrivals wait in the same line, but only the latencies of its first requests
take part in the fit. Free are the GPU's shares of bandwidth (products, attention) and of its FLOP rate, and the pace of
the engine's host work. Written are profiles, of the GPU and, if its pace moved, of the host engine, each stating
what it was fitted on.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from blink.common.config import Scenario, load_scenario
from blink.common.config.system import HostDrivenSystem
from blink.common.errors import InputError
from blink.perf.gpu import GpuProfile
from blink.perf.host_engine import HostEngineProfile
from blink.perf.search import fit_constants
from blink.sim.engines.replay import compare, replay, report

FREE_GPU = ("memory_efficiency", "attention_bandwidth_efficiency", "flops_efficiency")
LOW = 0.05
SEEDS = 3
PACED = ("schedule", "prepare", "launch", "kernel_launch", "sync", "update", "output")


@dataclass(frozen=True, slots=True)
class Guess:
    """Values of the free constants; `host_pace` multiplies every cost of a step on the host."""

    memory_efficiency: float
    attention_bandwidth_efficiency: float
    flops_efficiency: float
    host_pace: float = 1.0


class Calibration:
    """Replays of one scenario under different guesses."""

    def __init__(self, scenario: Scenario, first: int, folder: Path) -> None:
        if not isinstance(scenario.system, HostDrivenSystem):
            raise InputError(f"system.kind = {scenario.system.kind!r}: only a host-driven engine can be calibrated so")
        self._scenario, self._first, self._folder = scenario, first, folder
        self._system = scenario.system
        self._gpu = GpuProfile.load(scenario.gpu.profile)
        self._host = HostEngineProfile.load(scenario.system.profile)
        self.start = Guess(*(getattr(self._gpu, name) for name in FREE_GPU))
        self._known: dict[Guess, float] = {}

    def loss(self, guess: Guess) -> float:
        """Root of the mean squared relative error of mean, P50 and P99 over the first requests, over a few seeds."""
        found = self._known.get(guess)
        if found is None:
            squares = []
            for seed in range(self._scenario.seed, self._scenario.seed + SEEDS):
                pair = replay(self.scenario(guess, self._folder).model_copy(update={"seed": seed}))
                squares += [row.error**2 for row in compare(*pair, slice(0, self._first))]
            found = self._known[guess] = math.sqrt(math.fsum(squares) / len(squares))
        return found

    def fit(self) -> Guess:
        """Search along one constant after the other, with ever smaller steps."""
        bounds = dict.fromkeys(FREE_GPU, (LOW, 1.0)) | {"host_pace": (0.1, 10.0)}
        start = dataclasses.asdict(self.start)
        return Guess(**fit_constants(start, bounds, lambda constants: self.loss(Guess(**constants))))

    def scenario(self, guess: Guess, folder: Path) -> Scenario:
        """The scenario with profiles of a guess, which are written into `folder`; the host's only if its pace moved."""
        gpu, host = folder / "gpu.toml", folder / "host-engine.toml"
        gpu.write_text(self._gpu_toml(guess), encoding="utf-8")
        update: dict[str, object] = {"gpu": self._scenario.gpu.model_copy(update={"profile": str(gpu)})}
        if guess.host_pace != 1.0:
            host.write_text(self._host_toml(guess), encoding="utf-8")
            update["system"] = self._system.model_copy(update={"profile": str(host)})
        return self._scenario.model_copy(update=update)

    @property
    def _source(self) -> str:
        trace = self._scenario.workload.trace
        name = Path(trace.file).name if trace else ""
        return f"python -m blink.sim.engines.calibrate on the first {self._first} requests of {name}"

    def _gpu_toml(self, guess: Guess) -> str:
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
            f'{name} = {{ value = {getattr(guess, name)}, unit = "ratio", kind = "fitted", '
            f'source = "{self._source}", {held} }}'
            for name in FREE_GPU
        ]
        return "\n".join(lines) + "\n"

    def _host_toml(self, guess: Guess) -> str:
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
                value = found.value * guess.host_pace
                shown = round(value, 4) if found.unit == "ns/token" else round(value)
                lines.append(
                    f'{name} = {{ value = {shown}, unit = "{found.unit}", kind = "fitted", '
                    f'source = "{self._source}: {guess.host_pace} of {self._host.name}", {held} }}'
                )
        return "\n".join(lines) + "\n"


def _base(profile: str) -> str:
    return profile if not profile.endswith(".toml") else str(Path(profile).resolve())


def main(arguments: list[str] | None = None) -> int:
    """Fit, write the profiles, print the errors; 2 with one line on stderr if an input is wrong."""
    parser = argparse.ArgumentParser(prog="python -m blink.sim.engines.calibrate", description=__doc__)
    parser.add_argument("scenario", help="scenario TOML whose workload.trace is a recorded run")
    parser.add_argument("--first", type=int, default=100, help="requests that are fitted (default: 100)")
    parser.add_argument("--out", type=Path, required=True, help="folder for gpu.toml and host-engine.toml")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory() as folder:
            calibration = Calibration(load_scenario(options.scenario), options.first, Path(folder))
            found = calibration.fit()
            paces = {pace: calibration.loss(dataclasses.replace(found, host_pace=pace)) for pace in (0.5, 2.0)}
        print(f"loss {calibration.loss(calibration.start):.4f} -> {calibration.loss(found):.4f}")
        for field in dataclasses.fields(found):
            print(f"{field.name} = {getattr(found, field.name)} (was {getattr(calibration.start, field.name)})")
        for pace, loss in paces.items():
            print(f"loss with host_pace {pace}: {loss:.4f}")
        options.out.mkdir(parents=True, exist_ok=True)
        print(report(*replay(calibration.scenario(found, options.out)), options.first))
    except InputError as error:
        print(f"blink: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
