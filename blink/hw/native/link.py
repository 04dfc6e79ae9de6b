"""Messages between the host and a frontend in a process of its own: pickled tuples over a socket pair.

Both ends are this program's own processes. Whatever was sent before a process was killed arrives; a message that its
death cut off does not.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
from typing import Any

Message = tuple[Any, ...]
_HEAD_BYTES = 4
_CHUNK_BYTES = 1 << 18


class Link:
    """One end. `send` may wait for the other end only if `patient`; else it is kept until `pump` can send it."""

    def __init__(self, end: socket.socket, *, patient: bool) -> None:
        self._socket, self._patient = end, patient
        self._out, self._in = bytearray(), bytearray()
        self.closed = False
        end.setblocking(patient)

    def fileno(self) -> int:
        """For select."""
        return self._socket.fileno()

    def send(self, *message: Any) -> None:
        """Send one message. A link whose other end is gone swallows it."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        self._out += len(data).to_bytes(_HEAD_BYTES, "little") + data
        if self._patient:
            try:
                self._socket.sendall(self._out)
            except OSError:
                self.closed = True
            self._out.clear()
        else:
            self.pump()

    def pump(self) -> None:
        """Send as much as the other end takes now."""
        with contextlib.suppress(BlockingIOError):
            while self._out:
                try:
                    del self._out[: self._socket.send(self._out)]
                except (BrokenPipeError, ConnectionResetError):
                    self._out.clear()

    def receive(self, wait_s: float = 0.0) -> list[Message]:
        """The messages that are here, after waiting for the first at most so long; `closed` once nobody is there."""
        while not self.closed and select.select([self._socket], [], [], wait_s)[0]:
            wait_s = 0.0
            try:
                data = self._socket.recv(_CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            self.closed = not data
            self._in += data
        return list(self._whole())

    def _whole(self) -> list[Message]:
        found, at = [], 0
        while len(self._in) - at >= _HEAD_BYTES:
            end = at + _HEAD_BYTES + int.from_bytes(self._in[at : at + _HEAD_BYTES], "little")
            if end > len(self._in):
                break
            found.append(pickle.loads(self._in[at + _HEAD_BYTES : end]))
            at = end
        del self._in[:at]
        return found

    def close(self) -> None:
        """Close this end."""
        self._socket.close()
