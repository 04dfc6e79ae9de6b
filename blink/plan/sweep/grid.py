"""The grid of a sweep: axes with their values, rates and seeds; every combination is a point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.plan import variant
from blink.plan.axes import POINTS_MAX, SEEDS_MAX, apply
from blink.plan.point import Key
from blink.plan.sweep.point import SweepPoint
from blink.plan.sweep.slo import SloClass

NAMED = ("model", "gpu", "system", "interference", "threads", "mitigations")
"""Axes with a name of their own; any other is an option of the scenario, such as limits.batch_max."""
RATES_MAX = 1_000
RATE_DIGITS = 3
ALLOWED = f"{', '.join(NAMED)}, or an option of the scenario such as limits.batch_max"

Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """`over`: axis -> values, in the order in which they are applied and shown. `rates` in requests/s, rising.

    No rates: the scenario's own load.
    """

    over: tuple[tuple[str, Values], ...]
    rates: tuple[float, ...]
    seed_count: int

    @classmethod
    def of(cls, over: Mapping[str, Sequence[Any]], rates: Sequence[float] = (), seed_count: int = 3) -> Grid:
        """The grid over these axes, whatever their order. Raises InputError for what is no axis or given twice."""
        if "interference" in over and "threads" in over:
            raise InputError("--over: threads gives the levels of interference itself; leave out interference")
        for name, values in over.items():
            _check_axis(name, values)
        for rate in rates:
            if not 0 < rate <= 1e6:
                raise InputError(f"--rate: {rate:g} is not allowed; allowed: above 0, at most 1e6 requests/s")
        _check_distinct("rate", rates)
        if not 1 <= seed_count <= SEEDS_MAX:
            raise InputError(f"--seeds = {seed_count}: must be between 1 and {SEEDS_MAX}")
        ordered = sorted(over.items(), key=lambda item: _place(item[0]))
        typed = tuple((name, tuple(_typed(name, value) for value in values)) for name, values in ordered)
        return cls(typed, tuple(sorted(float(rate) for rate in rates)), seed_count)

    def axes(self) -> dict[str, list[Any]]:
        """Every axis but seeds, as plain data."""
        found = {name: list(values) for name, values in self.over}
        return {**found, "rate": list(self.rates)} if self.rates else found

    def conditions(self) -> list[Key]:
        """Every combination of the axes, without rate and seed: each is a curve over the rates."""
        names = [name for name, _ in self.over]
        return [tuple(zip(names, chosen, strict=True)) for chosen in product(*(values for _, values in self.over))]

    def seeds(self, scenario: Scenario) -> tuple[int, ...]:
        """The scenario's seed and those that follow it."""
        return tuple(range(scenario.seed, scenario.seed + self.seed_count))

    def points(self, scenario: Scenario, classes: tuple[SloClass, ...] = ()) -> list[SweepPoint]:
        """Every run, all variants checked. Raises InputError for what cannot be, and for more than POINTS_MAX runs."""
        conditions = self.conditions()
        count = len(conditions) * max(1, len(self.rates)) * self.seed_count
        if count > POINTS_MAX:
            raise InputError(f"{count:,} runs were asked for; allowed: {POINTS_MAX:,}; give fewer values or --seeds")
        points = []
        for condition in conditions:
            varied = apply(scenario, condition)
            for rate in self.rates or (None,):
                key = condition if rate is None else (*condition, ("rate", rate))
                loaded = varied if rate is None else variant.with_rate(varied, rate)
                points += [
                    SweepPoint((*key, ("seed", seed)), variant.with_seed(loaded, seed), classes)
                    for seed in self.seeds(scenario)
                ]
        return points


def parse_over(texts: Sequence[str]) -> dict[str, list[str]]:
    """`model=A,B,gpu=C` as axes with their values: a part with a known name and = begins an axis, others continue it.

    Raises InputError for what is no axis.
    """
    over: dict[str, list[str]] = {}
    name = ""
    for part in (part.strip() for text in texts for part in text.split(",")):
        head, separator, value = part.partition("=")
        if separator and (head in NAMED or "." in head):
            name = head
            if name in over:
                raise InputError(f"--over: {name} is given twice")
            over[name] = []
        elif not name or (separator and name != "mitigations"):
            raise InputError(f"--over: {part!r} is not known; allowed: AXIS=VALUE,... with {ALLOWED}")
        else:
            value = part
        if not value:
            raise InputError(f"--over: {part!r} is not allowed; allowed: AXIS=VALUE,... without an empty value")
        over[name].append(value)
    return over


def parse_rates(text: str) -> tuple[float, ...]:
    """`LOW:HIGH:COUNT`, in equal ratios and of three digits, or rates separated by commas. Raises InputError."""
    try:
        if ":" not in text:
            return tuple(float(part) for part in text.split(","))
        low, high, count = text.split(":")
        return _spread(float(low), float(high), int(count))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"--rate: {text!r} is not allowed; allowed: LOW:HIGH:COUNT, or requests/s separated by commas"
        ) from None


def _spread(low: float, high: float, count: int) -> tuple[float, ...]:
    if not (0 < low < high < math.inf and 2 <= count <= RATES_MAX):
        raise InputError(
            f"--rate: {low:g}:{high:g}:{count} is not allowed; allowed: 0 < LOW < HIGH, and 2 to {RATES_MAX} rates"
        )
    inner = (low * (high / low) ** (index / (count - 1)) for index in range(1, count - 1))
    # Of few digits: the same on every machine, whatever its power function does with the last bit.
    return (low, *(float(f"{rate:.{RATE_DIGITS}g}") for rate in inner), high)


def _check_axis(name: str, values: Sequence[Any]) -> None:
    if name not in NAMED and "." not in name:
        raise InputError(f"--over: {name!r} is not known; allowed: {ALLOWED}")
    if isinstance(values, str) or not values:
        raise InputError(f"--over: {name} has no list of values")
    _check_distinct(name, values)


def _check_distinct(name: str, values: Sequence[Any]) -> None:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise InputError(f"--{name}: {value} is given twice")


def _typed(name: str, value: Any) -> Any:
    if name != "threads":
        return str(value)
    try:
        return int(value)
    except ValueError:
        raise InputError(f"--over: threads = {value!r} is not allowed; allowed: whole numbers") from None


def _place(name: str) -> int:
    """What another axis builds upon comes before it: options of the stack after the stack, its jobs after its host."""
    if "." in name:
        return 3 if name.startswith("system.") else 1
    return {"model": 0, "gpu": 0, "system": 2, "interference": 4, "threads": 4, "mitigations": 5}[name]
