"""The frontend's process of a drill, forked: under emulation, a new interpreter imports for ten seconds."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from blink.hw.native import frontend_child
from blink.hw.native.frontend_process import FrontendProcess


class Forked:
    """A process that was forked (blink.hw.native.frontend_process.Started)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def _look(self, options: int) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def poll(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._look(os.WNOHANG)

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        code = self._look(0)
        assert code is not None
        return code


class ForkedFrontend(FrontendProcess):
    """It inherits what is open here, and uses nothing of it."""

    def _start(self, mine: socket.socket, its: socket.socket) -> Forked:
        pid = os.fork()
        if not pid:
            with contextlib.suppress(BaseException):
                mine.close()
                frontend_child.main(str(its.detach()))
                os._exit(0)
            os._exit(1)
        return Forked(pid)
