"""The page at /: a file without anything from elsewhere, and the stream of snapshots that feeds it."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from blink.serve.metrics import Histogram
from blink.serve.response import SSE_HEADERS
from blink.serve.service import Service
from blink.serve.writer import Receive, Send

PERIOD_S = 0.25
WATCHERS_MAX = 32
_LETTERS = bytes.maketrans(bytes(range(6)), b"012345")
_watchers = 0


@lru_cache
def page() -> bytes:
    """The page."""
    return Path(__file__).with_name("page.html").read_bytes()


def snapshot(service: Service) -> dict[str, Any]:
    """What the page shows of one moment: states as a digit a slot, counts since the start, latencies in ms."""
    stats, metrics = service.backend.stats(), service.metrics
    ttft, itl = metrics["vllm:time_to_first_token_seconds"], metrics["vllm:inter_token_latency_seconds"]
    return {
        "model": service.model,
        "backend": service.backend.name,
        "slots": service.backend.slot_states().translate(_LETTERS).decode("ascii"),
        "running": stats.running,
        "waiting": stats.waiting,
        "batch_max": stats.batch_max,
        "kv": round(stats.kv_share, 4),
        "window": [stats.window_used, stats.window],
        "relaunches": stats.relaunches,
        "lag_ms": round(stats.lag_ns / 1e6, 2),
        "recovering": stats.recovering,
        "draining": service.draining,
        "note": service.broken,
        "tokens": metrics.counters["vllm:generation_tokens"],
        "requests": sum(metrics.finished.values()),
        "ttft": _plain(ttft),
        "itl": _plain(itl),
    }


def _plain(histogram: Histogram) -> dict[str, list[float] | list[int]]:
    return {"le": [bound * 1000 for bound in histogram.bounds], "n": list(histogram.counts)}


async def snapshots(service: Service, receive: Receive, send: Send) -> None:
    """Snapshots as server-sent events until the client leaves; at most WATCHERS_MAX clients watch."""
    global _watchers
    if _watchers >= WATCHERS_MAX:
        await send({"type": "http.response.start", "status": 503, "headers": [(b"retry-after", b"5")]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return
    _watchers += 1
    gone = asyncio.ensure_future(_until_gone(receive))
    try:
        await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
        while not gone.done() and not service.draining:
            body = b"data: " + msgspec.json.encode(snapshot(service)) + b"\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.wait([gone], timeout=PERIOD_S)
        if not gone.done():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        gone.cancel()
        _watchers -= 1


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
