"""On a GPU: tokens over both paths, relaunch, drain, stop and restart, watchdogs, trace overflow, a mutant."""

from __future__ import annotations

from pathlib import Path
from time import monotonic, monotonic_ns

import pytest

from blink.common.checker import check_trace
from blink.common.events import Event
from blink.common.request import Request
from blink.common.results import Outcome
from blink.common.trace import read_trace
from blink.hw.cuda import nvrtc
from blink.hw.cuda.bench.loop import loop_settings
from blink.hw.cuda.bench.steps import run_batch
from blink.hw.cuda.build import VARIABLE
from blink.hw.cuda.engine_run import System
from blink.hw.cuda.lockstep import load_kernels
from blink.hw.cuda.marks import GraphMarks
from blink.hw.cuda.ports import Ingress
from blink.hw.cuda.races import double_claims
from blink.hw.cuda.ring import CudaRing
from blink.hw.cuda.run import serve
from blink.hw.native.driver import Frontend
from blink.hw.native.process import Stop
from blink.workload.build import build_load
from tests.hw.cuda_help import needs_gpu, scheduler_on_gpu
from tests.hw.native_help import outcomes, scenario_of

RUN_S = 20.0
RACES = 2_000


def _frontend(ring: CudaRing) -> Frontend:
    area = ring.settings.prompt_area_tokens
    return Frontend(ring, monotonic_ns, lambda request, now_ns: None, None, prompt_area_tokens=area)


def _serve_some(frontend: Frontend, first: int, count: int) -> list[Request]:
    """Requests of a few tokens, until all are over."""
    requests = [Request(first + i, -1, 3 + i % 20, 1 << 30, 1 + i % 12, 0) for i in range(count)]
    for request in requests:
        frontend.receive(request)
    due = monotonic() + RUN_S
    while frontend.in_ring_count or frontend.waiting_count:
        frontend.post()
        frontend.poll()
        assert monotonic() < due, "requests are not over"
    return requests


@needs_gpu
@pytest.mark.parametrize("ingress", Ingress)
@pytest.mark.parametrize("window", [3, 120])
def test_a_run_is_legal_and_its_tokens_are_right(ingress: Ingress, window: int, tmp_path: Path) -> None:
    scenario, requests = build_load(scenario_of(limits={"window": window}, workload={"requests": 300}))
    result = serve(scenario, requests, trace_path=tmp_path / "trace.ndjson", time_scale=0.0, ingress=ingress)
    assert outcomes(result) == {"completed": 300}
    assert result.counters["wrong_tokens"] == 0
    trace = read_trace(tmp_path / "trace.ndjson")
    assert check_trace(trace).code == 0
    relaunches = int((trace.columns["event"] == Event.RELAUNCHED).sum())
    assert relaunches == result.scheduler.relaunches
    assert relaunches > (100 if window == 3 else 0)


@needs_gpu
@pytest.mark.parametrize("ingress", Ingress)
def test_it_drains_stops_and_starts_again_over_the_same_ring(ingress: Ingress) -> None:
    with scheduler_on_gpu(ingress) as (ring, scheduler):
        frontend = _frontend(ring)
        for turn in range(3):
            scheduler.start()
            scheduler.wait_until_up()
            assert scheduler.fault() is None
            requests = _serve_some(frontend, 100 * turn, 40)
            assert all(request.outcome is Outcome.COMPLETED for request in requests)
            assert scheduler.stop(Stop.DRAIN)
        state = ring.state()
        assert state["claim_count"] == 120
        assert state["free_block_count"] == ring.settings.kv_block_count
        assert state["free_place_count"] == ring.settings.limits.batch_max
        assert frontend.counters.wrong_tokens == 0


@needs_gpu
def test_a_graph_that_hangs_is_given_up_and_the_host_ends_the_scheduler() -> None:
    with scheduler_on_gpu(hang_at=3, graph_timeout_ns=50_000_000) as (ring, scheduler):
        frontend = _frontend(ring)
        scheduler.start()
        requests = [Request(i, -1, 5, 1 << 30, 9, 0) for i in range(3)]
        for request in requests:
            frontend.receive(request)
            due = monotonic() + RUN_S
        while not ring.state()["failed"] and monotonic() < due:
            frontend.post()
            frontend.poll()
        assert ring.state()["failed"] == 1
        assert scheduler.fault() is None  # the scheduler itself is well, its heart beats
        assert scheduler.stop(Stop.ABORT)


@needs_gpu
def test_records_that_find_no_room_are_counted() -> None:
    with scheduler_on_gpu(trace_capacity=64) as (ring, scheduler):
        frontend = _frontend(ring)
        scheduler.start()
        scheduler.wait_until_up()
        _serve_some(frontend, 0, 60)
        assert scheduler.stop(Stop.DRAIN)
        assert ring.drain().size <= 64
        assert ring.state()["trace_dropped"] > 0


@needs_gpu
def test_a_mutant_shows_in_the_tokens(tmp_path: Path) -> None:
    scenario, requests = build_load(scenario_of(workload={"requests": 200}))
    flags = ("-DBLINK_MUTANT_KV_BLOCKS_RETURNED_AT_CLAIM",)
    result = serve(scenario, requests, time_scale=0.0, flags=flags)
    assert result.counters["wrong_tokens"] > 0


@needs_gpu
def test_two_instances_never_claim_one_slot() -> None:
    assert double_claims(load_kernels(), RACES) == 0


@needs_gpu
def test_two_instances_that_claim_without_cas_do() -> None:
    assert double_claims(load_kernels(("-DBLINK_MUTANT_CLAIM_WITHOUT_CAS",)), RACES) > 0


@needs_gpu
def test_kernels_that_nvrtc_compiled_serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if nvrtc.missing():
        pytest.skip(str(nvrtc.missing()))
    monkeypatch.setenv(VARIABLE, "nvrtc")
    scenario, requests = build_load(scenario_of(limits={"window": 3}, workload={"requests": 200}))
    flags = ("-DBLINK_BY_NVRTC",)  # no source knows it: it keeps these kernels apart from nvcc's
    result = serve(scenario, requests, trace_path=tmp_path / "trace.ndjson", time_scale=0.0, flags=flags)
    assert outcomes(result) == {"completed": 200}
    assert result.counters["wrong_tokens"] == 0
    assert check_trace(tmp_path / "trace.ndjson").code == 0


@needs_gpu
def test_graphs_note_when_they_begin_and_end() -> None:
    kernels = load_kernels()
    marks = GraphMarks(kernels.cuda, 4096)
    system = System.on_gpu(kernels, loop_settings(4), marks=marks)
    try:
        run_batch(system, 4, 300, 8)
        begun, ended = marks.read()
        assert begun.size >= 300
        assert (ended > begun).all()
        assert (begun[1:] > ended[:-1]).all()
    finally:
        system.close()
        marks.close()


@needs_gpu
def test_cancels_end_requests_early() -> None:
    workload = {"requests": 200, "cancel": {"fraction": 0.5, "after_s": 0.002}}
    scenario, requests = build_load(scenario_of(workload=workload))
    result = serve(scenario, requests, time_scale=1.0)
    assert set(outcomes(result)) <= {"completed", "cancelled"}
    assert outcomes(result)["cancelled"] > 0
    assert result.counters["wrong_tokens"] == 0
