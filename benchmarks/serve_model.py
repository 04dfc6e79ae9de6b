"""TTFT and ITL of a model behind `blink serve`, at the client, with so many requests at once.

    python -m benchmarks.serve_model --backend cuda --json serve.json

Prompts of about 100 tokens, so many tokens of output each, one request after another on every connection. A chunk is
what one poll of the ring brought; ITL is counted between chunks, TPOT over a whole answer. The scenario is ci-tiny with
the sizes below.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.serve.running import Server

SIZES = (
    "limits.context_tokens=640", "limits.output_capacity_tokens=512", "limits.batch_max=32",
    "limits.decode_batches=[1,8,32]", "limits.prefill_batch_max=4", "limits.prefill_batches=[1,4]",
    "limits.prefill_sequences=[32,128,512]",
)  # fmt: skip
PROMPT = "Tell me about the rivers, the mountains and the towns of the country that I am going to name. " * 5
SETTLE_REQUESTS = 2
START_LIMIT_S = 180.0


@dataclass(slots=True)
class Seen:
    """One answer at the client, in ns of the monotonic clock."""

    sent_ns: int
    chunk_ns: list[int] = field(default_factory=list)
    tokens: int = 0


async def answer(port: int, number: int, tokens: int) -> Seen:
    """Ask for one answer and read it to its end."""
    body = json.dumps({
        "prompt": f"{number} {PROMPT}", "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
        "stream_options": {"include_usage": True},
    }).encode()  # fmt: skip
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    seen = Seen(time.monotonic_ns())
    writer.write(head % len(body) + body)
    last = b""
    while data := await reader.read(1 << 16):
        if b'"text"' in data:
            seen.chunk_ns.append(time.monotonic_ns())
        last = (last + data)[-2048:]
    writer.close()
    found = re.search(rb'"completion_tokens":(\d+)', last)
    assert found is not None, last
    seen.tokens = int(found[1])
    return seen


async def load(port: int, at_once: int, requests: int, tokens: int) -> tuple[list[Seen], float]:
    """So many answers, one after another on each of `at_once` connections; and the seconds that it took."""

    async def one(place: int) -> list[Seen]:
        return [await answer(port, place * requests + index, tokens) for index in range(requests)]

    began = time.perf_counter()
    found = await asyncio.gather(*(one(place) for place in range(at_once)))
    return [seen for of_one in found for seen in of_one], time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Row:
    """Times in milliseconds."""

    at_once: int
    requests: int
    tokens_per_s: float
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float
    tpot_p50: float
    tpot_p99: float


def row_of(at_once: int, seen: Sequence[Seen], seconds: float) -> Row:
    """What a load came to."""
    ttft = [one.chunk_ns[0] - one.sent_ns for one in seen]
    tpot = [(one.chunk_ns[-1] - one.chunk_ns[0]) / max(1, one.tokens - 1) for one in seen]
    itl = np.concatenate([np.diff(one.chunk_ns) for one in seen])
    figures = [round(float(np.percentile(of, share)) / 1e6, 3) for of in (ttft, itl, tpot) for share in (50, 99)]
    return Row(at_once, len(seen), round(sum(one.tokens for one in seen) / seconds, 1), *figures)


def within(metrics: str, name: str, share: float) -> float:
    """Milliseconds: the upper bound of the bucket in which that share of a histogram's values is reached."""
    buckets = re.findall(rf'^{name}_bucket{{.*le="([^"]+)"}} (\d+)$', metrics, re.MULTILINE)
    total = int(buckets[-1][1])
    return next(float(bound) * 1e3 for bound, count in buckets if int(count) >= share * total)


def main() -> None:
    """Start a server, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda", choices=("cuda", "native"))
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=6, help="on each connection")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    changed = [word for text in SIZES for word in ("--set", text)]
    options = ["--backend", asked.backend, "--engine", "torch", "--model", asked.model, *changed]
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        server = Server(*options, "--ring", f"{folder}/ring", start_limit_s=START_LIMIT_S)
        ready_s = time.monotonic() - began
        try:
            result = measured(server, asked) | {"model": asked.model, "backend": asked.backend}
        finally:
            code = server.stop()
    assert code == 0
    result["ready_s"] = round(ready_s, 1)
    print(json.dumps(result, indent=1))
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measured(server: Server, asked: argparse.Namespace) -> dict[str, Any]:
    """All loads over one server."""
    rows = []
    asyncio.run(load(server.port, max(asked.at_once), SETTLE_REQUESTS, 8))
    for at_once in asked.at_once:
        seen, seconds = asyncio.run(load(server.port, at_once, asked.requests, asked.tokens))
        assert all(one.tokens == asked.tokens for one in seen)
        rows.append(asdict(row_of(at_once, seen, seconds)))
    metrics = server.request("GET", "/metrics")[2].decode()
    names = {"submit": "blink:submit_seconds", "token_out": "blink:token_out_seconds"}
    added = {
        f"{key}_ms_p{percent}_at_most": within(metrics, name, percent / 100)
        for key, name in names.items()
        for percent in (50, 99)
    }
    return {"prompt_tokens": server.post("/tokenize", {"prompt": f"0 {PROMPT}"})["count"], "rows": rows, "added": added}


if __name__ == "__main__":
    main()
