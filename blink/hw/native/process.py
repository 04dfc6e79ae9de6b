"""The scheduler in a process of its own, watched by its heartbeat."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from enum import IntEnum
from pathlib import Path

from blink.hw.native.instance import Instance

START_LIMIT_S = 45.0
"""For a process that has to load. One that has ended shows at once; on a busy machine under emulation, 20 s are few."""
SILENCE_LIMIT_NS = 10_000_000_000
"""A heartbeat older than that means that the scheduler hangs: it beats at every boundary and while a graph runs."""


class Stop(IntEnum):
    """Values of the ring header's stop word."""

    RUN = 0
    DRAIN = 1  # stop once nothing waits and nothing runs
    ABORT = 2  # abort what runs and stop


def default_threads() -> int:
    """Scan threads: two at least, and one core stays free for the frontend. One where there is but one core."""
    cores = os.cpu_count() or 2
    return max(min(2, cores), min(4, cores - 1))


class SchedulerProcess:
    """Starts the scheduler over an instance's block. It ends by the stop word, or by itself when this process dies."""

    def __init__(self, instance: Instance, threads: int) -> None:
        self._instance, self._library = instance, instance.library
        block = instance.shared
        script = Path(__file__).with_name("child.py")
        arguments = (self._library.path, block.fd, block.size_bytes, threads, os.getpid())
        command = [sys.executable, "-I", "-S", str(script), *map(str, arguments)]
        self._process = subprocess.Popen(command, pass_fds=(block.fd,), stdin=subprocess.DEVNULL)
        self.pid = self._process.pid

    def wait_until_up(self) -> None:
        """Return once the heart beats. Raises RuntimeError if it does not begin to."""
        due = time.monotonic() + START_LIMIT_S
        while not self._library.heartbeat_ns(self._instance.base):
            code = self._process.poll()
            if code is not None or time.monotonic() > due:
                self.kill()
                how = f"no heartbeat within {START_LIMIT_S:g} s" if code is None else f"exit code {code}"
                raise RuntimeError(f"the scheduler's process did not start ({how})")
            time.sleep(0.001)

    def fault(self) -> str | None:
        """Why the scheduler will not go on, None if it is well."""
        code = self._process.poll()
        if code is not None:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            return f"the scheduler's process ended early ({how})"
        silence_ns = self._library.now_ns() - self._library.heartbeat_ns(self._instance.base)
        if silence_ns > SILENCE_LIMIT_NS:
            return f"the scheduler's heart has not beaten for {silence_ns // 1_000_000_000} s"
        return None

    def record_ns(self, host_ns: int) -> int:
        """The scheduler's process reads the same clock."""
        return host_ns

    def stop(self, how: Stop, limit_s: float = 10.0) -> bool:
        """Set the stop word and wait for the end; kill the process after `limit_s`. True if it ended by itself."""
        self._library.set_stop(self._instance.base, int(how))
        try:
            return self._process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            self.kill()
            return False

    def kill(self) -> None:
        """End the process at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
