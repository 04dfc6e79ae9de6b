"""The server: chunks per second of CPU with tokens that take no time, against a bare ASGI application; latency; memory.

Figures are per second of the server's own CPU time, so that a busy machine changes them little.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.scale import scaled
from tests.hw.native_help import needs_compiler
from tests.serve.running import running
from tests.shared import ROOT

pytest.importorskip("uvicorn", reason="needs the extra [serve]")
STREAMS, TOKENS = scaled(64, 4), scaled(500, 10)
MANY = scaled(1000, 20)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def echo() -> Iterator[tuple[int, int]]:
    """Port and process of the bare application."""
    command = [sys.executable, "-m", "benchmarks.echo_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+)$", process.stdout.readline().strip())
        assert found is not None
        try:
            yield int(found[1]), process.pid
        finally:
            process.terminate()


@contextmanager
def timed(*options: str) -> Iterator[tuple[int, int]]:
    """Port and process of a server whose tokens take no time, with a batch that holds every stream."""
    free = ("--ttft", "0", "--itl", "0", "--set", "limits.batch_max=2048")
    with running(*free, *options) as server:
        yield server.port, server.process.pid


def cpu_s(pid: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def rss_bytes(pid: int) -> int:
    """Memory of a process now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


async def stream(port: int, tokens: int, begun: asyncio.Event | None = None) -> int:
    """Read one stream to its end; the number of its chunks."""
    body = b'{"prompt":"Hello","max_tokens":%d,"ignore_eos":true,"stream":true}' % tokens
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    writer.write(head % len(body) + body)
    chunks = 0
    while data := await reader.read(1 << 18):
        chunks += data.count(b'"text"')
        if begun is not None:
            begun.set()
    writer.close()
    return chunks


async def streams(port: int, count: int, tokens: int) -> int:
    return sum(await asyncio.gather(*(stream(port, tokens) for _ in range(count))))


def chunks_per_cpu_s(port: int, pid: int) -> float:
    asyncio.run(streams(port, 4, 4))
    before = cpu_s(pid)
    chunks = asyncio.run(streams(port, STREAMS, TOKENS))
    assert chunks == STREAMS * TOKENS
    return chunks / max(cpu_s(pid) - before, 1 / TICKS_PER_S)


def test_chunks_of_one_core_against_a_bare_application(benchmark: BenchmarkFixture) -> None:
    with timed() as (port, pid), echo() as (bare_port, bare_pid):
        rates = [(chunks_per_cpu_s(port, pid), chunks_per_cpu_s(bare_port, bare_pid)) for _ in range(scaled(5, 1))]
        benchmark.pedantic(lambda: asyncio.run(streams(port, STREAMS, TOKENS)), rounds=1)
    ours, bare = (median(column) for column in zip(*rates, strict=True))
    benchmark.extra_info.update(
        items=STREAMS * TOKENS, unit="chunks", chunks_per_cpu_s=round(ours), bare_chunks_per_cpu_s=round(bare),
        share=round(ours / bare, 3),
    )  # fmt: skip


def test_short_streams_of_one_core(benchmark: BenchmarkFixture) -> None:
    with timed() as (port, pid):
        asyncio.run(streams(port, 4, 1))
        before = cpu_s(pid)
        benchmark.pedantic(lambda: asyncio.run(streams(port, scaled(500, 10), 1)), rounds=1)
        spent = max(cpu_s(pid) - before, 1 / TICKS_PER_S)
    benchmark.extra_info.update(items=scaled(500, 10), unit="streams", streams_per_cpu_s=round(scaled(500, 10) / spent))


def test_a_thousand_streams_at_once(benchmark: BenchmarkFixture) -> None:
    """All of them open at the same time; the memory that each of them takes."""
    with timed("--itl", "20") as (port, pid):
        asyncio.run(streams(port, 50, 2))
        before = rss_bytes(pid)

        async def all_open() -> int:
            begun = [asyncio.Event() for _ in range(MANY)]
            tasks = [asyncio.ensure_future(stream(port, 100, event)) for event in begun]
            await asyncio.gather(*(event.wait() for event in begun))
            memory = rss_bytes(pid)
            await asyncio.gather(*tasks)
            return memory

        memory = benchmark.pedantic(lambda: asyncio.run(all_open()), rounds=1)
    benchmark.extra_info.update(items=MANY, unit="streams", bytes_per_stream=round((memory - before) / MANY))


def test_latency_that_the_server_adds(benchmark: BenchmarkFixture) -> None:
    """A whole request with one token that takes no time: HTTP in, job out, token in, bytes out, over loopback."""
    times: list[float] = []

    async def one_after_another(port: int) -> None:
        for _ in range(scaled(300, 5)):
            began = time.perf_counter()
            await stream(port, 1)
            times.append(time.perf_counter() - began)

    with timed() as (port, _):
        asyncio.run(streams(port, 4, 1))
        benchmark.pedantic(lambda: asyncio.run(one_after_another(port)), rounds=1)
    cuts = quantiles(times, n=100)
    benchmark.extra_info.update(
        items=len(times), unit="requests", us_p50=round(median(times) * 1e6), us_p99=round(cuts[98] * 1e6)
    )


def quantile_us(metrics: str, name: str, share: float) -> float:
    """The upper bound of the bucket in which that share of a histogram's values is reached."""
    buckets = re.findall(rf'^{name}_bucket{{.*le="([^"]+)"}} (\d+)$', metrics, re.MULTILINE)
    total = int(buckets[-1][1])
    return next(float(bound) * 1e6 for bound, count in buckets if int(count) >= share * total)


@needs_compiler
def test_latency_inside_the_server_on_the_native_ring(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """HTTP in to slot pending, first token in the ring to bytes at the socket, as the server's clock has them."""
    with running("--backend", "native", "--ring", str(tmp_path / "ring")) as server:

        async def one_after_another() -> None:
            for _ in range(scaled(300, 5)):
                await stream(server.port, 4)

        benchmark.pedantic(lambda: asyncio.run(one_after_another()), rounds=1)
        metrics = server.request("GET", "/metrics")[2].decode()
    names = {"submit": "blink:submit_seconds", "token_out": "blink:token_out_seconds"}
    found = {
        f"{key}_us_p{percent}_at_most": round(quantile_us(metrics, name, percent / 100))
        for key, name in names.items()
        for percent in (50, 99)
    }
    benchmark.extra_info.update(items=scaled(300, 5), unit="requests", **found)
