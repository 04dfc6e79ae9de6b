"""StepCorrections: what a roofline lacks at the captured shapes of one engine, as ratios of measured durations to it.

A file of them names the model, the GPU's and the engine's profile that the ratios belong to, and lists every shape that
was measured:

    [[step]]
    kind = "prefill"
    batch = 2
    sequence = 384
    use = "fit"
    ratio = 1.0132
    error = 0.0008    # of the ratio: standard deviation of the measured median
    p50_ns = 17702000 # on a GPU that has idled
    samples = 40

Shapes whose use is "holdout" were measured and take no part: their `ratio` is over what the others predict for them.
A `sequence` of 0 says a decode step, whose ratio holds without its KV tokens; `curve` holds [KV tokens, ratio] of the
whole step along the range that was measured.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.profile import read_toml

KINDS = ("prefill", "decode")
USES = ("fit", "holdout")
_SIZES = {"batch": 1, "sequence": 0, "p50_ns": 1, "samples": 1}
_TEXTS = ("name", "description", "model", "gpu", "engine", "source")
Curve = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One captured shape: `p50_ns` of `samples`, `ratio` of it to the model, and the relative error of that median."""

    kind: str
    batch: int
    sequence: int
    use: str
    ratio: float
    error: float
    p50_ns: int
    samples: int
    curve: tuple[tuple[int, float], ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens that the step computes."""
        return self.batch * (self.sequence or 1)


@dataclass(frozen=True, slots=True)
class StepCorrections:
    """Ratios by shape; between shapes that were measured, and beyond them, by what lies next (linear in tokens)."""

    name: str
    steps: tuple[MeasuredStep, ...]
    _decode: Curve = field(init=False, repr=False, default=((), ()))
    _prefill: dict[int, Curve] = field(init=False, repr=False, default_factory=dict)
    _any_prefill: Curve = field(init=False, repr=False, default=((), ()))
    _along: dict[int, Curve] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        fitted = [step for step in self.steps if step.use == "fit"]
        prefills = [step for step in fitted if step.kind == "prefill"]
        object.__setattr__(self, "_decode", _curve(step for step in fitted if step.kind == "decode"))
        object.__setattr__(self, "_any_prefill", _curve(prefills))
        for step in fitted:
            if step.curve:
                places, ratios = zip(*step.curve, strict=True)
                self._along[step.batch] = tuple(map(float, places)), ratios
        for batch in {step.batch for step in prefills}:
            self._prefill[batch] = _curve(step for step in prefills if step.batch == batch)

    @classmethod
    def load(cls, path: str | Path) -> StepCorrections:
        """Read a file. InputError names the file and the field that is wrong."""
        origin = str(path)
        raw = read_toml(Path(path), origin)
        if raw.get("profile") != "steps":
            raise InputError(f"{origin}: profile: {raw.get('profile')!r} is not allowed; allowed: 'steps'")
        for key in _TEXTS:
            if not isinstance(raw.get(key), str):
                raise InputError(f"{origin}: {key}: {raw.get(key)!r} is not allowed; allowed: a text")
        tables = raw.get("step")
        if not isinstance(tables, list) or not tables:
            raise InputError(f"{origin}: step: missing; allowed: one table or more")
        steps = tuple(_step(f"{origin}: step {index}", table) for index, table in enumerate(tables))
        if not any(step.use == "fit" for step in steps):
            raise InputError(f"{origin}: step: none is of use 'fit'")
        return cls(raw["name"], steps)

    def decode_ratio(self, batch: int) -> float:
        """What to multiply a decode step of a captured batch with, without its KV tokens."""
        return interpolated(self._decode, batch)

    def along(self, batch: int) -> Curve:
        """KV tokens and ratios of a decode step of a captured batch, or of the nearest that was measured."""
        if not self._along or batch in self._along:
            return self._along.get(batch, ((), ()))
        nearest = min(self._along, key=lambda known: (abs(known - batch), known))
        places, ratios = self._along[nearest]
        return tuple(place * batch / nearest for place in places), ratios

    def prefill_ratio(self, batch: int, sequence: int) -> float:
        """What to multiply a captured prefill with: its own ratio, or that of other prefills of as many tokens."""
        tokens, own = batch * sequence, self._prefill.get(batch, ((), ()))
        if tokens in own[0] or tokens not in self._any_prefill[0]:
            return interpolated(own if own[0] else self._any_prefill, tokens)
        return interpolated(self._any_prefill, tokens)

    def holdout(self) -> list[MeasuredStep]:
        """Shapes that were measured and not fitted."""
        return [step for step in self.steps if step.use == "holdout"]


def _curve(steps: Iterable[MeasuredStep]) -> Curve:
    """Ratios over tokens, ascending; the mean where several shapes have as many tokens."""
    by_tokens: dict[int, list[float]] = {}
    for step in steps:
        by_tokens.setdefault(step.tokens, []).append(step.ratio)
    tokens = sorted(by_tokens)
    return tuple(map(float, tokens)), tuple(sum(by_tokens[key]) / len(by_tokens[key]) for key in tokens)


def interpolated(curve: Curve, tokens: float) -> float:
    """The ratio at a place: linear between neighbours, constant beyond the ends, 1 where there is none."""
    places, ratios = curve
    if not places:
        return 1.0
    index = bisect_left(places, tokens)
    if index == 0 or index == len(places):
        return ratios[min(index, len(places) - 1)]
    low, high = places[index - 1], places[index]
    share = (tokens - low) / (high - low)
    return ratios[index - 1] * (1.0 - share) + ratios[index] * share


def _step(where: str, table: Any) -> MeasuredStep:
    needed = set(MeasuredStep.__slots__) - {"curve"}
    if not isinstance(table, dict) or set(table) - {"curve"} != needed:
        raise InputError(f"{where}: {table!r}; allowed: a table of {', '.join(MeasuredStep.__slots__)}")
    for name, allowed in (("kind", KINDS), ("use", USES)):
        if table[name] not in allowed:
            raise InputError(f"{where}: {name}: {table[name]!r} is not allowed; allowed: {', '.join(allowed)}")
    for name, least in _SIZES.items():
        if type(table[name]) is not int or table[name] < least:
            raise InputError(f"{where}: {name}: {table[name]!r} is not allowed; allowed: an integer >= {least}")
    for name in ("ratio", "error"):
        if not isinstance(table[name], int | float) or not 0 <= table[name] < 100:
            raise InputError(f"{where}: {name}: {table[name]!r} is not allowed; allowed: a number from 0 to 100")
    curve = table.get("curve", [])
    good = isinstance(curve, list) and all(
        isinstance(pair, list)
        and len(pair) == 2
        and type(pair[0]) is int
        and isinstance(pair[1], float)
        and pair[1] > 0
        for pair in curve
    )
    if not good or any(one[0] >= other[0] for one, other in pairwise(curve)):
        raise InputError(f"{where}: curve: {curve!r} is not allowed; allowed: [KV tokens, ratio] pairs, ascending")
    numbers = {"ratio": float(table["ratio"]), "error": float(table["error"])}
    return MeasuredStep(**{**table, **numbers, "curve": tuple((pair[0], pair[1]) for pair in curve)})
