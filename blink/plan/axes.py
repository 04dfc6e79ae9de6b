"""Axes of a comparison: systems, what runs beside them, mitigations, rates and seeds; every combination is a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.plan import variant
from blink.plan.point import Key, Point

POINTS_MAX = 20_000
SEEDS_MAX = 100


@dataclass(frozen=True, slots=True)
class Axes:
    """Values of each axis, in the order in which they are shown.

    `threads` empty: the levels are `interference`, else numbers of interferer threads. `mitigations` empty: the
    scenario's own; else sets joined by +. `rates` empty: the scenario's own load.
    """

    systems: tuple[str, ...]
    interference: tuple[str, ...] = variant.INTERFERENCE_LEVELS
    threads: tuple[int, ...] = ()
    mitigations: tuple[str, ...] = ()
    rates: tuple[float, ...] = ()
    seed_count: int = 3

    def __post_init__(self) -> None:
        for name, values in self._named().items():
            for index, value in enumerate(values):
                if value in values[:index]:
                    raise InputError(f"--{name}: {value} is given twice")
        if not self.systems:
            raise InputError(f"--systems: is empty; allowed: some of {', '.join(variant.SYSTEM_KINDS)}")
        if not 1 <= self.seed_count <= SEEDS_MAX:
            raise InputError(f"--seeds = {self.seed_count}: must be between 1 and {SEEDS_MAX}")

    @property
    def level_name(self) -> str:
        """Name of the axis of other jobs."""
        return "threads" if self.threads else "interference"

    @property
    def isolated(self) -> str | int | None:
        """The level without other jobs; None if it is not compared."""
        return next((level for level in self.levels if level in ("none", 0)), None)

    @property
    def levels(self) -> tuple[str | int, ...]:
        """What runs beside the engine."""
        return self.threads or self.interference

    def seeds(self, scenario: Scenario) -> tuple[int, ...]:
        """The scenario's seed and those that follow it."""
        return tuple(range(scenario.seed, scenario.seed + self.seed_count))

    def conditions(self) -> list[Key]:
        """All but the system and the seed, as keys of a point."""
        axes = [(name, values) for name, values in self._named().items() if values and name != "systems"]
        return [
            tuple(zip((name for name, _ in axes), chosen, strict=True)) for chosen in product(*(v for _, v in axes))
        ]

    def points(self, scenario: Scenario) -> list[Point]:
        """Every run, all variants checked. Raises InputError for what cannot be, and for more than POINTS_MAX runs."""
        conditions = self.conditions()
        if len(conditions) * len(self.systems) * self.seed_count > POINTS_MAX:
            raise InputError(f"more than {POINTS_MAX} runs were asked for; give fewer values or --seeds")
        points = []
        for system, condition in product(self.systems, conditions):
            varied = apply(scenario, (("system", system), *condition))
            points += [
                Point((("system", system), *condition, ("seed", seed)), variant.with_seed(varied, seed))
                for seed in self.seeds(scenario)
            ]
        return points

    def _named(self) -> dict[str, Sequence[Any]]:
        return {
            "systems": self.systems,
            "rate": self.rates,
            self.level_name: self.levels,
            "mitigations": self.mitigations,
        }


def apply(scenario: Scenario, key: Key) -> Scenario:
    """The scenario with each value of the key, in the key's order.

    A name with a dot is that option of the scenario: `limits.batch_max`.
    """
    for name, value in key:
        if name == "system":
            scenario = variant.with_system(scenario, value)
        elif name == "rate":
            scenario = variant.with_rate(scenario, value)
        elif name == "interference":
            scenario = variant.with_interference(scenario, value)
        elif name == "threads":
            scenario = variant.with_threads(scenario, value)
        elif name == "mitigations":
            scenario = variant.with_mitigations(scenario, value.split("+"))
        elif name == "seed":
            scenario = variant.with_seed(scenario, value)
        elif name == "model":
            scenario = variant.with_model(scenario, value)
        elif name == "gpu":
            scenario = variant.with_gpu(scenario, value)
        elif "." in name:
            scenario = variant.with_option(scenario, name, str(value))
        else:
            raise ValueError(f"{name!r} is no axis")
    return scenario
