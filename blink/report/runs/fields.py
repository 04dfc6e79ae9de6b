"""Typed values out of a load generator's JSON; what is of another type is refused by file, field and value."""

from __future__ import annotations

import math
from typing import Any

from blink.common.errors import InputError
from blink.common.trace_data import shorten


class Fields:
    """The fields of one JSON object."""

    def __init__(self, found: Any, where: str) -> None:
        if not isinstance(found, dict):
            raise InputError(f"{where}: is {shorten(found)}; allowed: a JSON object")
        self.found: dict[str, Any] = found
        self.where = where

    def number(self, name: str) -> float | None:
        """A number, or None where it is absent or null. Raises InputError for anything else."""
        value = self.found.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{self.where}: {name} is {shorten(value)}; allowed: a number")
        return float(value)

    def numbers(self, name: str) -> list[float]:
        """A list of numbers, empty where it is absent."""
        values = self.found.get(name)
        if values is None:
            return []
        if not isinstance(values, list) or not all(
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in values
        ):
            raise InputError(f"{self.where}: {name} is {shorten(values)}; allowed: a list of numbers")
        return [float(value) for value in values]

    def table(self, name: str) -> Fields:
        """An object inside; an empty one where it is absent."""
        return Fields(self.found.get(name) or {}, f"{self.where}: {name}")

    def rows(self, name: str) -> list[Fields]:
        """A list of objects inside; empty where it is absent."""
        values = self.found.get(name)
        if values is None:
            return []
        if not isinstance(values, list):
            raise InputError(f"{self.where}: {name} is {shorten(values)}; allowed: a list of objects")
        return [Fields(value, f"{self.where}: {name}[{index}]") for index, value in enumerate(values)]
