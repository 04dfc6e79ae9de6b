"""A server in a process of its own, as its users start it, and requests to it by the standard library."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.shared import ROOT

SCENARIO = ROOT / "scenarios" / "ci-tiny.toml"
START_LIMIT_S = 60.0
LIMIT_S = 60.0


class Server:
    """`blink serve` with these options, once it is ready. Its log is in `log`."""

    def __init__(self, *options: str, scenario: Path = SCENARIO, start_limit_s: float = START_LIMIT_S) -> None:
        self.log = Path(tempfile.mkstemp(suffix=".log")[1])
        command = [sys.executable, "-m", "blink.cli", "serve", str(scenario), "--port", "0", *options]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.pop("BLINK_API_KEY", None)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment)
        self.last_words = ""  # all that it had said, once it has ended
        self.port = self._wait(start_limit_s)

    def _wait(self, limit_s: float) -> int:
        due = time.monotonic() + limit_s
        while time.monotonic() < due:
            found = re.search(r"ready on http://[^ ]*:(\d+)", self.text())
            if found:
                return int(found[1])
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"the server did not start: {self.text()}")

    def text(self) -> str:
        """What it has said."""
        return self.log.read_text(encoding="utf-8")

    def request(
        self, method: str, path: str, body: object = None, *, key: str | None = None, raw: bytes | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers (lower case) and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        headers = {"content-type": "application/json"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        try:
            connection.request(method, path, data, headers)
            response = connection.getresponse()
            return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
        finally:
            connection.close()

    def post(self, path: str, body: object) -> Any:
        """The JSON answer to a request that must succeed."""
        status, _, data = self.request("POST", path, body)
        assert status == 200, data
        return json.loads(data)

    def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The frames of a stream, parsed; `[DONE]` as that text."""
        status, headers, data = self.request("POST", path, {**body, "stream": True})
        assert status == 200, data
        assert headers["content-type"].startswith("text/event-stream")
        frames = data.decode().split("\n\n")
        assert frames[-1] == ""
        assert all(frame.startswith("data: ") for frame in frames[:-1])
        texts = [frame.removeprefix("data: ") for frame in frames[:-1]]
        return [text if text == "[DONE]" else json.loads(text) for text in texts]

    def metric(self, name: str) -> float:
        """A metric's value by the text in front of it (name, or name and some labels)."""
        _, _, data = self.request("GET", "/metrics")
        for line in data.decode().splitlines():
            if line.startswith(name):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no metric {name}")

    def slots(self, state: str) -> int:
        """Slots in a state."""
        _, _, data = self.request("GET", "/metrics")
        found = re.search(rf'^blink:slots{{.*state="{state}"}} (\S+)$', data.decode(), re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    def wait_idle(self) -> None:
        """Until nothing is open and every slot is free."""
        wait_for(lambda: self.metric("blink:open_requests") == 0 and self.slots("empty") == 4096)

    def stop(self, number: int = signal.SIGTERM, limit_s: float = 30.0) -> int:
        """Signal it and wait; its exit code."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the server did not stop: {self.text()}") from None
        finally:
            if self.process.poll() is not None and self.log.exists():
                self.last_words = self.text()
                self.log.unlink()


def wait_for(happened: Any, limit_s: float = 20.0) -> None:
    """Until something is true."""
    due = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < due, "it did not happen in time"
        time.sleep(0.02)


@contextmanager
def running(*options: str, scenario: Path = SCENARIO) -> Iterator[Server]:
    """A server for a block; it must end well."""
    server = Server(*options, scenario=scenario)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()


def open_stream(port: int, body: dict[str, Any], *, begun: bool = True) -> socket.socket:
    """A completion's stream that is left open, with its first bytes here if it is to have `begun`."""
    data = json.dumps({**body, "stream": True}).encode()
    sock = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    assert not begun or sock.recv(64).startswith(b"HTTP/1.1 200")
    return sock
