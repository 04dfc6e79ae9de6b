"""Results of made-up runs, consistent in every column, for tests of what is computed or printed from a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from blink.common.config import parse_scenario
from blink.common.results import (
    I64,
    REQUEST_COLUMNS,
    TTFT_PARTS,
    Outcome,
    RunResult,
    SchedulerCounters,
    WeightedValues,
)
from blink.common.states import SlotStatus
from blink.common.units import NS_PER_MS, NS_PER_S

SCENARIO: dict[str, Any] = {
    "name": "made-up",
    "model": {"profile": "llama-3-8b"},
    "gpu": {"profile": "h100-96gb"},
    "workload": {
        "requests": 200,
        "arrivals": {"kind": "poisson", "rate": 8.0},
        "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 20},
    },
    "slo": {"ttft_ms": 100.0},
}


def request_columns(count: int) -> dict[str, I64]:
    """`count` rows in which nothing applies yet."""
    return {name: np.full(count, -1, dtype=np.int64) for name in REQUEST_COLUMNS}


def made_up_run(count: int = 200, seed: int = 1, gap_ns: int = NS_PER_S // 8) -> RunResult:
    """A run of `count` requests. The first completes; of the rest a few are cancelled, refused, failed, unfinished."""
    rng = np.random.default_rng(seed)
    rows = request_columns(count)
    rows["request_id"] = np.arange(count, dtype=np.int64)
    rows["sent_ns"] = np.arange(count, dtype=np.int64) * gap_ns
    rows["prompt_tokens"] = rng.integers(10, 2000, count)
    rows["output_tokens_max"] = rng.integers(1, 200, count)
    rows["outcome"] = rng.choice(
        [outcome.value for outcome in Outcome], size=count, p=[0.9, 0.04, 0.02, 0.02, 0.02]
    ).astype(np.int64)
    rows["outcome"][:1] = Outcome.COMPLETED
    _serve(rows, rng)
    refused = rows["request_id"][rows["outcome"] == Outcome.REFUSED]
    duration_ns = int(max(rows["last_token_ns"].max(initial=0), rows["sent_ns"].max(initial=0)))
    return RunResult(
        scenario=parse_scenario(SCENARIO, "made-up").resolved(),
        requests=rows,
        refusals={int(request_id): "prompt longer than the prompt area" for request_id in refused},
        itl=WeightedValues(np.array([7, 8, 40], dtype=np.int64) * NS_PER_MS, np.array([900, 90, 10], dtype=np.int64)),
        scheduler=_counters(duration_ns),
        duration_ns=duration_ns,
        notes=["step times at batch 16 are outside the range of the profile (1 to 8)"],
        counters={"status_reads": 12_345, "token_reads": 678, "submission_writes": 600},
    )


def _serve(rows: dict[str, I64], rng: np.random.Generator) -> None:
    served = np.flatnonzero(rows["outcome"] == Outcome.COMPLETED)
    ttft = np.zeros(len(served), dtype=np.int64)
    for name in TTFT_PARTS:
        rows[name][served] = rng.integers(1, 20 * NS_PER_MS, len(served))
        ttft += rows[name][served]
    tokens = rows["output_tokens_max"][served]
    rows["slot"][served] = np.arange(len(served)) % 64
    rows["generation"][served] = np.arange(len(served)) // 64
    rows["status"][served] = SlotStatus.LENGTH
    rows["status"][rows["outcome"] == Outcome.CANCELLED] = SlotStatus.CANCELLED
    rows["status"][rows["outcome"] == Outcome.FAILED] = SlotStatus.ENGINE
    rows["output_tokens"][:] = 0
    rows["output_tokens"][served] = tokens
    rows["ttft_ns"][served] = ttft
    rows["first_token_ns"][served] = rows["sent_ns"][served] + ttft
    rows["last_token_ns"][served] = rows["first_token_ns"][served] + (tokens - 1) * 8 * NS_PER_MS
    rows["e2e_ns"][served] = rows["last_token_ns"][served] - rows["sent_ns"][served]
    rows["pause_count"][served] = 2
    rows["kv_block_count"][served] = 8


def _counters(duration_ns: int) -> SchedulerCounters:
    return SchedulerCounters(
        decode_launches=4000,
        prefill_launches=180,
        relaunches=35,
        idle_ns=duration_ns // 10,
        decode_ns=duration_ns * 7 // 10,
        prefill_ns=duration_ns // 10,
        loop_ns=duration_ns // 50,
        batch_ns=duration_ns * 16,
        batch_max=29,
        kv_block_ns=duration_ns * 900,
        kv_blocks_max=2100,
        kv_blocks_total=20_000,
        batch_limit=128,
        padded_decode_rows=5000,
        decode_rows=60_000,
        padded_prefill_tokens=30_000,
        prefill_tokens=200_000,
        wait_batch_ns=0,
        wait_gpu_ns=0,
        wait_kv_ns=duration_ns // 5,
        wait_window_ns=duration_ns // 1000,
        slots_in_use_max=31,
    )
