"""Scripts for hypothesis, which makes a failing one small: the same drawing as in `blink conform`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st

from blink.conform.script import Choices, Script, draw_script

T = TypeVar("T")


class DrawnChoices:
    """Choices of a hypothesis strategy."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        """Shrinks to `low`."""
        return self._draw(st.integers(low, high))

    def pick(self, options: Sequence[T]) -> T:
        """Shrinks to the first."""
        return self._draw(st.sampled_from(options))

    def several(self, make: Callable[[Choices], T], most: int) -> list[T]:
        """A list, which shrinks by leaving elements out."""
        return self._draw(st.lists(_made(make), min_size=1, max_size=most))


@st.composite
def _made(draw: st.DrawFn, make: Callable[[Choices], T]) -> T:
    return make(DrawnChoices(draw))


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Whatever `draw_script` makes of it."""
    return draw_script(DrawnChoices(draw))
