"""How far a prediction is from what was published, and the sum over all facts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blink.plan.reproduce.facts import CALIBRATED, PREDICTED, Fact, Quantity, Reason
from blink.plan.reproduce.predict import Prediction

CALIBRATED_ERROR_MAX = 0.10
PREDICTED_ERROR_MAX = 0.25
ROUNDING = 0.005
"""Published figures are rounded: so far beyond the end of a range, relative to it, is still inside."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One quantity: what was published, what the twin has, and the relative error of its worst value.

    `error` is 0 inside the published range or bound, else signed and relative to the nearest end; None if there is no
    value.
    """

    fact: Fact
    quantity: Quantity
    prediction: Prediction
    error: float | None
    reason: str

    @property
    def use(self) -> str:
        """Calibrated, given or predicted."""
        return self.fact.use[self.quantity.name]

    @property
    def meets(self) -> bool:
        """Within 10 % if calibrated, inside or within 25 % if predicted, equal if given."""
        limit = {CALIBRATED: CALIBRATED_ERROR_MAX, PREDICTED: PREDICTED_ERROR_MAX}.get(self.use, 1e-9)
        return self.error is not None and abs(self.error) <= limit

    @property
    def word(self) -> str:
        """`inside` or `outside` a range or bound, the error for a value."""
        if self.error is None:
            return "not modelled" if not self.prediction.modelled else "no evidence"
        if self.quantity.is_value:
            return f"{self.error:+.1%}"
        return "inside" if self.error == 0 else f"outside by {abs(self.error):.0%}"


def judge(fact: Fact, predictions: dict[str, Prediction], reasons: Iterable[Reason]) -> list[Verdict]:
    """A verdict for each quantity of a fact, with the reason that is written for a miss of that sign."""
    return [_judge_one(fact, quantity, predictions[quantity.name], tuple(reasons)) for quantity in fact.quantities]


def _judge_one(fact: Fact, quantity: Quantity, prediction: Prediction, reasons: Sequence[Reason]) -> Verdict:
    errors = [relative_error(quantity, value) for value in prediction.values.values()]
    error = max(errors, key=abs) if errors else None
    verdict = Verdict(fact, quantity, prediction, error, "")
    if error is None or verdict.meets:
        return verdict
    found = [reason.text for reason in reasons if reason.explains(fact.id, quantity.name, error)]
    return Verdict(fact, quantity, prediction, error, found[0] if found else "")


def relative_error(quantity: Quantity, value: float) -> float:
    """0 inside; below the range negative, above it positive, relative to that end (to the width where the end is 0)."""
    if quantity.low <= value <= quantity.high:
        return 0.0
    end = quantity.low if value < quantity.low else quantity.high
    error = (value - end) / (abs(end) or quantity.high - quantity.low)
    return error if quantity.is_value or abs(error) > ROUNDING else 0.0


@dataclass(frozen=True, slots=True)
class Tally:
    """How many meet their aim."""

    met: int
    count: int

    def __str__(self) -> str:
        return f"{self.met} of {self.count}"


@dataclass(frozen=True, slots=True)
class Totals:
    """Facts and quantities by use. A fact meets its aim if every such quantity of it does."""

    calibrated_facts: Tally
    predicted_facts: Tally
    calibrated_quantities: Tally
    predicted_quantities: Tally
    not_modelled: int


def totals(verdicts: Sequence[Verdict]) -> Totals:
    """The sums; what is not modelled is counted apart, what lacks evidence counts as a miss."""
    modelled = [verdict for verdict in verdicts if verdict.prediction.modelled]
    by_use = {use: [verdict for verdict in modelled if verdict.use == use] for use in (CALIBRATED, PREDICTED)}
    return Totals(
        _facts(by_use[CALIBRATED]),
        _facts(by_use[PREDICTED]),
        _quantities(by_use[CALIBRATED]),
        _quantities(by_use[PREDICTED]),
        len(verdicts) - len(modelled),
    )


def _quantities(verdicts: Sequence[Verdict]) -> Tally:
    return Tally(sum(verdict.meets for verdict in verdicts), len(verdicts))


def _facts(verdicts: Sequence[Verdict]) -> Tally:
    meets: dict[str, bool] = {}
    for verdict in verdicts:
        meets[verdict.fact.id] = meets.get(verdict.fact.id, True) and verdict.meets
    return Tally(sum(meets.values()), len(meets))
