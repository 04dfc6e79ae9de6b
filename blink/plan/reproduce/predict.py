"""Prediction: what the twin has for one published quantity, and the registry of what evaluates each fact."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from blink.plan.reproduce.evidence import Evidence, NoEvidenceError

Label = str
"""What a value is of: an engine, a model, both; empty where there is only one."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Values by label; or none, and why. `note` says what was evaluated, where that needs words."""

    values: Mapping[Label, float] = field(default_factory=dict)
    note: str = ""
    absent: str = ""
    modelled: bool = True


Evaluation = Callable[[Evidence], dict[str, Prediction]]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """How a fact is evaluated, and from which kinds of runs (testbed.Testbed.runs)."""

    evaluate: Evaluation
    kinds: frozenset[str]


Registry = dict[str, Evaluated]


def register(registry: Registry, fact: str, *kinds: str) -> Callable[[Evaluation], Evaluation]:
    """Decorator: this function evaluates that fact, from runs of these kinds."""

    def add(evaluation: Evaluation) -> Evaluation:
        registry[fact] = Evaluated(evaluation, frozenset(kinds))
        return evaluation

    return add


def one(value: float, note: str = "") -> Prediction:
    """A single value."""
    return Prediction({"": value}, note)


def not_modelled(why: str) -> Prediction:
    """Nothing in the twin stands for this."""
    return Prediction(absent=why, modelled=False)


def gathered(labels: Iterable[Label], value: Callable[[Label], float], note: str = "") -> Prediction:
    """One value a label; labels for which the runs have no evidence are left out, and the note says so."""
    values: dict[Label, float] = {}
    missing = []
    for label in labels:
        try:
            values[label] = value(label)
        except NoEvidenceError as error:
            missing.append(str(error))
    more = "; ".join(dict.fromkeys(missing))
    if not values:
        return Prediction(absent=more)
    return Prediction(values, "; ".join(text for text in (note, more) if text))
