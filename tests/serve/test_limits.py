"""Bounds, cancelling, stopping, keys and failures on purpose."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from blink.cli import main
from tests.serve.running import open_stream, running, wait_for

pytest.importorskip("uvicorn", reason="needs the extra [serve]")

from blink.serve.carrier import CARRIERS

LONG = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True}
SLOW = ("--time-scale", "40")


def test_clients_that_leave_free_their_slots_at_once_and_the_trace_conforms(tmp_path: Path) -> None:
    trace = tmp_path / "trace.ndjson"
    with running(*SLOW, "--trace", str(trace), "--drain", "20") as server:
        streams = [open_stream(server.port, LONG, begun=False) for _ in range(20)]  # more than a batch: some wait
        waiting = socket.create_connection(("127.0.0.1", server.port))
        body = json.dumps(LONG).encode()  # not a stream: nothing was sent yet
        waiting.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: server.metric("blink:open_requests") == 21)
        for sock in [*streams, waiting]:
            sock.close()
        server.wait_idle()
        assert server.metric("blink:disconnects_total") == 21
        assert server.stop() == 0
    assert main(["check", str(trace)]) == 0


def test_what_is_more_than_may_be_open_is_refused_with_the_time_to_come_back() -> None:
    with running(*SLOW, "--open-max", "2") as server:
        first, second = (open_stream(server.port, LONG) for _ in range(2))
        status, headers, data = server.request("POST", "/v1/completions", {"prompt": "x"})
        assert status == 429
        assert int(headers["retry-after"]) >= 1
        assert json.loads(data)["error"]["code"] == "rate_limit_exceeded"
        first.close()
        second.close()
        server.wait_idle()
        assert server.metric('vllm:admission_rejections_total{model_name="smollm2-135m",reason="max_num') == 1


def test_a_client_that_sends_far_too_much_is_told_so() -> None:
    """More than sockets hold: it reads the answer only once all of it is sent."""
    with running() as server:
        status, headers, data = server.request("POST", "/v1/completions", {"prompt": "a" * (20 << 20)})
        assert (status, headers["connection"]) == (413, "close")
        assert json.loads(data)["error"]["code"] == "body_too_large"
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})["usage"]["completion_tokens"] == 2


def test_a_body_is_bounded_in_size_and_a_request_in_time() -> None:
    with running(*SLOW, "--body-max", "2000", "--request-timeout", "0.5") as server:
        status, headers, _ = server.request("POST", "/v1/completions", {"prompt": "a" * 3000})
        assert (status, headers["connection"]) == (413, "close")
        sock = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        chunk = b"%x\r\n" % 4000 + b"a" * 4000 + b"\r\n"
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunk)
        assert b"413" in sock.recv(100)
        sock.close()
        *_, error, done = server.events("/v1/completions", LONG)
        assert "longer than 0.5 s" in error["error"]["message"]
        assert done == "[DONE]"
        assert server.request("POST", "/v1/completions", LONG)[0] == 500
        server.wait_idle()


def test_sigterm_lets_what_was_accepted_end() -> None:
    with running("--time-scale", "2") as server:
        found: list[list[object]] = []
        body = {"prompt": "Hello", "max_tokens": 300, "ignore_eos": True}
        threads = [
            threading.Thread(target=lambda: found.append(server.events("/v1/completions", body))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: server.metric("blink:open_requests") == 8)
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: server.request("GET", "/health")[0] == 503)
        status, headers, _ = server.request("POST", "/v1/completions", {"prompt": "late"})
        assert (status, "retry-after" in headers) == (503, True)
        for thread in threads:
            thread.join()
        assert server.process.wait(20) == 0
    assert len(found) == 8
    for *chunks, done in found:
        assert done == "[DONE]"
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"  # type: ignore[index]
        assert len("".join(chunk["choices"][0]["text"] for chunk in chunks)) == 300  # type: ignore[index]


def test_the_drain_limit_ends_streams_with_a_frame() -> None:
    with running(*SLOW, "--drain", "0.3") as server:
        sock = open_stream(server.port, LONG)
        began = time.monotonic()
        assert server.stop() == 1
        assert time.monotonic() - began < 15
        data = b""
        while part := sock.recv(1 << 16):
            data += part
        assert b'"error"' in data
        assert b"data: [DONE]" in data
        sock.close()


def test_a_key_guards_what_serves() -> None:
    with running("--api-key", "secret") as server:
        for key, status in ((None, 401), ("wrong", 401), ("secret", 200)):
            assert server.request("GET", "/v1/models", key=key)[0] == status
        assert server.request("GET", "/health")[0] == 200


def test_failures_on_purpose_are_the_same_for_the_same_seed() -> None:
    options = (
        "--ttft",
        "1",
        "--itl",
        "0.1",
        "--failure-rate",
        "0.5",
        "--failure-kinds",
        "429,500,503,abort,disconnect",
    )

    def outcomes() -> list[str]:
        found = []
        with running(*options, "--seed", "7") as server:
            for _ in range(24):
                try:
                    body = {"prompt": "x", "max_tokens": 30, "ignore_eos": True, "stream": True}
                    status, _, data = server.request("POST", "/v1/completions", body)
                except Exception as error:
                    found.append(type(error).__name__)
                else:
                    found.append(f"{status} {'error' in data.decode()}")
            server.wait_idle()
        return found

    first = outcomes()
    assert {"429 True", "500 True", "503 True", "200 True", "200 False", "IncompleteRead"} <= set(first)
    assert outcomes() == first


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("tokens", [1, 30])
def test_what_is_to_fail_fails_however_short_it_is(carrier: str, tokens: int) -> None:
    """Inside a stream by a frame, and a whole answer by its status; a cut is a cut, though nothing was sent yet."""
    pytest.importorskip(carrier)
    body = {"prompt": "x", "max_tokens": tokens, "ignore_eos": True}
    options = ("--ttft", "1", "--itl", "0.1", "--failure-rate", "1", "--http", carrier)
    with running(*options, "--failure-kinds", "abort") as server:
        status, _, data = server.request("POST", "/v1/completions", {**body, "stream": True})
        assert (status, data.count(b"injected failure")) == (200, 1)
        assert data.endswith(b"data: [DONE]\n\n")
        assert b'"finish_reason":"' not in data
        assert server.request("POST", "/v1/completions", body)[0] == 500
    with running(*options, "--failure-kinds", "disconnect") as server:
        for one in (body, {**body, "stream": True}):
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                server.request("POST", "/v1/completions", one)
        server.wait_idle()


def test_a_session_is_recorded_and_replayed(tmp_path: Path) -> None:
    record = tmp_path / "session.ndjson"
    body = {"prompt": "Hello", "max_tokens": 6, "ignore_eos": True}
    with running("--record", str(record), "--ttft", "20", "--itl", "5") as server:
        whole = server.request("POST", "/v1/completions", body)
        stream = server.request("POST", "/v1/completions", {**body, "stream": True})
        wrong = server.request("POST", "/v1/completions", {"prompt": 5})
    with running("--replay", str(record)) as server:
        began = time.monotonic()
        assert server.request("POST", "/v1/completions", {**body, "stream": True})[2] == stream[2]
        assert time.monotonic() - began > 0.04
        assert server.request("POST", "/v1/completions", body)[2] == whole[2]
        assert server.request("POST", "/v1/completions", {"prompt": 5})[::2] == wrong[::2]
        assert server.request("POST", "/v1/completions", {"prompt": "never asked"})[0] == 404
        assert server.request("GET", "/v1/models")[0] == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "70000"], "--port"),
        (["--ttft", "5"], "--ttft and --itl"),
        (["--ttft", "soon", "--itl", "1"], "--ttft"),
        (["--failure-rate", "2"], "--failure-rate"),
        (["--failure-rate", "1", "--failure-kinds", "fire"], "--failure-kinds"),
        (["--tokenizer", "/nowhere"], "--tokenizer"),
        (["--set", 'system={kind="vllm"}'], "system.kind"),
        (["--replay", "/nowhere"], "--replay"),
    ],
)
def test_a_wrong_option_is_one_line(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.serve.running import SCENARIO

    assert main(["serve", str(SCENARIO), "--port", "0", *options]) == 2
    error = capsys.readouterr().err
    assert error.startswith("blink: error: ")
    assert said in error
    assert error.count("\n") == 1


def test_a_client_that_reads_slowly_misses_nothing() -> None:
    """Far more than sockets hold: what the client does not take waits, and the others are served meanwhile."""
    options = ("--ttft", "0", "--itl", "0", "--set", "limits.batch_max=64")
    body = {"prompt": "Hello", "n": 40, "max_tokens": 1200, "ignore_eos": True}
    with running(*options) as server:
        sock = open_stream(server.port, body)
        wait_for(lambda: server.metric("vllm:generation_tokens_total") >= 48_000)
        assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})["usage"]["completion_tokens"] == 2
        whole = server.post("/v1/completions", body)
        data = bytearray()
        while part := sock.recv(1 << 20):
            data += part
            if b"[DONE]" in data[-40:]:
                break
        texts = [""] * 40
        for line in bytes(data).split(b"\n"):
            if line.startswith(b"data: {"):
                choice = json.loads(line[6:])["choices"][0]
                texts[choice["index"]] += choice["text"]
        assert texts == [choice["text"] for choice in whole["choices"]]
        sock.close()
        server.wait_idle()
