"""The servers of HTTP that can carry the application, inside the loop that serves it. Nothing else knows them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from blink.common.optional import need
from blink.serve.app import ARRIVED
from blink.serve.writer import Receive, Send

Asgi = Callable[[Any, Receive, Send], Awaitable[None]]
CARRIERS = ("uvicorn", "granian")
BACKLOG = 4096
KEEP_ALIVE_S = 30
CLOSE_SECONDS_MAX = 2


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


class _Stamping(HttpToolsProtocol):
    """Notes when the first byte of a request is here: its task begins later, behind whatever the loop has to do."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][ARRIVED] = time.monotonic_ns()


class _Server(uvicorn.Server):
    """Signals are the caller's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Uvicorn:
    """uvicorn with httptools."""

    def __init__(self, app: Asgi, sock: socket.socket) -> None:
        self._sock = sock
        self._server = _Server(
            uvicorn.Config(
                app,
                http=_Stamping,
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
        host, port = sock.getsockname()[:2]
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
        await asyncio.sleep(0)  # its threads listen once its task has run
        self.started = True
        await serving

    def stop(self) -> None:
        """See Carrier."""
        self._server.stop()
