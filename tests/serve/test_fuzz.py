"""Seeded nonsense against a running server: no 5xx, no hang, no leak. BLINK_FUZZ_SECONDS makes it longer."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from blink.cli import main
from tests.serve.running import Server, running

pytest.importorskip("uvicorn", reason="needs the extra [serve]")
SECONDS = float(os.environ.get("BLINK_FUZZ_SECONDS", "4"))
PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/v1/models", "/metrics", "/none")
WAIT_S = 20.0


def value(rng: random.Random, depth: int = 0) -> Any:
    """Anything that JSON can say."""
    kind = rng.randrange(9 if depth < 3 else 7)
    if kind < 2:
        return rng.choice([0, 1, -1, 2, 5, 1 << 31, 1 << 63, 1 << 80, 0.5, 1e308, -0.0])
    if kind < 5:
        return rng.choice(["", "a", "🎉", "Hello " * rng.randrange(40), "\0", "\ud800", "<|end|>", "data: [DONE]\n\n"])
    if kind < 7:
        return rng.choice([None, True, False])
    if kind == 7:
        return [value(rng, depth + 1) for _ in range(rng.randrange(5))]
    return {
        rng.choice(["role", "content", "type", "text", "x"]): value(rng, depth + 1) for _ in range(rng.randrange(4))
    }


def body(rng: random.Random) -> bytes:
    """A good request with a few fields replaced, or bytes that are none."""
    if rng.random() < 0.15:
        return rng.randbytes(rng.randrange(200))
    good: dict[str, Any] = {
        "model": "smollm2-135m", "prompt": "Hello", "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": rng.randrange(1, 30), "stream": rng.random() < 0.5, "tokens": [5, 6, 7],
    }  # fmt: skip
    names = [*good, "n", "stop", "temperature", "top_p", "top_k", "seed", "min_tokens", "ignore_eos", "stream_options"]
    for name in rng.sample(names, rng.randrange(4)):
        good[name] = value(rng)
    data = json.dumps(good).encode()
    return data[: rng.randrange(len(data))] if rng.random() < 0.1 else data


def exchange(port: int, rng: random.Random) -> int | None:
    """Send one request, perhaps damaged, and read the answer, perhaps not to its end; its status, if there was one."""
    method = rng.choice(["POST", "POST", "POST", "GET", "PUT", "HEAD", "OPTIONS"])
    data = body(rng)
    length = len(data) if rng.random() < 0.95 else rng.choice([0, len(data) + 5, 1 << 40, -1])
    head = f"{method} {rng.choice(PATHS)} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    raw = head.encode() + data
    if rng.random() < 0.05:
        raw = raw[: rng.randrange(len(raw))]
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as sock:
        try:
            sock.sendall(raw)
            if rng.random() < 0.15 or length != len(data) or len(raw) < len(head) + len(data):
                sock.settimeout(0.02)
                try:
                    sock.recv(100)
                except TimeoutError:
                    return None
                return None
            answer = b""
            while part := sock.recv(1 << 16):
                answer += part
        except (ConnectionError, BrokenPipeError):
            return None
    assert answer.startswith(b"HTTP/1.1 "), (raw, answer[:100])
    if b"text/event-stream" in answer:
        assert b"[DONE]" in answer
    return int(answer[9:12])


def leaked(server: Server) -> int:
    """File descriptors of the server."""
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_nonsense_gets_an_answer_and_leaves_nothing_behind(tmp_path: Path) -> None:
    trace = tmp_path / "trace.ndjson"
    rng, statuses = random.Random(20), dict[int | None, int]()
    with running("--time-scale", "0.2", "--trace", str(trace)) as server:
        before = leaked(server)
        due = time.monotonic() + SECONDS
        while time.monotonic() < due:
            status = exchange(server.port, rng)
            statuses[status] = statuses.get(status, 0) + 1
        server.wait_idle()
        assert server.request("GET", "/health")[0] == 200
        assert leaked(server) <= before + 3
        assert "Traceback" not in server.text()
        assert server.stop() == 0
    assert all(status is None or status < 500 for status in statuses), statuses
    assert {200, 400, 404, 405} <= set(statuses)
    assert main(["check", str(trace)]) == 0
