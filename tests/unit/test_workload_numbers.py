"""Exact numbers: no nanosecond is lost between the text of a trace and the integer."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common.units import NS_PER_MS, NS_PER_S
from blink.workload.numbers import (
    SHOWN_CHARS,
    MalformedError,
    UnusableError,
    decimal_of,
    instant_ns,
    shown,
    time_ns,
    whole_tokens,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("7.5", 7_500_000_000),
        ("61.114", 61_114_000_000),
        ("4.314579", 4_314_579_000),
        ("19440110.0", 19_440_110 * NS_PER_S),
        ("1787267980.0827403", 1_787_267_980_082_740_300),
        ("0.0000000005", 0),
        ("0.0000000015", 2),
        (".25", 250_000_000),
        ("5.", 5_000_000_000),
        (" 3 ", 3_000_000_000),
        ("1e-3", 1_000_000),
        ("1e-999999", 0),
        ("-2", -2_000_000_000),
    ],
)
def test_seconds_are_exact(text: str, expected: int) -> None:
    assert time_ns(text, NS_PER_S) == expected
    if "e" not in text:
        assert time_ns(Decimal(text.strip()), NS_PER_S) == expected


@given(st.integers(0, 2**62))
def test_every_nanosecond_survives_its_decimal_text(ns: int) -> None:
    assert time_ns(f"{ns // NS_PER_S}.{ns % NS_PER_S:09d}", NS_PER_S) == ns
    assert time_ns(f"{ns // NS_PER_MS}.{ns % NS_PER_MS:06d}", NS_PER_MS) == ns
    assert time_ns(ns, 1) == ns


@pytest.mark.parametrize("text", ["", "abc", "1_000", "0x10", "1,5", "1 2", "--1", "٣", "1e", "None"])
def test_what_is_no_number_is_malformed(text: str) -> None:
    with pytest.raises(MalformedError, match="is not a number"):
        decimal_of(text)


@pytest.mark.parametrize("value", [True, None, [], {}, 1.5])
def test_json_values_that_are_no_exact_number_are_malformed(value: object) -> None:
    with pytest.raises(MalformedError):
        decimal_of(value)


@pytest.mark.parametrize("value", ["NaN", "nan", "inf", "-Infinity", Decimal("NaN"), Decimal("-Infinity")])
def test_not_finite_is_unusable(value: object) -> None:
    with pytest.raises(UnusableError, match="not finite"):
        decimal_of(value)


@pytest.mark.parametrize("value", ["1e40", "9" * 60, "1e999999", Decimal("1E+999999999"), 10**4000])
def test_huge_numbers_are_refused_without_being_expanded(value: object) -> None:
    with pytest.raises(MalformedError, match="out of range"):
        time_ns(value, NS_PER_S)


def test_tiny_numbers_are_zero() -> None:
    assert time_ns(Decimal("1E-999999999"), NS_PER_S) == 0
    with pytest.raises(MalformedError, match="not a whole number"):
        whole_tokens(Decimal("1E-999999999"))


def test_tokens_are_whole() -> None:
    assert whole_tokens("472") == whole_tokens("472.0") == whole_tokens(Decimal("472.00")) == 472
    assert whole_tokens("-1") == -1
    with pytest.raises(MalformedError, match="not a whole number"):
        whole_tokens("472.5")
    with pytest.raises(MalformedError, match="2147483647"):
        whole_tokens(str(2**31))


@pytest.mark.parametrize(
    ("text", "expected", "zoned"),
    [
        ("1970-01-01 00:00:00", 0, False),
        ("1970-01-01 00:00:00.0000001", 100, False),
        ("1970-01-01T00:00:00.000000001Z", 1, True),
        ("1970-01-01 02:00:00+02:00", 0, True),
        ("1969-12-31 19:00:00.5-0500", 500_000_000, True),
        ("1970-01-01 05:30:00+05:30", 0, True),
        ("2023-11-16 18:15:46.6805900", 1_700_158_546_680_590_000, False),
        ("1970-01-01 00:00:00.000000000500000001", 1, False),
    ],
)
def test_instants(text: str, expected: int, zoned: bool) -> None:
    assert instant_ns(text) == (expected, zoned)


@given(
    st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)),
    st.integers(-14 * 60 + 1, 14 * 60 - 1),
)
def test_instants_agree_with_the_calendar_of_the_standard_library(moment: datetime, offset_minutes: int) -> None:
    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=offset_minutes)))
    since = zoned - datetime(1970, 1, 1, tzinfo=timezone.utc)  # noqa: UP017
    expected = ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1_000
    assert instant_ns(zoned.isoformat(sep=" ")) == (expected, True)


@pytest.mark.parametrize(
    "text",
    ["", "2023-11-16", "2023-02-30 00:00:00", "2023-11-16 24:00:00", "2023-11-16 10:60:00", "2023-11-16 10:00:60",
     "16/11/2023 10:00:00", "2023-11-16 10:00:00+15:00", "2023-11-16 10:00:00.", "1600-01-01 00:00:00", "NaT"],
)  # fmt: skip
def test_what_is_no_instant_is_malformed(text: str) -> None:
    with pytest.raises(MalformedError):
        instant_ns(text)


def test_shown_is_bounded() -> None:
    assert shown("ab") == "'ab'"
    assert len(shown("x" * 10_000)) == SHOWN_CHARS
    assert "\n" not in shown("a\nb")
