"""Messages between a server and the keeper of its ring: length, then msgpack. Nothing of it is executed."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from blink.common.errors import InputError
from blink.hw.native.link import Link, Message

MESSAGE_BYTES_MAX = 1 << 28
_HEAD_BYTES = 4
FORWARDED = ("rows", "restarting", "restarted")
"""What a frontend says that its keeper must hear."""


class KeeperLink(Link):
    """A server's end. A frontend that speaks through it tells the keeper what belongs in the trace, and counts here."""

    def __init__(self, end: socket.socket, *, traced: bool) -> None:
        super().__init__(end, patient=True)
        self._end, self._traced = end, traced
        self.counts: dict[str, int] = {}

    def send(self, *message: Any) -> None:
        """See Link; what nobody needs to hear is not sent."""
        what = message[0]
        if what == "count":
            self.counts[message[1]] = self.counts.get(message[1], 0) + message[2]
        elif (what == "bye" or (self._traced and what in FORWARDED)) and not self.closed:
            self.closed = not write_message(self._end, message)

    def is_alive(self) -> bool:
        """Whether the keeper is still there: it says nothing after its greeting, so bytes or an end mean an end."""
        try:
            data = self._end.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
        except BlockingIOError:
            return not self.closed
        except OSError:
            return False
        return bool(data)


def write_message(end: socket.socket, message: Message) -> bool:
    """Send one; False if nobody takes it."""
    data = msgspec.msgpack.encode([_plain(part) for part in message])
    try:
        end.sendall(len(data).to_bytes(_HEAD_BYTES, "little") + data)
    except OSError:
        return False
    return True


def _plain(part: Any) -> Any:
    """Columns of a trace as (dtype, bytes)."""
    if isinstance(part, dict) and any(isinstance(value, np.ndarray) for value in part.values()):
        return {name: [values.dtype.str, values.tobytes()] for name, values in part.items()}
    return part


def columns_of(part: dict[str, list[Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """The columns again. Raises ValueError for what is none."""
    found = {}
    for name, (kind, data) in part.items():
        dtype = np.dtype(kind)
        if dtype.kind not in "iu":
            raise ValueError(f"column {name}: {kind} is no integer")
        found[name] = np.frombuffer(data, dtype)
    return found


class Incoming:
    """The messages of one connection, as they arrive whole."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[list[Any]]:
        """The messages that these bytes complete. Raises ValueError for one that is too long or no message."""
        self._data += data
        found = []
        while len(self._data) >= _HEAD_BYTES:
            size = int.from_bytes(self._data[:_HEAD_BYTES], "little")
            if size > MESSAGE_BYTES_MAX:
                raise ValueError(f"a message of {size} bytes")
            if len(self._data) < _HEAD_BYTES + size:
                break
            message = msgspec.msgpack.decode(self._data[_HEAD_BYTES : _HEAD_BYTES + size], type=list[Any])
            found.append(message)
            del self._data[: _HEAD_BYTES + size]
        return found


def default_socket(port: int) -> Path:
    """Of the ring that the server on a port uses, in a folder of this user alone. Raises InputError if it is not."""
    folder = Path(tempfile.gettempdir()) / f"blink-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise InputError(f"--ring: {folder} is not a folder of this user alone; name a socket with --ring PATH")
    return folder / f"serve-{port}.sock"
