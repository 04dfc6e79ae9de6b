"""One row of a trace file: typed access to its columns, with refusals that name file, row and value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from blink.common.errors import InputError
from blink.common.units import NS_PER_S
from blink.workload.numbers import MalformedError, UnusableError, instant_ns, shown, time_ns, whole_tokens

T = TypeVar("T")


@dataclass(slots=True)
class Row:
    """A row's values by column. `place` adds where in the row, for rows that hold several requests."""

    file: str
    number: int
    values: Mapping[str, object]
    place: str = ""

    def prompt_tokens(self, column: str) -> int:
        return self._tokens(column, "prompt")

    def output_tokens(self, column: str) -> int:
        return self._tokens(column, "output")

    def arrival_ns(self, column: str, unit_ns: int = NS_PER_S) -> int:
        """A time since the start of the trace; negative ones make the row unusable."""
        arrival_ns = self._read(column, lambda value: time_ns(value, unit_ns), "arrival")
        if arrival_ns < 0:
            raise UnusableError("arrival negative")
        return arrival_ns

    def instant_ns(self, column: str) -> tuple[int, bool]:
        """A calendar time: nanoseconds since 1970, and whether the row names its time zone."""
        return self._read(column, instant_ns, "arrival")

    def duration_ns(self, column: str, unit_ns: int) -> int:
        duration_ns = self._read(column, lambda value: time_ns(value, unit_ns), column)
        if duration_ns < 0:
            self.refuse(f"{column} {shown(self.values[column])} is negative; a duration is 0 or more")
        return duration_ns

    def whole(self, column: str) -> int:
        """A whole number that may be negative or 0."""
        return self._read(column, whole_tokens, column)

    def refuse(self, why: str) -> NoReturn:
        raise InputError(f"{self.file}: row {self.number}{self.place}: {why}")

    def _tokens(self, column: str, what: str) -> int:
        tokens = self._read(column, whole_tokens, f"{what} tokens")
        if tokens < 1:
            raise UnusableError(f"{what} tokens {'negative' if tokens else 'zero'}")
        return tokens

    def _read(self, column: str, parse: Callable[[object], T], what: str) -> T:
        try:
            value = self.values[column]
        except KeyError:
            self.refuse(f"{column} is missing; found {shown(', '.join(self.values))}")
        try:
            return parse(value)
        except MalformedError as error:
            self.refuse(f"{column} {shown(value)} {error}")
        except UnusableError as reason:
            raise UnusableError(f"{what} {reason}") from None
