"""Serving a model under load: the scheduler on the GPU against the same one on the host, alone and interfered with.

The frontend is a stand-in for one on a DPU: its thread keeps to cores of its own, and the busy processes and the host's
scheduler share the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blink.common.config import parse_scenario
from blink.common.results import Outcome, RunResult
from blink.hw.cuda.engine_run import System, engine_settings, serve_engine
from blink.hw.cuda.kernels import Kernels
from blink.hw.engines.contract import Engine
from blink.hw.measure.busy import busy_processes
from blink.workload.build import build_load
from blink.workload.requests import Requests

Say = Callable[[str], None]
FRONTEND_CORES = 2


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Poisson loads of `duration_s` at each rate, with ShareGPT-like lengths scaled down; closed workloads of
    `requests` prompts of `prompt_tokens`, `concurrency` at a time, for each number of output tokens.
    """

    rates: tuple[float, ...] = (10.0, 20.0)
    duration_s: float = 5.0
    requests: int = 32
    concurrency: int = 16
    prompt_tokens: int = 512
    output_tokens: tuple[int, ...] = (16, 64, 128, 256)
    busy: tuple[int, ...] = (0, 32)
    prompt_tokens_max: int = 1_000
    output_tokens_max: int = 256


def load_rows(
    kernels: Kernels, engine: Engine, plan: LoadPlan, model: str, say: Say = lambda text: None
) -> Iterator[dict[str, Any]]:
    """One row a run: what, system, busy, and the figures of the run."""
    settings = engine_settings(engine, output_tokens=plan.output_tokens_max + 8, ignore_eos=True)
    every = frozenset(os.sched_getaffinity(0))
    mine = frozenset(sorted(every)[:FRONTEND_CORES])
    others = every - mine or every
    try:
        for name in ("cuda", "cpu-resident"):
            os.sched_setaffinity(0, every)
            say(f"capturing graphs for {name}")
            system = (
                System.on_gpu(kernels, settings, engine)
                if name == "cuda"
                else System.on_host(kernels, settings, engine, others)
            )
            os.sched_setaffinity(0, mine)
            try:
                for count in plan.busy:
                    with busy_processes(count, others):
                        for what, scenario, requests in _loads(plan, model):
                            say(f"{name}: {what} beside {count} busy processes")
                            system.ring.reset()
                            result = serve_engine(system, engine, scenario, requests)
                            yield {"what": what, "system": name, "busy": count} | figures(result)
            finally:
                system.close()
    finally:
        os.sched_setaffinity(0, every)


def _loads(plan: LoadPlan, model: str) -> Iterator[tuple[str, Any, Requests]]:
    for rate in plan.rates:
        arrivals = {"kind": "poisson", "rate": rate}
        workload = {"duration_s": plan.duration_s, "arrivals": arrivals, "lengths": {"kind": "sharegpt-like"}}
        scenario, requests = build_load(_scenario(model, workload))
        yield f"Poisson, {rate:g}/s", scenario, _scaled(requests, plan)
    for tokens in plan.output_tokens:
        lengths = {"kind": "fixed", "prompt_tokens": plan.prompt_tokens, "output_tokens": tokens}
        arrivals = {"kind": "closed-loop", "concurrency": plan.concurrency}
        workload = {"requests": plan.requests, "arrivals": arrivals, "lengths": lengths}
        yield f"{plan.requests} x {plan.prompt_tokens} -> {tokens}", *build_load(_scenario(model, workload))


def _scenario(model: str, workload: dict[str, Any]) -> Any:
    return parse_scenario(
        {"name": "load", "model": {"profile": model}, "gpu": {"profile": "h200"}, "workload": workload}, "load"
    )


def _scaled(requests: Requests, plan: LoadPlan) -> Requests:
    """Half the prompt and a quarter of the output, within what the engine was built for."""
    return replace(
        requests,
        prompt_tokens=np.clip(requests.prompt_tokens // 2, 1, plan.prompt_tokens_max),
        output_tokens=np.clip(requests.output_tokens // 4, 1, plan.output_tokens_max),
    )


def figures(result: RunResult) -> dict[str, Any]:
    """Makespan, throughput, TTFT and TPOT (mean time of a token after the first, a request) of a run."""
    table = result.requests
    done = table["outcome"] == Outcome.COMPLETED
    tokens = table["output_tokens"][done]
    later = done & (table["output_tokens"] > 1)
    spans = table["last_token_ns"][later] - table["first_token_ns"][later]
    tpot = spans / (table["output_tokens"][later] - 1)
    ttft = table["ttft_ns"][done]
    seconds = result.duration_ns / 1e9
    return {
        "requests": int(done.size),
        "completed": int(done.sum()),
        "makespan_ns": int(result.duration_ns),
        "output_tokens_per_s": round(float(tokens.sum()) / seconds, 1) if seconds else 0.0,
        "ttft_ns_p50": _percentile(ttft, 50),
        "ttft_ns_p99": _percentile(ttft, 99),
        "tpot_ns_p50": _percentile(tpot, 50),
        "tpot_ns_p99": _percentile(tpot, 99),
    }


def _percentile(values: Any, q: float) -> int:
    return round(float(np.percentile(values, q))) if values.size else 0
