"""The device scheduler compiled for the host: a scan of all slots, iterations, and how soon a prompt is claimed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.scale import scaled
from blink.common.request import Request
from blink.common.results import Outcome
from blink.common.states import SLOT_COUNT
from blink.hw.native.driver import Frontend
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.process import SchedulerProcess
from blink.hw.native.records import RecordReader
from blink.hw.native.run import monotonic_ns
from tests.hw.native_help import needs_compiler, small_settings

pytestmark = needs_compiler
THREADS = (1, 2)
STEPS = scaled(5_000, 20)
BATCH = 64
LONG_OUTPUT = 200_000
CLAIMS = scaled(200, 5)


@contextmanager
def served(threads: int) -> Iterator[tuple[Instance, Frontend]]:
    """A scheduler in its process, and a frontend whose requests never end by themselves."""
    settings = small_settings(batch_max=BATCH, prefill_batch_max=8, window=120)
    decode = settings.decode_table
    room = replace(decode.fallback, sequence=LONG_OUTPUT + 64)
    settings = replace(
        settings, decode_table=replace(decode, fallback=room), kv_block_count=BATCH * LONG_OUTPUT,
        output_capacity_tokens=LONG_OUTPUT, trace_capacity=1 << 12,
    )  # fmt: skip
    instance = Instance(load_library(), settings)
    process = SchedulerProcess(instance, threads)
    try:
        process.wait_until_up()
        yield instance, Frontend(instance, monotonic_ns, lambda request, now_ns: None, None, prompt_area_tokens=1 << 16)
    finally:
        process.kill()
        instance.close()


@pytest.mark.parametrize("threads", THREADS)
def test_scan_of_all_slots(benchmark: BenchmarkFixture, threads: int) -> None:
    """No slot is pending: what an idle scheduler does over and over."""
    library, rounds = load_library(), scaled(2_000, 20)
    instance = Instance(library, small_settings())
    scan_ns = benchmark(library.time_scan, instance.base, threads, rounds)
    benchmark.extra_info.update(items=rounds * SLOT_COUNT, unit="slots", scan_ns=scan_ns)
    instance.close()
    assert scan_ns > 0


@pytest.mark.parametrize("threads", THREADS)
def test_iterations_with_a_full_batch(benchmark: BenchmarkFixture, threads: int) -> None:
    """Scan, boundary, decision, a graph of no duration, 64 tokens: once a step."""
    with served(threads) as (instance, frontend):
        for index in range(BATCH):
            frontend.receive(Request(index, -1, 4, LONG_OUTPUT, LONG_OUTPUT, 0))
        frontend.post()
        while instance.state()["claim_count"] < BATCH:
            time.sleep(0.001)

        def steps() -> int:
            until = instance.state()["step"] + STEPS
            while (now := instance.state()["step"]) < until:
                time.sleep(0.0005)
            return now

        benchmark.pedantic(steps, rounds=3, iterations=1)
        benchmark.extra_info.update(items=STEPS, unit="steps", batch=BATCH)
        assert instance.state()["decode_launches"] > STEPS


def test_claim_latency(benchmark: BenchmarkFixture) -> None:
    """From the store of a prompt's control word to its claim, by a scheduler that has been idle."""
    with served(2) as (instance, frontend):
        reader = RecordReader(None, frontend.request_of)
        latencies: list[int] = []

        def one() -> None:
            request = Request(len(latencies), -1, 4, 2, 2, 0)
            frontend.receive(request)
            frontend.post()
            while request.outcome is Outcome.UNFINISHED or request.claimed_ns < 0:
                frontend.poll()
                records = instance.drain(1 << 8)
                if records.size:
                    reader.take(records)
            latencies.append(request.claimed_ns - request.published_ns)

        benchmark.pedantic(one, rounds=CLAIMS, iterations=1)
        benchmark.extra_info.update(claim_ns_p50=int(median(latencies)), claim_ns_max=max(latencies))
        assert min(latencies) >= 0
