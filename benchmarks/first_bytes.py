"""Clients of many streams: one that knows when a first token was at its socket, and one as people write it."""

from __future__ import annotations

import asyncio
import json
import re
import selectors
import socket
import time
from dataclasses import dataclass

from blink.serve.arrival import arrived_ns, ask_for_stamps

_LIMIT_S = 60.0
_FIRST, _END = b"data:", b"\r\n0\r\n\r\n"


@dataclass(slots=True)
class First:
    """Of one request, on the monotonic clock: sent, first token at the client's socket (by the kernel), and read."""

    sent_ns: int = -1
    there_ns: int = -1
    read_ns: int = -1
    response_id: str = ""


class Client:
    """Connections that stay open; each carries one stream at a time."""

    def __init__(self, port: int, width: int) -> None:
        self._socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(width)]
        self._selector = selectors.DefaultSelector()
        for sock in self._socks:
            ask_for_stamps(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            self._selector.register(sock, selectors.EVENT_READ)

    def burst(self, tokens: int, gap_ns: int) -> list[First]:
        """A stream on each connection, each begun `gap_ns` after the one before; until all of them are over."""
        firsts = {sock: First() for sock in self._socks}
        data = dict.fromkeys(self._socks, b"")
        due_ns = time.monotonic_ns()
        for sock in self._socks:
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                self._read(firsts, data, left_ns / 1e9)
            due_ns += gap_ns
            firsts[sock].sent_ns = time.monotonic_ns()
            sock.send(_request(tokens))
        while not all(whole.endswith(_END) for whole in data.values()):
            self._read(firsts, data, _LIMIT_S)
        for sock, first in firsts.items():
            first.response_id = _id_in(data[sock])
        return list(firsts.values())

    def _read(self, firsts: dict[socket.socket, First], data: dict[socket.socket, bytes], wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            first = firsts[sock]
            there_ns = arrived_ns(sock.fileno()) if first.read_ns < 0 else 0
            piece = sock.recv(1 << 18)
            assert piece, "the server closed a connection"
            data[sock] += piece
            if there_ns and _FIRST in data[sock]:
                first.there_ns, first.read_ns = there_ns, time.monotonic_ns()

    def close(self) -> None:
        """Close the connections."""
        self._selector.close()
        for sock in self._socks:
            sock.close()


async def tasks(port: int, width: int, tokens: int, gap_ns: int) -> list[First]:
    """The same by a task and a connection for each stream, on asyncio's own loop; nobody asks the kernel."""

    async def one(index: int) -> First:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(index * gap_ns / 1e9)
        first, data = First(time.monotonic_ns()), b""
        writer.write(_request(tokens))
        while not data.endswith(_END):
            piece = await reader.read(1 << 18)
            assert piece, "the server closed a connection"
            data += piece
            if first.read_ns < 0 and _FIRST in data:
                first.read_ns = time.monotonic_ns()
        writer.close()
        first.response_id = _id_in(data)
        return first

    return await asyncio.gather(*(one(index) for index in range(width)))


def _request(tokens: int) -> bytes:
    fields = {"prompt": "Hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    body = json.dumps(fields).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _id_in(data: bytes) -> str:
    found = re.search(rb'"id":"([^"]+)"', data)
    assert found is not None
    return found[1].decode()
