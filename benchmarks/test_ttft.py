"""TTFT as the server counts it against its clients', request by request: one stream at a time, and forty.

On the wire, TTFT is from packet to packet, which root may see. A client's ends when the first token is at its socket,
by the kernel; when one thread that reads all streams has read it; or when the task of a stream has, in asyncio. Where
there are two cores, server and client have one each, and come before other programs; with BLINK_BENCH_SHARED=1 they
share what there is, as any programs.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import mean

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.first_bytes import Client, First, tasks
from benchmarks.scale import scaled
from benchmarks.wire import watched
from blink.serve.carrier import CARRIERS
from tests.hw.native_help import needs_compiler
from tests.serve.running import Server, running, wait_for

pytest.importorskip("uvicorn", reason="needs the extra [serve]")
STREAMS = scaled(40, 4)
SHARED = os.environ.get("BLINK_BENCH_SHARED", "") not in ("", "0")
BACKENDS = [
    pytest.param(("--time-scale", "1"), id="sim"),
    pytest.param(("--backend", "native"), id="native", marks=needs_compiler),
]
LOADS = {
    "one": (1, scaled(200, 3), 5, 0),
    "at_once": (STREAMS, scaled(10, 1), 60, 0),
    "in_turn": (STREAMS, scaled(10, 1), 120, 1_000_000),
}
"""Streams, how often, tokens of each, and the time between the beginnings of two."""


@contextmanager
def own_cores(server: int) -> Iterator[None]:
    """A core for the server and one for this process, before other programs, as far as the system lets them."""
    cores = sorted(os.sched_getaffinity(0))
    if SHARED or len(cores) < 2:
        yield
        return
    before = os.sched_getscheduler(0)
    for pid, core in ((server, cores[0]), (0, cores[1])):
        os.sched_setaffinity(pid, {core})
        with suppress(OSError):
            os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
        with suppress(OSError):
            os.sched_setscheduler(0, before, os.sched_param(0))


def counted_ms(server: Server) -> dict[str, float]:
    """The TTFT that went into the metrics, by response."""
    lines = [json.loads(line) for line in server.text().splitlines() if line.startswith("{")]
    return {line["id"]: line["ttft_ms"] for line in lines if "ttft_ms" in line}


def shares(differences: Sequence[float]) -> dict[str, float]:
    """How much longer the client's is, in microseconds; `beyond` is the share that is more than 1 ms off."""
    found = sorted(differences)
    if not found:
        return {}
    rank = {name: found[min(len(found) - 1, int(share * len(found)))] for name, share in (("p50", 0.5), ("p99", 0.99))}
    values = {"mean": mean(found), **rank, "min": found[0], "max": found[-1]}
    beyond = sum(abs(one) > 1.0 for one in found) / len(found)
    return {**{name: round(value * 1e3) for name, value in values.items()}, "beyond": round(beyond, 4)}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("options", BACKENDS)
def test_ttft_of_the_metrics_against_the_clients(
    benchmark: BenchmarkFixture, options: tuple[str, ...], carrier: str, tmp_path: Path
) -> None:
    ring = ("--ring", str(tmp_path / "ring")) if "native" in options else ()
    with running(*options, *ring, "--http", carrier, "--log-json", "--log-requests") as server:
        found = benchmark.pedantic(lambda: {name: compared(server, *load) for name, load in LOADS.items()}, rounds=1)
    items = sum(width * bursts for width, bursts, _, _ in LOADS.values())
    benchmark.extra_info.update(items=items, unit="requests", **found)


def compared(server: Server, width: int, bursts: int, tokens: int, gap_ns: int) -> dict[str, object]:
    """Of a load: the mean TTFT that was counted, and how much longer it was for each kind of client."""
    client, before = Client(server.port, width), len(counted_ms(server))
    client.burst(tokens, gap_ns)
    with own_cores(server.process.pid), watched(server.port) as on_the_wire:
        seen = [one for _ in range(bursts) for one in client.burst(tokens, gap_ns)]
        by_task = [one for _ in range(bursts) for one in asyncio.run(tasks(server.port, width, tokens, gap_ns))]
    client.close()
    wait_for(lambda: len(counted_ms(server)) == before + width + 2 * len(seen))
    counted = counted_ms(server)

    def longer_ms(firsts: list[First], end: str) -> list[float]:
        return [(getattr(one, end) - one.sent_ns) / 1e6 - counted[one.response_id] for one in firsts]

    return {
        "ttft_ms": round(mean(counted[one.response_id] for one in seen), 2),
        "wire_us": shares([ms - counted[name] for name, ms in on_the_wire.items()]),
        "there_us": shares(longer_ms(seen, "there_ns")),
        "read_us": shares(longer_ms(seen, "read_ns")),
        "by_task_us": shares(longer_ms(by_task, "read_ns")),
    }
