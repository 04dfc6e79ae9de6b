"""Gives a backend its turns inside the event loop, on time to a fraction of a millisecond."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import sys
import time
from collections.abc import Callable
from operator import attrgetter
from typing import Protocol

from blink.serve.backend import Backend

_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC = 1, os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_ABSOLUTE = 1


class Flushed(Protocol):
    """A stream that may have news to send."""

    @property
    def has_begun(self) -> bool:
        """Whether its client has had something."""

    def flush(self) -> None: ...


class Alarm:
    """Calls back once at a time of the monotonic clock. Loops count in milliseconds; timerfd, where it is, does not."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop, self._ring = loop, ring
        self._handle: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._fd >= 0:
            loop.add_reader(self._fd, self._rung)

    def set(self, at_ns: int) -> None:
        """Ring then, and not when it was set to before."""
        if self._fd >= 0:
            spec = struct.pack("qqqq", 0, 0, at_ns // 1_000_000_000, max(1, at_ns % 1_000_000_000))
            self._libc.timerfd_settime(self._fd, _ABSOLUTE, spec, None)
            return
        self.clear()
        delay_s = max(0, at_ns - time.monotonic_ns()) / 1e9
        self._handle = self._loop.call_later(delay_s, self._ring)

    def clear(self) -> None:
        """Do not ring."""
        if self._fd >= 0:
            self._libc.timerfd_settime(self._fd, 0, bytes(32), None)
        elif self._handle is not None:
            self._handle.cancel()

    def _rung(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
        self._ring()

    def close(self) -> None:
        """Give the descriptor back."""
        self.clear()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


class Pump:
    """The one reader: a turn of the backend, then every stream that has news is written to, once."""

    def __init__(
        self, backend: Backend, failed: Callable[[BaseException], None], observe: Callable[[float], None]
    ) -> None:
        """`failed` hears of a fault of the backend, `observe` of the seconds that each turn took."""
        self._backend, self._failed, self._observe = backend, failed, observe
        self._alarm: Alarm | None = None
        self._soon = False
        self._news: dict[Flushed, None] = {}

    def start(self) -> None:
        """Begin, inside the running loop."""
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._loop, self._turn)
        self.wake()

    def wake(self) -> None:
        """Something was submitted or cancelled: a turn as soon as what runs now is done."""
        if not self._soon and self._alarm is not None:
            self._soon = True
            self._loop.call_soon(self._turn)

    def has_news(self, stream: Flushed) -> None:
        """Flush a stream at the end of this turn."""
        self._news[stream] = None

    def _turn(self) -> None:
        self._soon = False
        alarm = self._alarm
        if alarm is None:
            return
        began_ns = time.monotonic_ns()
        try:
            next_ns = self._backend.turn()
            news, self._news = self._news, {}
            for stream in sorted(news, key=attrgetter("has_begun")):  # first tokens wait for nobody's next ones
                stream.flush()
        except Exception as error:
            self.stop()
            self._failed(error)
            return
        now_ns = time.monotonic_ns()
        self._observe((now_ns - began_ns) / 1e9)
        if next_ns is None:
            alarm.clear()
        elif next_ns <= now_ns:
            self.wake()
        else:
            alarm.set(next_ns)

    def stop(self) -> None:
        """No turns any more."""
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None
