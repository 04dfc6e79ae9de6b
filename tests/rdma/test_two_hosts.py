"""Two guests with virtual Ethernet between them: "gpu" keeps the ring, "dpu" has the server and an openai client."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blink.common.checker import check_trace
from blink.hw.native.build import cache_folder
from blink.hw.native.library import load_library
from blink.hw.verbs.channel import COMPLETION_LIMIT_S
from tests.hw.native_help import needs_compiler
from tests.rdma.guest.image import image
from tests.rdma.guest.machine import Guest
from tests.shared import ROOT

pytestmark = [pytest.mark.rdma, pytest.mark.slow, needs_compiler]
SCENARIO = "scenarios/ci-tiny.toml"
LIMIT_S = 480
TIME_SCALE = "20"
SLACK_S = 5.0
"""What a machine under emulation adds to a bound."""


@pytest.fixture(scope="module")
def two_guests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path, str]]:
    """Runs both; what the one with the client found, its folder, and what both said."""
    load_library()
    booted, folder = image(cache_folder() / "guest"), tmp_path_factory.mktemp("guests")
    ends = _free_ports(2)
    blink = [
        sys.executable,
        "-m",
        "blink.cli",
        "backend",
        SCENARIO,
        "--listen",
        "10.9.0.1:7471",
        "--time-scale",
        TIME_SCALE,
    ]
    client = [sys.executable, "-m", "tests.rdma.dpu", SCENARIO, "10.9.0.1:7471"]
    gpu = Guest(
        booted, folder / "gpu", blink, cwd=ROOT, name="gpu", number=1, address="10.9.0.1/24",
        network=_wire(*ends),
    )  # fmt: skip
    dpu = Guest(
        booted, folder / "dpu", client, cwd=ROOT, name="dpu", number=2, address="10.9.0.2/24",
        network=_wire(*reversed(ends)),
    )  # fmt: skip
    try:
        _pull_when_asked(gpu, dpu)
        dpu.wait(5)
    finally:
        dpu.close()
        gpu.close()
    said = f"{dpu.said()}\n{gpu.said()}"
    log = folder / "dpu" / "serve.log"
    said += f"\n--- dpu: serve.log\n{log.read_text() if log.exists() else 'none'}"
    path = folder / "dpu" / "found.json"
    assert path.exists(), said
    yield json.loads(path.read_text()), folder / "dpu", said


def _pull_when_asked(gpu: Guest, dpu: Guest) -> None:
    """Until the one with the client has ended: pull the other's cable for as long as it asks for."""
    due, asked = time.monotonic() + LIMIT_S, dpu.folder / "pull"
    while dpu.is_running and time.monotonic() < due:
        if asked.exists():
            gpu.set_link(up=False)
            time.sleep(float(asked.read_text()))
            gpu.set_link(up=True)
            asked.unlink()
        time.sleep(0.01)


def _free_ports(count: int) -> list[int]:
    found = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
    for one in found:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in found]
    for one in found:
        one.close()
    return ports


def _wire(mine: int, other: int) -> str:
    """Ethernet frames as datagrams: whichever guest is first, the other need not be there yet."""
    return f"socket,udp=127.0.0.1:{other},localaddr=127.0.0.1:{mine}"


Guests = tuple[dict[str, Any], Path, str]


def test_an_openai_client_is_served_by_a_ring_on_another_host(two_guests: Guests) -> None:
    found, _, said = two_guests
    assert "texts" in found, said
    assert found["models"] == ["smollm2-135m"]
    for text in found["texts"]:
        assert text["whole"] == text["streamed"], said
        assert 0 < text["completion_tokens"] <= 12
        assert text["finish"][0] == text["finish"][1] in ("stop", "length")


def test_a_cable_that_is_pulled_for_a_moment_loses_nothing(two_guests: Guests) -> None:
    found, _, said = two_guests
    assert found["pulled for a moment"]["ended"][0] == "length", said
    assert found["pulled for a moment"]["after"]["failures"] == 0


@pytest.mark.parametrize("how", ["pulled", "down"])
def test_a_link_that_is_down_for_long_ends_requests_and_the_ring_is_taken_again(how: str, two_guests: Guests) -> None:
    found, _, said = two_guests
    ended, seconds = found[how]["ended"]
    assert ended.startswith("error"), said
    assert seconds < COMPLETION_LIMIT_S + SLACK_S, said
    assert found[how]["after"]["text"] == found["texts"][0]["whole"], said
    assert said.count("has the ring again") == 2, said
    metrics = dict(line.rsplit(" ", 1) for line in found["metrics"])
    assert {value for name, value in metrics.items() if name.startswith("blink:wrong_tokens")} == {"0.0"}
    assert {value for name, value in metrics.items() if 'state="empty"' in name} == {"4096.0"}, said


def test_the_trace_of_it_all_conforms(two_guests: Guests) -> None:
    found, folder, said = two_guests
    verdict = check_trace(folder / "trace.ndjson")
    assert (verdict.code, verdict.violations) == (0, ()), said
    assert verdict.coverage["system"]["frontend restart"] == 2
    assert found["exit_code"] == 0, said
