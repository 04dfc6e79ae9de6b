"""The servers of HTTP that can carry the application, inside the loop that serves it. Nothing else knows them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from blink.common.optional import need
from blink.serve.app import ARRIVED
from blink.serve.arrival import arrived_ns, ask_for_stamps
from blink.serve.writer import Receive, Send

Asgi = Callable[[Any, Receive, Send], Awaitable[None]]
CARRIERS = ("uvicorn", "granian")
BACKLOG = 4096
KEEP_ALIVE_S = 30
CLOSE_SECONDS_MAX = 2
READ_BYTES_MAX = 1 << 16


class Carrier(Protocol):
    """Carries requests on a socket to the application, from `serve` until `stop`."""

    @property
    def started(self) -> bool:
        """Whether it takes requests."""

    async def serve(self) -> None:
        """Until it is stopped, and what it carries has ended or CLOSE_SECONDS_MAX are over."""

    def stop(self) -> None:
        """Ask it to end."""


def carrier_of(name: str, app: Asgi, sock: socket.socket) -> Carrier:
    """One of CARRIERS. Raises InputError without its package."""
    return Uvicorn(app, sock) if name == "uvicorn" else Granian(app, sock)


class _Http(HttpToolsProtocol):
    """Notes when a request arrived: its task begins later, behind whatever the loop has to do."""

    __slots__ = ("arrived_ns",)  # a slot: one more name, and Python would give each connection a dictionary of its own
    arrived_ns: int  # of what is parsed now

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][ARRIVED] = self.arrived_ns


class _Stamped(asyncio.BufferedProtocol):
    """Carries uvicorn's protocol. The loop asks a buffered one for its buffer before it reads: while the kernel still
    has the bytes, and knows when they came.
    """

    __slots__ = ("_fd", "_http")
    _buffer = memoryview(bytearray(READ_BYTES_MAX))  # of all connections: each is read and parsed in one go

    def __init__(self, **given: Any) -> None:
        """As uvicorn makes its protocol."""
        self._http, self._fd = _Http(**given), -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)
        self._fd = stream.get_extra_info("socket").fileno()
        stream.set_write_buffer_limits(0)  # what is written leaves at once: uvloop before 0.23 would collect it
        self._http.connection_made(stream)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._http.arrived_ns = arrived_ns(self._fd)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._http.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        self._http.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()


class _Server(uvicorn.Server):
    """Signals are the caller's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Uvicorn:
    """uvicorn with httptools."""

    def __init__(self, app: Asgi, sock: socket.socket) -> None:
        ask_for_stamps(sock)
        self._sock = sock
        self._server = _Server(
            uvicorn.Config(
                app,
                http=cast("Any", _Stamped),
                ws="none",
                lifespan="off",
                log_level="critical",
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSE_SECONDS_MAX,
                backlog=BACKLOG,
            )
        )

    @property
    def started(self) -> bool:
        """See Carrier."""
        return self._server.started

    async def serve(self) -> None:
        """See Carrier."""
        await self._server.serve(sockets=[self._sock])

    def stop(self) -> None:
        """See Carrier."""
        self._server.should_exit = True


class Granian:
    """granian, embedded: its own threads carry HTTP. It opens the socket's address anew, and tells no arrival times."""

    def __init__(self, app: Asgi, sock: socket.socket) -> None:
        embed = need("granian.server.embed", "--http granian", "granian")
        constants = need("granian.constants", "--http granian", "granian")
        self._at = host, port = sock.getsockname()[:2]
        sock.close()

        async def target(scope: Any, receive: Receive, send: Send) -> None:
            await app(scope, receive, send)

        self.started = False
        self._server = embed.Server(
            target,
            address=host,
            port=port,
            interface=constants.Interfaces.ASGINL,
            http=constants.HTTPModes.http1,
            websockets=False,
            log_enabled=False,
            backlog=BACKLOG,
            backpressure=2 * BACKLOG,
        )

    async def serve(self) -> None:
        """See Carrier."""
        serving = asyncio.ensure_future(self._server.serve())
        while not serving.done() and not await self._listens():  # its threads begin when the system lets them
            await asyncio.sleep(0.001)
        self.started = True
        await serving

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(*self._at)
        except OSError:
            return False
        writer.close()
        return True

    def stop(self) -> None:
        """See Carrier."""
        self._server.stop()
