"""The frontend in a process of its own, as the host sees it: started, told, heard, killed."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from typing import Protocol

from blink.hw.native.frontend_child import Setup
from blink.hw.native.link import Link, Message
from blink.hw.native.memory import SharedBlock

MODULE = "blink.hw.native.frontend_child"


class Started(Protocol):
    """A process, as subprocess.Popen has it."""

    pid: int

    def poll(self) -> int | None: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...


class FrontendProcess:
    """Starts the process over a block that it inherits. It ends when told to, when killed, or with this process.

    Until `begin` it stands by: it is loaded and touches nothing.
    """

    def __init__(self, block: SharedBlock) -> None:
        self._block = block
        mine, its = socket.socketpair()
        try:
            self._process = self._start(mine, its)
        finally:
            its.close()
        self.pid = self._process.pid
        self.link = Link(mine, patient=False)

    def _start(self, mine: socket.socket, its: socket.socket) -> Started:
        """The process, which has its end of the link."""
        command = [sys.executable, "-m", MODULE, str(its.fileno())]
        return subprocess.Popen(
            command, pass_fds=(its.fileno(), self._block.fd), stdin=subprocess.DEVNULL, start_new_session=True
        )  # fmt: skip

    def begin(self, setup: Setup) -> None:
        """Let it take the ring."""
        self.link.send(setup, self._block.fd, self._block.size_bytes)

    def send(self, *message: object) -> None:
        """Tell it something."""
        self.link.send(*message)

    def receive(self, wait_s: float = 0.0) -> list[Message]:
        """What it has said since the last call, in order."""
        self.link.pump()
        return self.link.receive(wait_s)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.poll()

    def kill(self) -> list[Message]:
        """End it at once, wait until it is gone, and return what it had still said."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        return self.link.receive()

    def close(self) -> None:
        """Leave nothing behind."""
        self.kill()
        self.link.close()
