"""Runs the application under uvicorn: signals, drain, the clock's watch, and the line that says it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from blink.common.errors import InputError
from blink.frontend.openai.errors import unavailable
from blink.serve.app import ARRIVED
from blink.serve.service import Service
from blink.serve.writer import Receive, Send

WATCH_S = 0.25
KEEP_ALIVE_S = 30
CLOSE_SECONDS_MAX = 2
BACKLOG = 4096


class _Uvicorn(uvicorn.Server):
    """Signals are the caller's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Stamping(HttpToolsProtocol):
    """Notes when the first byte of a request is here: its task begins later, behind whatever the loop has to do."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][ARRIVED] = time.monotonic_ns()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InputError if there is none to be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise InputError(f"--host {host} --port {port}: {error.strerror}") from None
    return sock


def run(
    service: Service, app: Callable[[Any, Receive, Send], Any], sock: socket.socket, ready: Callable[[], None]
) -> bool:
    """Serve until a signal; True if nothing was left open when it ended."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
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
    server = _Uvicorn(config)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        return runner.run(_main(service, server, sock, ready))


async def _main(service: Service, server: uvicorn.Server, sock: socket.socket, ready: Callable[[], None]) -> bool:
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    service.failed = asked.set
    service.pump.start()
    serving = asyncio.ensure_future(server.serve(sockets=[sock]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.001)
    gc.collect()
    gc.freeze()  # what is there from the start need not be looked through again while streams wait
    ready()
    complete = False
    try:
        while not asked.is_set() and not serving.done():
            service.check_clock()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), WATCH_S)
        complete = await _drain(service, loop, asked)
    finally:
        server.should_exit = True
        await serving
        service.pump.stop()
    return complete


async def _drain(service: Service, loop: asyncio.AbstractEventLoop, asked: asyncio.Event) -> bool:
    """Take nothing in, let what is open end, then abort the rest. A second signal ends the wait."""
    service.draining = True
    asked.clear()
    due = loop.time() + service.terms.drain_seconds_max
    if service.open_count:
        service.log.say("draining", open=service.open_count, seconds_max=service.terms.drain_seconds_max)
    while service.open_count and loop.time() < due and not asked.is_set() and not service.broken:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asked.wait(), 0.01)
    if not service.open_count:
        return True
    aborted = service.fail_all(unavailable("the server stopped before the request was complete"))
    service.log.say("the drain limit is over", aborted=aborted)
    await asyncio.sleep(0.05)
    return False
