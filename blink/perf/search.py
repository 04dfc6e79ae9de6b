"""A search for the constants that fit best, along one after the other, with ever smaller steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Constants = dict[str, float]
STEPS = (0.08, 0.04, 0.02, 0.01, 0.005)
LEAST_GAIN = 1e-5


def fit_constants(
    start: Mapping[str, float],
    bounds: Mapping[str, tuple[float, float]],
    loss: Callable[[Constants], float],
    steps: tuple[float, ...] = STEPS,
) -> Constants:
    """The constants near `start` and within `bounds` (closed) at which no single step makes `loss` smaller.

    A step multiplies or divides one constant by 1 + step. Deterministic: the order of `start` is the order of trials.
    """
    best = dict(start)
    least = loss(best)
    for step in steps:
        moved = True
        while moved:
            moved = False
            for name, (low, high) in bounds.items():
                for factor in (1 + step, 1 / (1 + step)):
                    other = {**best, name: round(best[name] * factor, 6)}
                    if not low <= other[name] <= high:
                        continue
                    value = loss(other)
                    if value < least - LEAST_GAIN:
                        best, least, moved = other, value, True
                        break
    return best
