"""A request counts from when its bytes came, however long the loop that serves it had other things to do."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="needs the extra [serve]")
pytest.importorskip("uvloop", reason="needs the extra [serve]")

import uvloop

from blink.serve.app import ARRIVED
from blink.serve.arrival import arrived_ns, ask_for_stamps
from blink.serve.carrier import carrier_of
from blink.serve.server import listen

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
BUSY_S = 0.05
LIMIT_S = 10.0


def pair(*, stamped: bool) -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection; what the second one receives is `stamped`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not stamped or ask_for_stamps(listener)
        client = socket.create_connection(listener.getsockname())
        return client, listener.accept()[0]


@pytest.fixture
def stamps() -> Iterator[None]:
    """The kernel stamps what comes: a busy one begins to a while after the first socket has asked."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux stamps what a socket receives")
    client, end = pair(stamped=True)
    with client, end:
        due = time.monotonic() + LIMIT_S
        while not _is_stamped(client, end):
            if time.monotonic() > due:
                pytest.skip("this kernel stamps nothing")
        yield


def _is_stamped(client: socket.socket, end: socket.socket) -> bool:
    client.sendall(b"x")
    select.select([end], [], [])
    there_ns = time.monotonic_ns()
    time.sleep(0.001)
    counted_ns = arrived_ns(end.fileno())
    end.recv(1)
    return counted_ns < there_ns


@asynccontextmanager
async def carried(app: Any) -> AsyncIterator[socket.socket]:
    """A client of an application that this loop serves."""
    listener = listen("127.0.0.1", 0)
    address = listener.getsockname()
    carrier = carrier_of("uvicorn", app, listener)
    serving = asyncio.ensure_future(carrier.serve())
    while not carrier.started:
        await asyncio.sleep(0.001)
    with socket.create_connection(address) as client:
        yield client
    carrier.stop()
    await serving


async def arrivals(head: bytes, rest: bytes) -> list[tuple[int, int, int]]:
    """Requests that came to a server in this loop while the loop did something else.

    Of each: when it was sent, when the loop was free again, and the arrival that the application was told.
    """
    found = []
    heard: asyncio.Queue[int] = asyncio.Queue()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        heard.put_nowait(scope["state"][ARRIVED])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async with carried(app) as client:
        for _ in range(3):  # the first is there before its connection is accepted
            sent_ns = time.monotonic_ns()
            client.sendall(head)
            client.sendall(rest)
            time.sleep(BUSY_S)  # the loop is busy
            free_ns = time.monotonic_ns()
            found.append((sent_ns, free_ns, await heard.get()))
            answer = await asyncio.get_running_loop().run_in_executor(None, client.recv, 1024)
            assert answer.startswith(b"HTTP/1.1 200")
    return found


@pytest.mark.usefixtures("stamps")
@pytest.mark.parametrize(("head", "rest"), [(REQUEST, b""), (REQUEST[:9], REQUEST[9:])], ids=["whole", "in-pieces"])
def test_a_request_that_came_while_the_loop_was_busy_counts_from_then(head: bytes, rest: bytes) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(arrivals(head, rest))
    assert len(found) == 3
    for sent_ns, free_ns, counted_ns in found:
        assert sent_ns <= counted_ns < free_ns


@pytest.mark.usefixtures("stamps")
def test_what_has_a_stamp_tells_it_and_stays_to_be_read() -> None:
    client, end = pair(stamped=True)
    with client, end:
        before_ns = time.monotonic_ns()
        client.sendall(b"bytes")
        time.sleep(BUSY_S)
        after_ns = time.monotonic_ns()
        assert before_ns <= arrived_ns(end.fileno()) < after_ns
        assert end.recv(16) == b"bytes"


def test_nothing_to_read_no_stamp_or_no_socket_is_now() -> None:
    client, end = pair(stamped=False)
    end.setblocking(False)
    with client, end:
        for prepare in (lambda: None, lambda: client.sendall(b"x"), lambda: end.recv(1), client.close):
            prepare()
            before_ns = time.monotonic_ns()
            assert before_ns <= arrived_ns(end.fileno()) <= time.monotonic_ns()
    before_ns = time.monotonic_ns()
    assert before_ns <= arrived_ns(1 << 20) <= time.monotonic_ns()


def test_what_is_written_is_at_the_client_before_the_loop_goes_on() -> None:
    async def main() -> bytes:
        there: asyncio.Queue[bytes] = asyncio.Queue()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"first", "more_body": True})
            text, due = b"", time.monotonic() + LIMIT_S
            while b"first" not in text and select.select([client], [], [], max(0.0, due - time.monotonic()))[0]:
                text += client.recv(1024)
            there.put_nowait(text)

        async with carried(app) as client:
            client.sendall(REQUEST)
            return await there.get()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert b"first" in runner.run(main())
