"""Ctrl-C during long work: the first one asks it to end in order, the second one does not ask."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Stop:
    """Whether the user asked to stop."""

    def __init__(self) -> None:
        self._asked = False

    def asked(self) -> bool:
        """True from the first Ctrl-C on."""
        return self._asked

    def handle(self, number: int, frame: object) -> None:
        """The signal handler."""
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True


@contextmanager
def stop_on_interrupt() -> Iterator[Stop]:
    """While inside, Ctrl-C is noted instead of raised."""
    stop = Stop()
    before = signal.signal(signal.SIGINT, stop.handle)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
