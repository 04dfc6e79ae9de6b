"""Waits against queueing theory: with one place in the batch an engine is a single server.

Requests have short prompts and several tokens of output, so that the processes before the core are fast beside it and
its arrivals are still Poisson. `ring_wait_ns` is the wait in the core's line.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from blink.common.results import I64, RunResult
from blink.sim.engines.host import Quiet
from tests.model.engine_runs import KINDS, document, poisson, run

PROMPT = 10
COUNT = 6000
TOLERANCES = {0.2: 0.08, 0.5: 0.08, 0.8: 0.2}  # the mean of a sample of 6,000 is the less certain the longer the queue
ONE: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 4096, "async_scheduling": False}
Output = int | tuple[int, int]


def one_server(kind: str, rate: float, output: Output, count: int = COUNT) -> RunResult:
    return run(document(kind, poisson(count, rate, PROMPT, output), **ONE), conditions=Quiet())


def came_ns(result: RunResult) -> I64:
    """When each request joined the core's line."""
    rows = result.requests
    before = ("ingress_ns", "tokenize_ns", "slot_wait_ns", "link_ns")
    return np.asarray(rows["sent_ns"] + sum(rows[name] for name in before), np.int64)


def mean_wait(result: RunResult) -> float:
    waits = result.requests["ring_wait_ns"]
    return math.fsum(waits.tolist()) / len(waits)


def services_ns(kind: str, output: Output) -> I64:
    """How long the place is taken for each request of a run in which somebody always waits."""
    result = one_server(kind, 2000.0, output, count=3000)
    claimed = np.sort(came_ns(result) + result.requests["ring_wait_ns"])
    return np.asarray(np.diff(claimed)[len(claimed) // 2 :], np.int64)  # the second half: all have come by then


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("utilisation", TOLERANCES)
def test_equal_requests_wait_as_in_m_d_1(kind: str, utilisation: float) -> None:
    """Mean wait rho S / (2 (1 - rho)); and request by request what Lindley's recursion gives for these arrivals."""
    service = float(np.median(services_ns(kind, 8)))
    result = one_server(kind, utilisation / service * 1e9, 8)
    expected = utilisation * service / (2 * (1 - utilisation))
    assert mean_wait(result) == pytest.approx(expected, rel=TOLERANCES[utilisation])

    wait, total = 0.0, 0.0
    for gap in np.diff(came_ns(result)).tolist():
        wait = max(0.0, wait + service - gap)
        total += wait
    assert mean_wait(result) == pytest.approx(total / COUNT, rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("utilisation", TOLERANCES)
def test_unequal_requests_wait_as_in_m_g_1(kind: str, utilisation: float) -> None:
    """Pollaczek-Khinchine: lambda E[S^2] / (2 (1 - rho)), with outputs of 1 to 20 tokens."""
    services = services_ns(kind, (1, 20)).astype(np.float64)
    mean, square = float(services.mean()), float((services**2).mean())
    result = one_server(kind, utilisation / mean * 1e9, (1, 20))
    expected = utilisation / mean * square / (2 * (1 - utilisation))
    assert mean_wait(result) == pytest.approx(expected, rel=1.5 * TOLERANCES[utilisation])


@pytest.mark.parametrize("kind", KINDS)
def test_the_time_of_a_run_is_gpu_host_between_steps_and_idle(kind: str) -> None:
    """Nothing between two steps is free, and nothing is lost: what is left is the first arrival and the last answer."""
    result = one_server(kind, 2000.0, (1, 20), count=500)
    counters = result.scheduler
    gpu_ns = counters.decode_ns + counters.prefill_ns
    assert counters.loop_ns > 0.1 * gpu_ns
    accounted = gpu_ns + counters.loop_ns + counters.idle_ns
    assert 0.98 * result.duration_ns <= accounted <= result.duration_ns


@pytest.mark.parametrize("kind", KINDS)
def test_waits_without_the_host_would_be_far_too_low(kind: str) -> None:
    """Above half utilisation a model in which steps follow one another for free misses 30 % of the wait or more."""
    service = float(np.median(services_ns(kind, 8)))
    result = one_server(kind, 0.75 / service * 1e9, 8, count=2000)
    gpu_only = (result.scheduler.decode_ns + result.scheduler.prefill_ns) / 2000
    rho = 0.75 * gpu_only / service
    assert rho * gpu_only / (2 * (1 - rho)) < 0.7 * mean_wait(result)
