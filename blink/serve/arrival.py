"""When bytes reached a socket, by the kernel's stamp on them: a loop that has other things to do looks later.

Linux stamps what a socket receives if it is asked to, and tells the stamp with the bytes. Who peeks at the first of
them knows it before the server of HTTP has read anything.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Iterable

_SO_TIMESTAMPNS = 35  # <asm-generic/socket.h>: struct timespec of the realtime clock; Python has no name for it
_TIMESPEC = struct.Struct("@ll")
_SPACE = socket.CMSG_SPACE(_TIMESPEC.size)
_PEEK = socket.MSG_PEEK | getattr(socket, "MSG_DONTWAIT", 0)


def ask_for_stamps(sock: socket.socket) -> bool:
    """Have the kernel stamp what a TCP socket receives, or the connections of a listening one. Whether it does."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)  # connections inherit it
    except OSError:
        return False
    return True


def arrived_ns(fd: int) -> int:
    """When the bytes that a TCP socket has for its reader arrived, on the monotonic clock; now if nobody knows.

    Of packets that the kernel has joined, it is the last one's time: a request that came in pieces while nobody looked
    counts from the last of them.
    """
    try:
        stamp_ns = stamp_in(_peek(fd))
    except OSError:
        stamp_ns = None
    real_ns, now_ns = time.time_ns(), time.monotonic_ns()
    return now_ns if stamp_ns is None else now_ns - max(0, real_ns - stamp_ns)


def stamp_in(told: Iterable[tuple[int, int, bytes]]) -> int | None:
    """The stamp in what `recvmsg` told beside the bytes, on the realtime clock."""
    for level, kind, data in told:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, rest_ns = _TIMESPEC.unpack(data)
            return int(seconds) * 1_000_000_000 + int(rest_ns)
    return None


def _peek(fd: int) -> list[tuple[int, int, bytes]]:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
    try:
        return sock.recvmsg(1, _SPACE, _PEEK)[1]
    finally:
        sock.detach()  # the descriptor stays its owner's
