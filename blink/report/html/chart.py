"""Charts by matplotlib as SVG inside the page: colours become the page's variables, so that they follow its theme."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from blink.report.plot import BLUE, GREEN, GRID, INK, MUTED, ORANGE, RC, RED, require_matplotlib

INCHES = (4.4, 2.8)
PURPLE = "#7a5aa8"
PAPER = "#ffffff"
VARIABLES = {
    INK: "ink", MUTED: "muted", GRID: "grid", BLUE: "blue", ORANGE: "orange", GREEN: "green", RED: "red",
    PURPLE: "purple", PAPER: "paper",
}  # fmt: skip
"""Colour that is drawn with -> variable of style.css."""
PAGE_RC: Any = {
    **RC,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.facecolor": PAPER,
    "savefig.facecolor": "none",
}

_COLOUR = re.compile("|".join(map(re.escape, VARIABLES)))
_FONT = re.compile(r"'DejaVu Sans'[^;\"]*")


def inline_svg(name: str, title: str, draw: Callable[[Any], None], inches: tuple[float, float] = INCHES) -> str:
    """One figure as an <svg> element. `name` tells its ids from those of the page's others; `title` is for readers
    who do not see it. The same drawing gives the same text with the same matplotlib. InputError without matplotlib.
    """
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    text = io.StringIO()
    with mpl.rc_context(PAGE_RC):
        figure = Figure(figsize=inches, layout="constrained")
        draw(figure)
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _adapted(text.getvalue(), name, title)


def variable(colour: str) -> str:
    """The CSS value of a colour that is drawn with."""
    return f"var(--{VARIABLES[colour]})"


def _adapted(svg: str, name: str, title: str) -> str:
    svg = svg[svg.index("<svg ") :]
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    rest = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", rest, count=1, flags=re.DOTALL)
    rest = rest.replace('id="', f'id="{name}-').replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    rest = _FONT.sub("system-ui, sans-serif", rest)
    rest = _COLOUR.sub(lambda found: f"var(--{VARIABLES[found[0]]})", rest)
    return f'<svg {box[0]} role="img" aria-label="{title}">{rest.strip()}'
