"""Runs the application under a server of HTTP: signals, drain, the clock's watch, and the line that says it is up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import socket
from collections.abc import Callable

import uvloop

from blink.common.errors import InputError
from blink.frontend.openai.errors import unavailable
from blink.serve.carrier import BACKLOG, CARRIERS, Asgi, Carrier, carrier_of
from blink.serve.service import Service

WATCH_S = 0.25


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
    service: Service, app: Asgi, sock: socket.socket, ready: Callable[[], None], carrier: str = CARRIERS[0]
) -> bool:
    """Serve until a signal; True if nothing was left open when it ended. `carrier` is one of CARRIERS."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_main(service, carrier_of(carrier, app, sock), ready))


async def _main(service: Service, carrier: Carrier, ready: Callable[[], None]) -> bool:
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    service.failed = asked.set
    service.pump.start()
    serving = asyncio.ensure_future(carrier.serve())
    while not carrier.started and not serving.done():
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
        carrier.stop()
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
