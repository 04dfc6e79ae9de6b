"""A keeper that owns a GPU, a server that reaches its ring through shared memory, on a GPU that is host memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from blink.common.checker import check_trace
from blink.frontend.openai.bodies import Sampling
from blink.frontend.tokenizer.byte_level import ByteTokenizer
from blink.hw.cuda.shared_ring import SharedRing
from blink.hw.native.library import load_library
from blink.serve.attach import connect, greeted
from blink.serve.backend import Finish, Job
from blink.serve.keeper import Keeper
from blink.serve.kept import CudaKept
from blink.serve.live import StubFrontend
from blink.serve.plan import Order, Plan, plan_of
from blink.serve.ring import RingBackend
from blink.serve.stub import StubText
from tests.hw.native_help import needs_compiler
from tests.serve.host_gpu import HostGpu, HostGpuScheduler
from tests.serve.running import SCENARIO

pytestmark = needs_compiler


class Heard:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.finish: Finish | None = None

    def __call__(self, tokens: Sequence[int], finish: Finish | None) -> None:
        assert self.finish is None
        self.tokens += tokens
        self.finish = finish


def order_of(folder: Path, trace: str, time_scale: float) -> Order:
    overrides = [("--set", "limits.window=7")]
    return Order(str(folder / "ring"), "cuda", str(SCENARIO), overrides, time_scale, 30.0, trace, "")


@contextmanager
def keeper(order: Order, plan: Plan, gpu: HostGpu) -> Iterator[Keeper]:
    """In a thread of this process; it has ended by itself, or is told to."""
    ring = SharedRing(gpu.as_cuda(), load_library(), plan.settings)
    found = Keeper(order, plan, CudaKept(ring, HostGpuScheduler(ring)))
    thread = threading.Thread(target=found.run, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.stop()
        thread.join(10)
        found.close()
    assert not thread.is_alive()


def server(order: Order, plan: Plan, text: StubText) -> RingBackend:
    path = Path(order.socket)
    end = connect(path)
    assert end is not None
    hello, block = greeted(end, path)
    assert hello.digest == plan.digest(order)
    return RingBackend(
        order, plan, end, hello, block,
        lambda setup, instance, link, recorder: StubFrontend(setup, instance, link, recorder, text),
    )  # fmt: skip


def jobs_of(backend: RingBackend, count: int, tokens: int) -> list[tuple[Job, Heard]]:
    made = []
    for index in range(count):
        heard = Heard()
        prompt = [5 + index] * (3 + index)
        job = Job(
            backend.first_number + index, prompt, tokens, Sampling(ignore_eos=True), time.monotonic_ns(), heard
        )  # fmt: skip
        backend.submit(job)
        made.append((job, heard))
    return made


def turn_until(backend: RingBackend, happened: Callable[[], bool], limit_s: float = 20.0) -> None:
    due = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < due, "it did not happen in time"
        backend.turn()
        time.sleep(0.0002)


@pytest.mark.parametrize("traced", [False, True])
def test_a_server_reaches_the_ring_and_learns_what_the_scheduler_did(traced: bool, tmp_path: Path) -> None:
    order = order_of(tmp_path, str(tmp_path / "trace.ndjson") if traced else "", time_scale=5.0)
    plan, gpu = plan_of(order), HostGpu()
    text = StubText(plan.scenario, ByteTokenizer(), plan.scenario.seed)
    with keeper(order, plan, gpu):
        assert len(gpu.registered) == 2
        backend = server(order, plan, text)
        jobs = jobs_of(backend, 40, 60)
        turn_until(backend, lambda: all(heard.finish for _, heard in jobs))
        for job, heard in jobs:
            assert heard.finish is Finish.LENGTH
            assert heard.tokens == text.text(text.key(job), 60)
            assert 0 < job.published_ns <= job.claimed_ns <= job.stored_ns <= time.monotonic_ns()
        turn_until(backend, lambda: backend.stats().slots["empty"] == 4096 and backend.stats().kv_share == 0)
        stats = backend.stats()
        assert (stats.wrong_tokens, stats.note) == (0, "")
        assert stats.relaunches > 0
        backend.close(complete=True)
    assert (gpu.registered, gpu.held_count) == ({}, 0)
    assert not traced or check_trace(tmp_path / "trace.ndjson").code == 0


def test_the_ring_outlives_a_server_that_dies_and_no_slot_is_lost(tmp_path: Path) -> None:
    order = order_of(tmp_path, str(tmp_path / "trace.ndjson"), time_scale=5.0)
    plan, gpu = plan_of(order), HostGpu()
    text = StubText(plan.scenario, ByteTokenizer(), plan.scenario.seed)
    with keeper(order, plan, gpu):
        first = server(order, plan, text)
        jobs = jobs_of(first, 30, 100)
        turn_until(first, lambda: any(heard.tokens for _, heard in jobs))
        first._end.close()  # as the kernel closes a dead process's connections
        second = server(order, plan, text)
        assert second.stats().recovering > 0
        jobs = jobs_of(second, 5, 4)
        turn_until(second, lambda: all(heard.finish for _, heard in jobs))
        turn_until(second, lambda: second.stats().slots["empty"] == 4096)
        assert second.stats().recovering == 0
        assert [heard.tokens for _, heard in jobs] == [text.text(text.key(job), 4) for job, _ in jobs]
        second.close(complete=True)
    assert check_trace(tmp_path / "trace.ndjson").code == 0
    lines = (tmp_path / "trace.ndjson").read_text(encoding="utf-8")
    assert lines.count('"crashed"') == lines.count('"restarted"') == 1
