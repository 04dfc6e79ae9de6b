"""A bare ASGI application under the same server and settings as `blink serve`: what the server itself can do.

Run as `python -m benchmarks.echo_server CARRIER`. It prints its port, and answers every POST with as many chunks
as the body's `max_tokens` says, one a turn of the event loop, each as long as a chunk of a completion's stream.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import uvloop

from blink.serve.carrier import carrier_of
from blink.serve.server import listen

CHUNK = (
    b'data: {"id":"cmpl-0123456789abcdef01234567","object":"text_completion","created":1700000000,'
    b'"model":"smollm2-135m","choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}\n\n'
)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """One request."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for _ in range(json.loads(body)["max_tokens"]):
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


if __name__ == "__main__":
    sock = listen("127.0.0.1", 0)
    print(f"ready on http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(carrier_of(sys.argv[1], app, sock).serve())
