"""The published facts, what each is used for, and the reasons of misses: blink/plan/published, read and checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.profile import read_toml

PUBLISHED = Path(__file__).resolve().parents[1] / "published"
CALIBRATED, GIVEN, PREDICTED = "calibrated", "given", "predicted"
CALIBRATION_FACTS_MAX = 8
EVERY = "*"
FORMS = ("value", "range", "at_most")


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number of a fact: a value (`low` = `high`), a closed range, or a bound (`low` = -inf)."""

    name: str
    unit: str
    low: float
    high: float
    in_words: bool = False

    @property
    def is_value(self) -> bool:
        """Whether one exact value was published."""
        return self.low == self.high

    @property
    def is_bound(self) -> bool:
        """Whether only an upper bound was published."""
        return self.low == -math.inf


@dataclass(frozen=True, slots=True)
class Fact:
    """A published statement with its quantities. `use` maps each quantity to calibrated, given or predicted."""

    id: str
    says: str
    model: str | None
    system: str | None
    quantities: tuple[Quantity, ...]
    use: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reason:
    """The most likely reason of a miss: of one quantity or of all, for predictions that are too low or too high."""

    fact: str
    quantity: str
    direction: str
    text: str

    def explains(self, fact: str, quantity: str, error: float) -> bool:
        """Whether this is about that quantity, and about an error of that sign."""
        direction = "high" if error > 0 else "low"
        return self.fact == fact and self.quantity in (quantity, EVERY) and self.direction in (direction, "any")


def load_facts(folder: Path = PUBLISHED) -> tuple[Fact, ...]:
    """Every fact in the order of the file. Raises InputError for a file that is not of this form."""
    uses = dict(_uses(folder))
    raw = read_toml(folder / "facts.toml", "facts.toml")
    facts = tuple(_fact(table, uses) for table in raw["fact"])
    unknown = {fact for fact, _ in uses} - {fact.id for fact in facts}
    if unknown:
        raise InputError(f"calibration.toml: {min(unknown)}: no such fact")
    return facts


def load_reasons(folder: Path = PUBLISHED) -> tuple[Reason, ...]:
    """The reasons of misses."""
    tables = read_toml(folder / "reasons.toml", "reasons.toml")["reason"]
    return tuple(
        Reason(table["id"], table.get("quantity", EVERY), table.get("direction", "any"), table["text"])
        for table in tables
    )


def calibration(folder: Path = PUBLISHED) -> list[dict[str, Any]]:
    """What was calibrated on, as the file has it: id, quantities, the constants that it sets, and how."""
    tables: list[dict[str, Any]] = read_toml(folder / "calibration.toml", "calibration.toml")[CALIBRATED]
    return tables


def _uses(folder: Path) -> Iterator[tuple[tuple[str, str], str]]:
    document = read_toml(folder / "calibration.toml", "calibration.toml")
    for use in (CALIBRATED, GIVEN):
        for table in document.get(use, []):
            for name in table["quantities"]:
                yield (table["id"], name), use


def _fact(table: dict[str, Any], uses: Mapping[tuple[str, str], str]) -> Fact:
    unit = table.get("unit")
    quantities = tuple(_quantity(table["id"], name, entry, unit) for name, entry in table["quantities"].items())
    use = {quantity.name: uses.get((table["id"], quantity.name), PREDICTED) for quantity in quantities}
    return Fact(table["id"], table["says"], table.get("model"), table.get("system"), quantities, use)


def _quantity(fact: str, name: str, entry: dict[str, Any], unit: str | None) -> Quantity:
    given = [form for form in FORMS if form in entry]
    own_unit = entry.get("unit", unit)
    if len(given) != 1 or own_unit is None:
        raise InputError(f"facts.toml: {fact}: {name}: needs a unit, and one of {', '.join(FORMS)}")
    found = entry[given[0]]
    low, high = {"value": (found, found), "range": found, "at_most": (-math.inf, found)}[given[0]]
    return Quantity(name, own_unit, float(low), float(high), bool(entry.get("words")))
