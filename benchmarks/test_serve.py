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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import mean, median, quantiles

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.open_loop import play, undisturbed
from benchmarks.scale import scaled
from blink.common.config import load_scenario
from blink.common.metrics import tpot_ns
from blink.serve.carrier import CARRIERS
from blink.sim.run import simulate
from blink.workload.build import build_load
from tests.hw.native_help import needs_compiler
from tests.serve.running import Server, running
from tests.shared import ROOT

pytest.importorskip("uvicorn", reason="needs the extra [serve]")
STREAMS, TOKENS = scaled(64, 4), scaled(500, 10)
MANY = scaled(1000, 20)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextmanager
def echo(carrier: str) -> Iterator[tuple[int, int]]:
    """Port and process of the bare application."""
    command = [sys.executable, "-m", "benchmarks.echo_server", carrier]
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
    """Both under each of the servers of HTTP, in turns."""
    with ExitStack() as stack:
        ends = {}
        for carrier in CARRIERS:
            ends[carrier] = stack.enter_context(timed("--http", carrier))
            ends[f"bare_{carrier}"] = stack.enter_context(echo(carrier))
        rates: dict[str, list[float]] = {name: [] for name in ends}
        for _ in range(scaled(5, 1)):
            for name, end in ends.items():
                rates[name].append(chunks_per_cpu_s(*end))
        benchmark.pedantic(lambda: asyncio.run(streams(ends[CARRIERS[0]][0], STREAMS, TOKENS)), rounds=1)
    found = {f"{name}_chunks_per_cpu_s": round(median(values)) for name, values in rates.items()}
    benchmark.extra_info.update(items=STREAMS * TOKENS, unit="chunks", **found)


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


@pytest.mark.parametrize("carrier", CARRIERS)
def test_latency_that_the_server_adds(benchmark: BenchmarkFixture, carrier: str) -> None:
    """A whole request with one token that takes no time: HTTP in, job out, token in, bytes out, over loopback."""
    times: list[float] = []

    async def one_after_another(port: int) -> None:
        for _ in range(scaled(300, 5)):
            began = time.perf_counter()
            await stream(port, 1)
            times.append(time.perf_counter() - began)

    with timed("--http", carrier) as (port, _):
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


@pytest.mark.parametrize(("name", "rate"), [("llama3-8b-h100", 2), ("qwen3-32b-h100", 1)])
def test_the_twin_in_real_time_against_the_simulation(benchmark: BenchmarkFixture, name: str, rate: int) -> None:
    """The same requests at the same times: TTFT and TPOT at the client, in the simulation and in /metrics."""
    path = ROOT / "scenarios" / f"{name}.toml"
    changes = [f"workload.arrivals.rate={rate}", f"workload.requests={scaled(60, 2)}", "workload.duration_s=100000"]
    overrides = [("--set", change) for change in changes]
    scenario, load = build_load(load_scenario(path, overrides))
    rows = simulate(scenario, load).requests
    lengths = list(zip(load.prompt_tokens.tolist(), load.output_tokens.tolist(), strict=True))
    with undisturbed(), running(*(part for pair in overrides for part in pair), scenario=path) as server:
        asyncio.run(streams(server.port, 1, 2))
        before = ttft_of_the_metrics(server)
        times = benchmark.pedantic(lambda: play(server.port, lengths, load.arrival_ns.tolist()), rounds=1)
        after = ttft_of_the_metrics(server)
        lag_ms = server.metric("blink:clock_lag_seconds_max") * 1e3
    ttft_ms = mean((one.first_ns - one.sent_ns) / 1e6 for one in times)
    counted_ms = (after[0] - before[0]) / (after[1] - before[1]) * 1e3
    many = [(one, tokens) for one, (_, tokens) in zip(times, lengths, strict=True) if tokens > 1]
    tpot_ms = mean((one.last_ns - one.first_ns) / (tokens - 1) / 1e6 for one, tokens in many)
    simulated_ms, simulated_tpot_ms = mean(rows["ttft_ns"].tolist()) / 1e6, mean(tpot_ns(rows).tolist()) / 1e6
    benchmark.extra_info.update(
        items=len(times), unit="requests",
        ttft_ms=round(ttft_ms, 3), simulated_ttft_ms=round(simulated_ms, 3), counted_ttft_ms=round(counted_ms, 3),
        ttft_percent=round(100 * (ttft_ms / simulated_ms - 1), 2),
        tpot_ms=round(tpot_ms, 4), simulated_tpot_ms=round(simulated_tpot_ms, 4),
        tpot_percent=round(100 * (tpot_ms / simulated_tpot_ms - 1), 2), lag_ms_max=round(lag_ms, 2),
    )  # fmt: skip


def ttft_of_the_metrics(server: Server) -> tuple[float, float]:
    """Sum in seconds, and count."""
    name = "vllm:time_to_first_token_seconds"
    return server.metric(f"{name}_sum"), server.metric(f"{name}_count")
