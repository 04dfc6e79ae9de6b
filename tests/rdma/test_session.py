"""Whole sessions: the frontend in this process, the ring and its scheduler in others, verbs between them."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from blink.common.checker import check_trace
from blink.common.errors import InputError
from blink.common.results import Outcome, RunResult
from blink.common.states import SLOT_COUNT
from blink.hw.native import run as native_run
from blink.hw.native.driver import Frontend
from blink.hw.native.run import MONOTONIC_CLOCK, admitted, serve_over
from blink.hw.verbs.device import Device
from blink.hw.verbs.ring import VerbsRing
from blink.hw.verbs.running import RemoteRunning
from blink.perf.plant import Plant
from blink.workload.build import build_load
from tests.hw.native_help import needs_compiler, scenario_of
from tests.rdma.ends import choice
from tests.rdma.far_ring import BOOT_ID, FarRing

pytestmark = [pytest.mark.rdma, needs_compiler]
REQUESTS = 500
SESSION = scenario_of(
    workload={"requests": REQUESTS, "arrivals": {"kind": "poisson", "rate": 100.0}}, limits={"window": 12}
)
Tokens = dict[int, list[int]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Tokens:
    """The tokens that frontends hand over, by request, in the order in which they do."""
    found: Tokens = defaultdict(list)
    check = Frontend._check

    def listen(self: Frontend, news: Any, count: Any, tokens: Any) -> None:
        at = 0
        for slot, first, many in zip(news.slots.tolist(), news.token_from.tolist(), count.tolist(), strict=True):
            request = self._by_slot[slot].request_id
            assert first == len(found[request])
            found[request] += tokens[at : at + many].tolist()
            at += many
        check(self, news, count, tokens)

    monkeypatch.setattr(Frontend, "_check", listen)
    return found


def serve_remotely(trace: Path, time_scale: float = 1.0) -> RunResult:
    """The session over verbs, with the trace of both sides."""
    scenario, requests = build_load(SESSION)
    plant = Plant.of(scenario)
    far = FarRing(scenario, time_scale)
    device = Device(choice())
    try:
        ring = VerbsRing(far.door().open_patiently(device), far.settings)
        try:
            return serve_over(
                scenario, requests, admitted(scenario, requests, plant), ring, RemoteRunning(ring), MONOTONIC_CLOCK,
                trace_path=trace, progress=None, stop=None, time_scale=time_scale,
            )  # fmt: skip
        finally:
            ring.close()
    finally:
        device.close()
        far.close()


def test_five_hundred_requests_over_verbs_conform_and_say_what_shared_memory_says(told: Tokens, tmp_path: Path) -> None:
    result = serve_remotely(tmp_path / "remote.ndjson")
    assert (result.partial, result.notes) == (False, [])
    assert result.counters["wrong_tokens"] == 0
    assert result.counters["postings"] >= 5  # it was a session, not one burst
    assert result.requests["outcome"].tolist() == [Outcome.COMPLETED] * REQUESTS
    verdict = check_trace(tmp_path / "remote.ndjson")
    assert (verdict.code, verdict.violations) == (0, ())
    assert verdict.coverage["transitions"]["recycle"] == REQUESTS
    assert verdict.coverage["system"]["relaunch"] > 10

    remote = dict(told)
    told.clear()
    scenario, requests = build_load(SESSION)
    shared = native_run.serve(scenario, requests, time_scale=0.0, threads=1)
    assert shared.counters["wrong_tokens"] == 0
    assert remote == dict(told)
    assert sum(map(len, remote.values())) == int(result.requests["output_tokens"].sum()) > REQUESTS


@pytest.fixture
def far() -> Any:
    """A ring in another process."""
    ring = FarRing(scenario_of())
    yield ring
    ring.close()


def test_a_ring_is_refused_that_is_another_one_and_both_values_are_named(far: FarRing) -> None:
    device = Device(choice())
    try:
        for change, says in (
            ({"layout": "0123456789abcdef"}, r"layout_hash: the ring has [0-9a-f]{16}, the frontend 0123456789abcdef"),
            ({"boot_id": "00"}, f"boot_id: the ring has {BOOT_ID}, the frontend 00"),
            ({"settings": "x"}, "settings: the ring has same on both sides, the frontend x"),
            ({"slots": (0, 64)}, r"slots: the ring has slots 0\.\.4095, the frontend slots 0\.\.63"),
        ):
            with pytest.raises(InputError, match=says):
                far.door(**change).open(device)
        attachment = far.door(boot_id=BOOT_ID).open(device)
        assert attachment.hello.identity.slots == (0, SLOT_COUNT)
        attachment.close()
    finally:
        device.close()


def test_a_second_frontend_is_refused_while_the_first_lives(far: FarRing) -> None:
    device = Device(choice())
    first = far.door().open(device)
    try:
        with pytest.raises(InputError, match=r"slots: frontend 127\.0\.0\.1:\d+ has them, and it is alive"):
            far.door().open(device)
        assert first.channel.read_now(first.region("header"), 0, 8)  # and loses nothing by it
    finally:
        first.close()
    second = far.door().open_patiently(device)
    assert second.hello.life == 1
    second.close()
    device.close()
