"""A session in a file: every request with its response and the times of its pieces; and a server that replays it.

Lines of JSON: {"method", "path", "body", "status", "headers", "pieces": [[milliseconds since the request, text], ...]}.
Whether the connection ended early stands in "complete". What is no UTF-8 is not recorded.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TextIO

import msgspec

from blink.common.errors import InputError
from blink.frontend.openai.errors import ApiError
from blink.serve.response import send_error
from blink.serve.writer import Message, Receive, Send, Writer

Application = Callable[[Any, Receive, Send], Awaitable[None]]
RECORDED = ("/v1/", "/tokenize", "/detokenize")
BODY_BYTES_MAX = 4 << 20


class Exchange(msgspec.Struct):
    """A request and its response."""

    method: str
    path: str
    body: str
    status: int
    headers: list[tuple[str, str]]
    pieces: list[tuple[float, str]]
    complete: bool


class RecordingApp:
    """Passes everything on to an application and writes what went by to a file, an exchange when it is over."""

    def __init__(self, app: Application, path: Path) -> None:
        """Raises InputError if the file cannot be written."""
        self._app = app
        try:
            self._file: TextIO = path.open("w", encoding="utf-8")
        except OSError as error:
            raise InputError(f"--record {path}: {error.strerror}") from None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or not scope["path"].startswith(RECORDED):
            await self._app(scope, receive, send)
            return
        began, body = time.monotonic(), bytearray()
        exchange = Exchange(scope["method"], scope["path"], "", 0, [], [], False)
        pieces: list[tuple[float, bytes]] = []

        async def hear() -> Message:
            message = await receive()
            if message["type"] == "http.request" and len(body) < BODY_BYTES_MAX:
                body.extend(message.get("body", b""))
            return message

        async def say(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.headers = [
                    (name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]
                ]
            else:
                pieces.append((round((time.monotonic() - began) * 1000, 3), bytes(message.get("body", b""))))
                exchange.complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, hear, say)
        finally:
            self._keep(exchange, bytes(body), pieces)

    def _keep(self, exchange: Exchange, body: bytes, pieces: list[tuple[float, bytes]]) -> None:
        try:
            exchange.body = body.decode()
            exchange.pieces = [(at, piece.decode()) for at, piece in pieces]
        except UnicodeDecodeError:
            return
        self._file.write(msgspec.json.encode(exchange).decode() + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ReplayingApp:
    """Answers recorded requests with their recorded responses, at their times; everything else goes on to `app`.

    The same request that was recorded several times gets its responses in their order, and the last one from then on.
    """

    def __init__(self, app: Application, path: Path, time_scale: float) -> None:
        """Raises InputError for a file that is no recording."""
        self._app, self._scale = app, time_scale
        self._exchanges: dict[tuple[str, str, str], deque[Exchange]] = defaultdict(deque)
        try:
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, 1):
                    exchange = _parsed(path, number, line)
                    self._exchanges[_key(exchange.method, exchange.path, exchange.body)].append(exchange)
        except OSError as error:
            raise InputError(f"--replay {path}: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise InputError(f"--replay {path}: is no UTF-8 text: {error.reason}") from None

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or not scope["path"].startswith(RECORDED):
            await self._app(scope, receive, send)
            return
        began, body = time.monotonic(), bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            if not message.get("more_body", False) or len(body) > BODY_BYTES_MAX:
                break
        found = self._exchanges.get(_key(scope["method"], scope["path"], body.decode("utf-8", "replace")))
        if not found and scope["method"] in ("GET", "HEAD"):  # clients ask for the model's name before anything else
            await self._app(scope, receive, send)
            return
        if not found:
            writer = Writer(send)
            send_error(writer, ApiError(404, "this request is not in the recording", code="not_recorded"))
            await writer.done()
            return
        exchange = found.popleft() if len(found) > 1 else found[0]
        await self._answer(exchange, began, send)

    async def _answer(self, exchange: Exchange, began: float, send: Send) -> None:
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in exchange.headers]
        started = False
        for index, (at_ms, text) in enumerate(exchange.pieces):
            await asyncio.sleep(max(0.0, began + at_ms / 1000 * self._scale - time.monotonic()))
            if not started:
                started = True
                await send({"type": "http.response.start", "status": exchange.status, "headers": headers})
            more = not exchange.complete or index + 1 < len(exchange.pieces)
            await send({"type": "http.response.body", "body": text.encode(), "more_body": more})


def _parsed(path: Path, number: int, line: str) -> Exchange:
    try:
        return msgspec.json.decode(line, type=Exchange)
    except msgspec.DecodeError as error:
        raise InputError(f"--replay {path}: line {number}: {error}") from None


def _key(method: str, path: str, body: str) -> tuple[str, str, str]:
    """Bodies that differ in order or space alone are the same."""
    try:
        return method, path, json.dumps(json.loads(body), sort_keys=True)
    except (ValueError, RecursionError):
        return method, path, body
