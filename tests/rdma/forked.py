"""The frontend's process of a drill, forked: under emulation, a new interpreter imports for ten seconds."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from blink.hw.native import frontend_child
from blink.hw.native.frontend_child import Setup
from blink.hw.native.link import Link, Message
from blink.hw.native.memory import SharedBlock


class ForkedFrontend:
    """As blink.hw.native.frontend_process.FrontendProcess. It inherits what is open here, and uses nothing of it."""

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        mine, its = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            with contextlib.suppress(BaseException):
                mine.close()
                frontend_child.main(str(its.detach()))
                os._exit(0)
            os._exit(1)
        its.close()
        self._code: int | None = None
        self.link = Link(mine, patient=False)

    def begin(self, setup: Setup) -> None:
        """Let it take the ring."""
        self.link.send(setup, self._block.fd, self._block.size_bytes)

    def send(self, *message: object) -> None:
        """Tell it something."""
        self.link.send(*message)

    def receive(self, wait_s: float = 0.0) -> list[Message]:
        """What it has said since the last call."""
        self.link.pump()
        return self.link.receive(wait_s)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def kill(self) -> list[Message]:
        """End it at once, wait until it is gone, and return what it had still said."""
        if self.exit_code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.link.receive()

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        self.link.close()
