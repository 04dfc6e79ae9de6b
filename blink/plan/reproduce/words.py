"""Numbers and labels as every report of a reproduction writes them."""

from __future__ import annotations

import math

from blink.plan.reproduce.facts import Fact, Quantity
from blink.plan.reproduce.verdict import Totals, Verdict

UNIT_SIGNS = {"ratio": "x", "share": "", "change": ""}


def figure(value: float) -> str:
    """Three significant digits, without an exponent or trailing zeros."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    if float(value).is_integer() and abs(value) < 1e7:
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{min(digits, 6)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def published(quantity: Quantity) -> str:
    """The value, the range or the bound, with its unit."""
    if quantity.is_bound:
        text = f"at most {figure(quantity.high)}"
    elif quantity.is_value:
        text = figure(quantity.low)
    else:
        text = f"{figure(quantity.low)} to {figure(quantity.high)}"
    return _with_unit(text, quantity.unit)


def predicted(verdict: Verdict) -> str:
    """One value, or the least and the most of several; in the published unit."""
    values = verdict.prediction.values.values()
    if not values:
        return "-"
    low, high = figure(min(values)), figure(max(values))
    return low if low == high else f"{low} to {high}"


def each(verdict: Verdict) -> str:
    """Every value with its label, where there are a few."""
    values = verdict.prediction.values
    if len(values) < 2:
        return ""
    ordered = sorted(values.items(), key=lambda pair: pair[1])
    if len(ordered) > 5:
        ordered = [ordered[0], ordered[-1]]
        return "least " + ", most ".join(f"{label} {figure(value)}" for label, value in ordered)
    return ", ".join(f"{label} {figure(value)}" for label, value in ordered)


def name(fact: Fact, quantity: Quantity) -> str:
    """The quantity's name, empty where a fact has only one."""
    return "" if len(fact.quantities) == 1 else quantity.name.replace("_", " ")


def mark(verdict: Verdict) -> str:
    """`ok`, `miss`, or a dash where nothing is compared."""
    if verdict.error is None and not verdict.prediction.modelled:
        return "-"
    return "ok" if verdict.meets else "miss"


def short(verdict: Verdict) -> str:
    """How far off, in ten columns."""
    if verdict.error is None:
        return "-"
    if verdict.quantity.is_value or verdict.error == 0:
        return verdict.word
    return f"{abs(verdict.error):.0%} out"


def summary(totals: Totals) -> list[str]:
    """The sentences that sum it up."""
    predicted_facts = f"{totals.predicted_facts} ({totals.predicted_quantities} quantities)"
    lines = [
        f"Calibrated facts within 10 %: {totals.calibrated_facts} ({totals.calibrated_quantities} quantities).",
        f"Predicted facts inside or within 25 %, every quantity of them: {predicted_facts}.",
    ]
    if totals.not_modelled:
        lines.append(f"Not modelled and not counted: {totals.not_modelled}.")
    return lines


def _with_unit(text: str, unit: str) -> str:
    sign = UNIT_SIGNS.get(unit, f" {unit}")
    return f"{text}{sign}"
