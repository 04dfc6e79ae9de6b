"""The frontend's process with a bug planted in it: what BLINK_TEST_BUG names. Run in place of frontend_child."""

from __future__ import annotations

import os
import sys
from typing import Any

from blink.common.layout import Buffer
from blink.frontend.recovery import HeartbeatWatch, Left, Recovery
from blink.hw.native import frontend_child
from blink.hw.native.driver import Frontend


def frees_everything() -> None:
    """A restart takes every slot as free."""

    def adopt(self: Recovery, words: Any, descriptors: Buffer) -> list[Left]:
        self.adopted = True
        for slot in self._slots.slots:
            self._slots.recover(slot, int(words[slot]) >> 16 & 0xFFFFFF, empty=True)
        return []

    Recovery.adopt = adopt  # type: ignore[method-assign]


def keeps_the_epoch() -> None:
    """A restart goes on under the old epoch."""
    start = Recovery.__init__

    def stay(self: Recovery, slots: Any, prompts: Any, header_epoch: int) -> None:
        start(self, slots, prompts, header_epoch)
        self.epoch = header_epoch

    Recovery.__init__ = stay  # type: ignore[method-assign]


def recycles_undrained() -> None:
    """The last token of a request that has more than one is not read before its slot is recycled."""
    receive = Frontend._receive

    def hasty(self: Frontend, news: Any) -> list[int]:
        long = news.completed & (news.token_count - news.token_from > 1)
        news.token_count[long] -= 1
        return receive(self, news)

    Frontend._receive = hasty  # type: ignore[method-assign]


def hands_over_again() -> None:
    """The cursor does not move: every token comes with the next one again."""
    receive = Frontend._receive

    def forgetful(self: Frontend, news: Any) -> list[int]:
        ended = receive(self, news)
        going_on = news.slots[~news.completed]
        self._reader._count[going_on] = 0
        return ended

    Frontend._receive = forgetful  # type: ignore[method-assign]


def nobody_watches() -> None:
    """The scheduler is taken to be there."""
    HeartbeatWatch.look = lambda self, heartbeat, now_ns: True  # type: ignore[method-assign]


if __name__ == "__main__":
    globals()[os.environ["BLINK_TEST_BUG"]]()
    frontend_child.main(*sys.argv[1:])
