"""Writes an ASGI response from outside its task, so that a chunk costs no switch between tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, MutableMapping
from functools import partial
from typing import Any

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]
Header = tuple[bytes, bytes]


class Writer:
    """Sends at once what the server takes at once; the rest waits in one buffer while the client is slow.

    ASGI's `send` is a coroutine that nearly always ends without waiting. It is stepped by hand; only where it does wait
    (for a slow client) a task carries it on, and what comes meanwhile is sent together.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: list[tuple[bytes, bool]] = []
        self._task: asyncio.Task[None] | None = None
        self.started = self.ended = False

    def start(self, status: int, headers: Iterable[Header]) -> None:
        """The head of the response. It is on its way with the first body."""
        self.started = True
        self._step({"type": "http.response.start", "status": status, "headers": list(headers)})

    def write(self, body: bytes, *, more: bool = True) -> None:
        """Some of the body; the last of it with `more` False. Nothing may follow that."""
        self.ended = not more
        if self._task is not None:
            self._waiting.append((body, more))
            return
        self._step({"type": "http.response.body", "body": body, "more_body": more})

    @property
    def is_blocked(self) -> bool:
        """Whether the client takes nothing more now."""
        return self._task is not None

    def _step(self, message: Message) -> None:
        steps = self._send(message).__await__()
        try:
            waited = next(steps)
        except StopIteration:
            return
        except (ConnectionError, RuntimeError):  # the client is gone
            return
        self._task = asyncio.get_running_loop().create_task(self._carry_on(_Rest(steps, waited)))

    async def _carry_on(self, rest: _Rest) -> None:
        try:
            await rest
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                body = b"".join(part for part, _ in waiting)
                await self._send({"type": "http.response.body", "body": body, "more_body": waiting[-1][1]})
        except (ConnectionError, RuntimeError):
            self._waiting.clear()
        finally:
            self._task = None

    async def done(self) -> None:
        """Wait until everything is with the server."""
        if self._task is not None:
            await asyncio.wait([self._task])

    def cancel(self) -> None:
        """The client is gone: drop what waits."""
        if self._task is not None:
            self._task.cancel()


class _Rest:
    """The rest of an awaitable that was stepped once and waits for `waited`; any iterator may be one."""

    def __init__(self, steps: Any, waited: Any) -> None:
        self._steps, self._waited = steps, waited

    def __await__(self) -> Generator[Any, Any, None]:
        steps, waited = self._steps, self._waited
        while True:
            try:
                value = yield waited
            except BaseException as error:
                if not hasattr(steps, "throw"):
                    raise
                step = partial(steps.throw, error)
            else:
                step = partial(next, steps) if value is None else partial(steps.send, value)
            try:
                waited = step()
            except StopIteration:
                return
