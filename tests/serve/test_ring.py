"""A ring with a keeper: the scheduler outlives its server, on the host and on a GPU, with the stub engine."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from blink.cli import main
from blink.common.errors import InputError
from blink.serve.claim import Claim
from tests.hw.cuda_help import GPU_MARKS
from tests.hw.native_help import needs_compiler
from tests.serve.running import SCENARIO, Server, open_stream, running, wait_for

msgspec = pytest.importorskip("msgspec", reason="needs the extra [serve]")
pytest.importorskip("uvicorn", reason="needs the extra [serve]")
pytestmark = needs_compiler

BODY = {"prompt": "Hello", "max_tokens": 40, "ignore_eos": True}


@pytest.fixture(params=["native", pytest.param("cuda", marks=GPU_MARKS)])
def ring(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, ...]]:
    yield ("--backend", request.param, "--engine", "stub", "--ring", str(tmp_path / "ring.sock"))


def test_both_backends_say_the_same_and_the_trace_conforms(ring: tuple[str, ...], tmp_path: Path) -> None:
    trace = tmp_path / "trace.ndjson"
    with running("--time-scale", "0.1") as simulated, running(*ring, "--trace", str(trace)) as native:
        for prompt in ("Hello", "Grüße", [5, 6, 7]):
            body = {**BODY, "prompt": prompt}
            assert native.post("/v1/completions", body)["choices"] == simulated.post("/v1/completions", body)["choices"]
        assert native.metric("blink:wrong_tokens") == 0
        assert native.stop() == 0
    assert main(["check", str(trace)]) == 0


def test_a_server_that_is_killed_under_load_is_followed_by_another_on_the_same_ring(
    ring: tuple[str, ...], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.ndjson"
    options = (*ring, "--time-scale", "20", "--trace", str(trace))
    with running(*options) as first:
        long = {"prompt": "Hello", "max_tokens": 2000, "ignore_eos": True}
        streams = [open_stream(first.port, long, begun=False) for _ in range(24)]
        wait_for(lambda: first.slots("empty") < 4096 - 16)
        first.process.kill()
        first.process.wait()
    for sock in streams:
        sock.close()
    second = Server(*options)
    try:
        assert "took over a ring" in second.text()
        second.wait_idle()
        assert second.metric("blink:slots_recovering") == 0
        body = {"prompt": "after", "max_tokens": 5, "ignore_eos": True}
        assert second.post("/v1/completions", body)["usage"]["completion_tokens"] == 5
    finally:
        assert second.stop() == 0
    assert main(["check", str(trace)]) == 0
    text = trace.read_text(encoding="utf-8")
    assert text.count('"crashed"') == text.count('"restarted"') == 1


def test_a_ring_has_one_server_and_ends_with_it(ring: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with running(*ring) as server:
        assert main(["serve", str(SCENARIO), "--port", "0", *ring]) == 2
        assert "another server uses this ring" in capsys.readouterr().err
        server.post("/v1/completions", BODY)
        assert server.stop() == 0
        assert "keeper" not in server.last_words
    assert not Path(ring[-1]).exists()


def test_a_server_whose_keeper_dies_says_so_and_takes_nothing_in(ring: tuple[str, ...]) -> None:
    server = Server(*ring)
    try:
        os.kill(keeper_pid(ring[-1]), signal.SIGKILL)
        wait_for(lambda: server.request("GET", "/health")[0] == 503)
        status, _, data = server.request("POST", "/v1/completions", BODY)
        assert (status, b"the keeper of the ring is gone" in data) == (503, True)
    finally:
        assert server.stop() == 1


def test_one_keeper_at_a_time_claims_a_ring(tmp_path: Path) -> None:
    ring = tmp_path / "ring.sock"
    first = Claim(ring)
    with pytest.raises(InputError, match="another keeper of this ring is starting or ending"):
        Claim(ring, wait_s=0.1)
    threading.Timer(0.2, first.release).start()
    Claim(ring).release()
    assert not any(tmp_path.iterdir())


def test_a_keeper_whose_server_is_gone_before_it_is_up_leaves_nothing(tmp_path: Path) -> None:
    from blink.serve.plan import Order

    order = Order(str(tmp_path / "ring"), "native", str(SCENARIO), [], 1.0, 60.0, "", "")
    command = [sys.executable, "-m", "blink.serve.keeper", msgspec.json.encode(order).decode()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 1
    assert not any(tmp_path.iterdir())


def keeper_pid(ring: str) -> int:
    """Of the process that listens there."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(ring)
        return struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def test_a_ring_that_nobody_comes_back_to_ends(ring: tuple[str, ...]) -> None:
    server = Server(*ring, "--linger", "0.3")
    threading.Thread(target=lambda: _ignore(server), daemon=True).start()
    wait_for(lambda: server.metric("vllm:prompt_tokens_total") > 0)
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    wait_for(lambda: not os.path.exists(ring[-1]))  # noqa: PTH110  # a socket is no file


def _ignore(server: Server) -> None:
    with suppress(Exception):
        server.post("/v1/completions", BODY)
