"""Exact numbers from text and JSON: whole tokens and integer nanoseconds, with no floating-point step between."""

from __future__ import annotations

import re
from datetime import date
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import lru_cache

from blink.common.units import NS_PER_S

TOKENS_MAX = (1 << 31) - 1
TIME_NS_MAX = (1 << 63) - 1
SHOWN_CHARS = 80

_ADJUSTED_MAX = 40  # decimal digits before the point; more is no time and no length, and would be slow to expand
_CONTEXT = Context(prec=80, rounding=ROUND_HALF_EVEN)
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,6})?", re.ASCII)
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_INSTANT = re.compile(
    r"(\d{4}-\d{2}-\d{2})[ T](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,18}))?\s?(Z|[+-]\d{2}(?::?\d{2})?)?", re.ASCII
)
_UNIX_EPOCH_DAY = date(1970, 1, 1).toordinal()


class UnusableError(Exception):
    """A row that is well formed but cannot be a request; the text is the reason under which it is counted."""


class MalformedError(ValueError):
    """A value that is not what its column holds; the text completes the sentence 'column VALUE ...'."""


def shown(value: object) -> str:
    """A value as an error message quotes it, cut to SHOWN_CHARS."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def decimal_of(value: object) -> Decimal | int:
    """A CSV cell or a JSON number as an exact number.

    Raises MalformedError for anything else, UnusableError for NaN and infinities.
    """
    if isinstance(value, str):
        text = value.strip()
        if text.isascii() and text.isdigit() and len(text) <= _ADJUSTED_MAX:
            return int(text)
        if _NOT_FINITE.fullmatch(text):
            raise UnusableError("not finite")
        if not _DECIMAL.fullmatch(text):
            raise MalformedError("is not a number")
        number: Decimal | int = Decimal(text)
    elif isinstance(value, int | Decimal) and not isinstance(value, bool):
        number = value
    else:
        raise MalformedError("is not a number")
    if isinstance(number, int):
        in_range = abs(number) < 10**_ADJUSTED_MAX
    elif number.is_finite():
        in_range = number.adjusted() < _ADJUSTED_MAX
    else:
        raise UnusableError("not finite")
    if not in_range:
        raise MalformedError("is out of range")
    return number


def whole_tokens(value: object) -> int:
    """A number of tokens, negative ones included. Raises MalformedError when it is not whole or above TOKENS_MAX."""
    number = decimal_of(value)
    whole = int(number)
    if whole != number:
        raise MalformedError("is not a whole number of tokens")
    if whole > TOKENS_MAX:
        raise MalformedError(f"is out of range (at most {TOKENS_MAX} tokens)")
    return whole


def time_ns(value: object, unit_ns: int) -> int:
    """A time in a unit of `unit_ns` nanoseconds, as nanoseconds; digits below a nanosecond are rounded half to even."""
    number = decimal_of(value)
    if isinstance(number, int):
        scaled = number * unit_ns
    else:
        scaled = int(_CONTEXT.multiply(number, Decimal(unit_ns)).to_integral_value(ROUND_HALF_EVEN))
    if abs(scaled) > TIME_NS_MAX:
        raise MalformedError("is out of range (at most 2^63 - 1 ns)")
    return scaled


def instant_ns(value: object) -> tuple[int, bool]:
    """A calendar time as nanoseconds since 1970 in UTC, and whether it named its time zone; without one it is UTC.

    Accepts YYYY-MM-DD HH:MM:SS with up to 18 digits of fraction and Z or an offset. Raises MalformedError.
    """
    match = _INSTANT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise MalformedError("is not a time such as 2023-11-16 18:15:46.6805900")
    day, hour, minute, second, fraction, zone = match.groups()
    if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
        raise MalformedError("is not a time of day")
    seconds = _day_number(day) * 86_400 + int(hour) * 3_600 + int(minute) * 60 + int(second) - _zone_s(zone)
    total = seconds * NS_PER_S + (_fraction_ns(fraction) if fraction else 0)
    if abs(total) > TIME_NS_MAX:
        raise MalformedError("is out of range (years 1678 to 2262)")
    return total, zone is not None


def _fraction_ns(digits: str) -> int:
    if len(digits) <= 9:
        return int(digits.ljust(9, "0"))
    return time_ns(f"0.{digits}", NS_PER_S)


@lru_cache(maxsize=512)
def _day_number(day: str) -> int:
    try:
        return date.fromisoformat(day).toordinal() - _UNIX_EPOCH_DAY
    except ValueError:
        raise MalformedError("is not a date of the calendar") from None


@lru_cache(maxsize=64)
def _zone_s(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 14 or minutes > 59:
        raise MalformedError("has no such time zone")
    return (-1 if zone[0] == "-" else 1) * (hours * 3_600 + minutes * 60)
