"""JSON objects over TCP, each behind its length: what both sides say beside the verbs. Nothing of it is executed."""

from __future__ import annotations

import json
import select
import socket
from typing import Any

from blink.common.errors import InputError
from blink.hw.verbs.patience import Patience

Frame = dict[str, Any]
FRAME_BYTES_MAX = 1 << 16
"""Of one frame. Whoever announces more is not believed in."""
_HEAD_BYTES = 4
_CHUNK_BYTES = 1 << 14
PORT_MAX = 65_535


class FrameError(Exception):
    """The other side says what is no frame, or nothing in time, or has hung up."""


def encode(frame: Frame) -> bytes:
    """One frame as it travels. Raises FrameError if it is too long."""
    data = json.dumps(frame, separators=(",", ":")).encode()
    if len(data) > FRAME_BYTES_MAX:
        raise FrameError(f"a frame of {len(data)} bytes is not sent; {FRAME_BYTES_MAX} are allowed")
    return len(data).to_bytes(_HEAD_BYTES, "big") + data


class FrameReader:
    """The frames of one connection, as they arrive whole."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that these bytes complete. Raises FrameError for what is none, and for one that is too long."""
        self._data += data
        found: list[Frame] = []
        while len(self._data) >= _HEAD_BYTES:
            size = int.from_bytes(self._data[:_HEAD_BYTES], "big")
            if size > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {size} bytes is announced; {FRAME_BYTES_MAX} are allowed")
            if len(self._data) < _HEAD_BYTES + size:
                break
            found.append(_decoded(bytes(self._data[_HEAD_BYTES : _HEAD_BYTES + size])))
            del self._data[: _HEAD_BYTES + size]
        return found


def _decoded(data: bytes) -> Frame:
    try:
        frame = json.loads(data)
    except (ValueError, RecursionError):
        raise FrameError("what arrived is not JSON") from None
    if not isinstance(frame, dict):
        raise FrameError("what arrived is not a JSON object")
    return frame


class FrameSocket:
    """A connection that carries frames. Every wait has an end. Not for two readers at once."""

    def __init__(self, end: socket.socket) -> None:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.settimeout(1.0)  # of a send: the other side takes nothing any more
        self._end, self._reader = end, FrameReader()
        self._whole: list[Frame] = []
        self.closed = False

    def fileno(self) -> int:
        """For select."""
        return self._end.fileno()

    def send(self, frame: Frame) -> None:
        """Send one. Raises FrameError if it cannot be sent."""
        try:
            self._end.sendall(encode(frame))
        except OSError as error:
            self.closed = True
            raise FrameError(f"the connection is gone ({error})") from None

    def receive(self, wait_s: float) -> Frame:
        """The next frame. Raises FrameError if none comes in time."""
        patience = Patience(wait_s)
        while not self._whole:
            is_last = patience.over()
            self._whole += self.arrived(patience.left_s)
            if not self._whole and is_last:
                raise FrameError(f"no answer within {wait_s:g} s")
        return self._whole.pop(0)

    def arrived(self, wait_s: float) -> list[Frame]:
        """Frames that are here, after waiting for the first at most so long. Raises FrameError at the end."""
        whole, self._whole = self._whole, []
        if whole:
            return whole
        try:
            if not self._readable(wait_s):
                return []
            data = self._end.recv(_CHUNK_BYTES)
        except (OSError, ValueError) as error:  # a ValueError: it was closed here, in another thread
            self.closed = True
            raise FrameError(f"the connection is gone ({error})") from None
        if not data:
            self.closed = True
            raise FrameError("the other side has hung up")
        return self._reader.feed(data)

    def _readable(self, wait_s: float) -> bool:
        poller = select.poll()  # a server's descriptors may be beyond what select takes
        poller.register(self._end, select.POLLIN)
        return bool(poller.poll(1000 * wait_s))

    def close(self) -> None:
        """Hang up."""
        self.closed = True
        self._end.close()


def parse_address(option: str, text: str) -> tuple[str, int]:
    """HOST:PORT, or [HOST]:PORT for IPv6. Raises InputError."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    enclosed = host.startswith("[") and host.endswith("]")
    good = colon and bare and port.isdecimal() and int(port) <= PORT_MAX and (enclosed or ":" not in host)
    if not good:
        raise InputError(f"{option}: {text!r} is not allowed; allowed: HOST:PORT, such as 127.0.0.1:7471")
    return bare, int(port)
