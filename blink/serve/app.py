"""The ASGI application: a table of routes over a Service."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from blink import __version__
from blink.frontend.openai.errors import ApiError, bad_request, internal
from blink.serve.gauges import gauges
from blink.serve.page import page, snapshots
from blink.serve.response import JSON_HEADERS, Response, send_error
from blink.serve.service import Service
from blink.serve.writer import Header, Receive, Send, Writer

Scope = MutableMapping[str, Any]
_OPEN = ("/health", "/version", "/metrics", "/", "/ring")
"""Routes that need no API key: nothing of a request shows there."""
_TEXT = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
_HTML: list[Header] = [
    (b"content-type", b"text/html; charset=utf-8"),
    (
        b"content-security-policy",
        b"default-src 'self'; img-src data:; script-src 'unsafe-inline'; style-src 'unsafe-inline'",
    ),
    (b"x-content-type-options", b"nosniff"),
]
_CLOSE: list[Header] = [(b"connection", b"close")]
ARRIVED = "blink.arrived_ns"
"""In the state of a request's scope, where the server knows it: when it was at the socket, on the monotonic clock."""


class _GoneError(Exception):
    """The client left before it had sent its request."""


class App:
    """`api_key` guards everything that serves requests, where there is one."""

    def __init__(self, service: Service, api_key: str | None = None) -> None:
        self._service, self._key = service, api_key
        self._routes: dict[str, tuple[str, Callable[[Scope, Receive, Send], Awaitable[None]]]] = {
            "/v1/completions": ("POST", self._completions),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/models": ("GET", self._models),
            "/tokenize": ("POST", self._tokenize),
            "/detokenize": ("POST", self._detokenize),
            "/health": ("GET", self._health),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics),
            "/ring": ("GET", self._ring),
            "/": ("GET", self._page),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One HTTP request."""
        if scope["type"] != "http":
            return
        writer = Writer(send)
        try:
            await self._route(scope)(scope, receive, send)
        except ApiError as error:
            self._count(error.status)
            too_large = error.status == 413
            send_error(writer, error, _CLOSE if too_large or error.status == 408 else [], more=too_large)
            await writer.done()
            if too_large:
                await _discard(receive, self._service.terms.body_seconds_max)
                writer.write(b"", more=False)
                await writer.done()
        except _GoneError:
            return

    def _route(self, scope: Scope) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
        path, method = scope["path"], scope["method"]
        found = self._routes.get(path)
        if found is None and path.startswith("/v1/models/"):
            found = ("GET", self._model)
        if found is None:
            raise ApiError(404, f"There is nothing at {path[:100]}", code="not_found")
        if path not in _OPEN:
            self._authorize(scope)
        if method != found[0] and not (method == "HEAD" and found[0] == "GET"):
            raise ApiError(405, f"{path[:100]} takes {found[0]}", code="method_not_allowed")
        return found[1]

    def _authorize(self, scope: Scope) -> None:
        if self._key is None:
            return
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        if not hmac.compare_digest(given, b"Bearer " + self._key.encode()):
            raise ApiError(401, "Incorrect API key provided.", kind="authentication_error", code="invalid_api_key")

    def _count(self, status: int) -> None:
        responses = self._service.metrics.responses
        responses[status] = responses.get(status, 0) + 1

    # --- bodies ---

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most, limit_s = self._service.terms.body_bytes_max, self._service.terms.body_seconds_max
        declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > most:
            raise _too_large(most)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _GoneError
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise _too_large(most)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise ApiError(408, f"The body did not arrive within {limit_s:g} s", code="request_timeout") from None

    async def _json(self, send: Send, content: object, status: int = 200) -> None:
        await _answer(send, msgspec.json.encode(content), JSON_HEADERS, status)
        self._count(status)

    # --- generation ---

    def _arrived_ns(self, scope: Scope) -> int:
        found = scope.get("state", {}).get(ARRIVED)
        return found if isinstance(found, int) else self._service.now()

    async def _completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ns = self._arrived_ns(scope)
        generation = self._service.reader.completion(await self._body(scope, receive))
        writer = Writer(send)
        await self._serve(self._service.open(generation, writer, arrived_ns), writer, receive)

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ns = self._arrived_ns(scope)
        generation = self._service.reader.chat(await self._body(scope, receive))
        writer = Writer(send)
        await self._serve(self._service.open(generation, writer, arrived_ns), writer, receive)

    async def _serve(self, response: Response, writer: Writer, receive: Receive) -> None:
        """Until the response is over or its client is gone: then `receive` says so. The reader writes meanwhile."""
        limit_s = self._service.terms.request_seconds_max
        try:
            async with asyncio.timeout(limit_s) as timeout:
                response.cut = lambda: timeout.reschedule(0)
                await _gone(receive)
        except TimeoutError:
            if not response.is_cut:
                response.fail(internal(f"the request was aborted: it took longer than {limit_s:g} s"))
                await writer.done()
        finally:
            self._service.close(response, gone=not response.is_over)

    # --- the rest ---

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._json(send, {"object": "list", "data": [self._card()]})

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path"].removeprefix("/v1/models/")
        if name != self._service.model:
            raise ApiError(
                404, f"The model `{name[:100]}` does not exist.", param="model", code="model_not_found"
            )  # fmt: skip
        await self._json(send, self._card())

    def _card(self) -> dict[str, object]:
        service = self._service
        return {
            "id": service.model, "object": "model", "created": service.started_s, "owned_by": "blink",
            "root": service.model, "parent": None, "max_model_len": service.backend.bounds.context_tokens,
        }  # fmt: skip

    async def _tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        tokens, texts = self._service.reader.tokenize(await self._body(scope, receive))
        length = self._service.backend.bounds.context_tokens
        await self._json(send, {"count": len(tokens), "max_model_len": length, "tokens": tokens, "token_strs": texts})

    async def _detokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._json(send, {"prompt": self._service.reader.detokenize(await self._body(scope, receive))})

    async def _health(self, scope: Scope, receive: Receive, send: Send) -> None:
        service = self._service
        state = "broken" if service.broken else "draining" if service.draining else "ok"
        content = {"status": state, "backend": service.backend.name, "open": service.open_count}
        await self._json(send, content, 200 if state == "ok" else 503)

    async def _version(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._json(send, {"version": __version__})

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _answer(send, self._service.metrics.render(gauges(self._service)), _TEXT)

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _answer(send, page(), _HTML)

    async def _ring(self, scope: Scope, receive: Receive, send: Send) -> None:
        await snapshots(self._service, receive, send)


async def _answer(send: Send, body: bytes, headers: list[Header], status: int = 200) -> None:
    head = [*headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _discard(receive: Receive, limit_s: float) -> None:
    """Drop what the client still sends. Closed with unread bytes, a socket would take the answer with it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            message = await receive()
            while message["type"] != "http.disconnect" and message.get("more_body", False):
                message = await receive()


def _too_large(most: int) -> ApiError:
    error = bad_request(f"The body is too large; allowed: {most} bytes", code="body_too_large")
    error.status = 413
    return error
