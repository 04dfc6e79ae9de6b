"""How long is waited for somebody else, by the time that was really watched."""

from __future__ import annotations

import time

_PARTS = 4


class Patience:
    """Over once `limit_s` seconds were watched. What lies between two looks counts as at most a quarter of that.

    So a process or a machine that was itself held up does not take its own pause for the other side's silence. Ask
    before each look and give up after it: what has come meanwhile is seen.
    """

    def __init__(self, limit_s: float) -> None:
        self._left_s, self._part_s = limit_s, limit_s / _PARTS
        self._asked_s = time.monotonic()

    @property
    def left_s(self) -> float:
        """What may be waited until the next look."""
        return max(0.0, min(self._left_s, self._part_s))

    def over(self) -> bool:
        """Whether the look that follows is the last one."""
        now = time.monotonic()
        self._left_s -= min(now - self._asked_s, self._part_s)
        self._asked_s = now
        return self._left_s <= 0
