"""A scheduler on another host, as the loop of a run knows it (blink.hw.ring.Running)."""

from __future__ import annotations

import time

from blink.frontend.recovery import HeartbeatWatch
from blink.hw.native.process import SILENCE_LIMIT_NS, START_LIMIT_S, Stop
from blink.hw.verbs.failure import ConnectionFailedError
from blink.hw.verbs.ring import VerbsRing


class RemoteRunning:
    """The heart is watched by READs; to stop it is asked of the process that started it."""

    def __init__(self, ring: VerbsRing) -> None:
        self._ring = ring
        self._watch = HeartbeatWatch(SILENCE_LIMIT_NS)

    def wait_until_up(self) -> None:
        """Return once the heart beats. Raises RuntimeError if it does not begin to."""
        due = time.monotonic() + START_LIMIT_S
        while not self._ring.heartbeat():
            if time.monotonic() > due:
                raise RuntimeError("the scheduler on the ring's side did not start")
            time.sleep(0.005)

    def fault(self) -> str | None:
        """Why the scheduler will not go on, None if it is well."""
        try:
            if self._watch.look(self._ring.heartbeat(), time.monotonic_ns()):
                return None
        except ConnectionFailedError as error:
            return str(error)
        return f"the scheduler's heart has not beaten for {self._watch.silence_ns // 1_000_000_000} s"

    def stop(self, how: Stop, limit_s: float = 10.0) -> bool:
        """Ask for its end and wait for it. True if it ended by itself."""
        self._ring.flush()
        answer = self._ring.attachment.ask({"ask": "stop", "how": int(how)}, limit_s + 5)
        self._ring.drain_gap_ns = 0
        return bool(answer.get("clean"))

    def kill(self) -> None:
        """It is not this process's to end."""

    def record_ns(self, host_ns: int) -> int:
        """A time of this machine on the clock of the scheduler's trace records."""
        return host_ns + self._ring.attachment.record_offset_ns
