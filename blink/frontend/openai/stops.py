"""Stop strings in text that comes in pieces: found across their borders, and no beginning of one is given out."""

from __future__ import annotations


class StopFinder:
    """Feed pieces; get the text that may be shown. `found` is the stop string that ended the text, None so far.

    Of several stops the one that begins first counts, then the one that was listed first. The stop itself is not
    shown. What could be the beginning of a stop is held back until it is decided. A stop is looked for where it ends:
    one that ends in a piece that is not `checked` is text like any other, for the length of a minimum.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str, *, checked: bool = True) -> str:
        """The text that is certain now."""
        if not self._stops:
            return piece
        text = self._held + piece
        if checked:
            old = len(self._held)  # what ends in it has been decided
            found = ((text.find(stop, max(0, old - len(stop) + 1)), index) for index, stop in enumerate(self._stops))
            at, index = min((place for place in found if place[0] >= 0), default=(-1, 0))
            if at >= 0:
                self.found, self._held = self._stops[index], ""
                return text[:at]
        held = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def finish(self) -> str:
        """What was held back, once nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that are the beginning of `stop`; never all of it."""
    first = max(0, len(text) - len(stop) + 1)
    at = text.find(stop[0], first)
    while at >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at = text.find(stop[0], at + 1)
    return 0
