"""Where a run stretched its profiles: constants used outside the range that they were measured or fitted in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from blink.common.profile import Constant

RANGE_NOTE = "outside a profile's range"
"""How a note of a result begins that says a constant was used where it was not measured."""


def range_notes(lines: Iterable[str]) -> list[str]:
    """Notes of a result from the lines of `violations`."""
    return [f"{RANGE_NOTE}: {line}" for line in lines]


def violations(owner: str, constants: Mapping[str, Constant], observed: Mapping[str, tuple[int, int]]) -> list[str]:
    """Lines for what was observed of `owner` outside the range of its constants, in a fixed order.

    Constants that hold in the same range of the same quantity share a line.
    """
    stretched: dict[tuple[str, int, int], list[str]] = {}
    for constant in sorted(constants.values(), key=lambda item: item.name):
        for quantity in constant.range.keys() & observed.keys():
            (low, high), (least, most) = constant.range[quantity], observed[quantity]
            if least < low or most > high:
                stretched.setdefault((quantity, low, high), []).append(constant.name)
    lines = []
    for (quantity, low, high), names in sorted(stretched.items()):
        (least, most), verb = observed[quantity], "holds" if len(names) == 1 else "hold"
        lines.append(
            f"{owner}: {quantity} {least} to {most} in the run, {low} to {high} where {', '.join(names)} {verb}"
        )
    return lines
