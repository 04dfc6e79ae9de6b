"""What a seed stands for in `blink chaos`: a load, the limits it runs against, and a plan of faults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from blink.common.config import Scenario, parse_scenario
from blink.common.faults import DESCRIPTOR_BITS, Fault, FaultKind, FaultPlan, Moment
from blink.common.results import I64
from blink.common.states import SLOT_COUNT
from blink.workload.build import NEVER_NS
from blink.workload.requests import Requests, synthetic
from blink.workload.streams import Stream, generator

PROBE_COUNT = 12
"""Requests that are sent after the faults have ended: all of them must be served."""
PROMPT_TOKENS_MAX = 120
OUTPUT_TOKENS_MAX = 40
FAULTS_MAX = 5
RING_ENDS_MAX = 2
KV_BLOCKS = 4096
_HEAL = 1.25  # x span: every window is over and every frontend is back
_LATER = 1.3  # x span: the probes
_IMPATIENT, _IMPATIENT_OF_MANY = 0.15, 0.01


class Shape(Enum):
    """What the load exhausts, if anything."""

    STEADY = "arrivals spread out"
    BURSTS = "arrivals in bursts"
    KV = "fewer KV blocks than the batch could use"
    SLOTS = "more requests at once than the ring has slots"


_WEIGHTS = {Shape.STEADY: 0.35, Shape.BURSTS: 0.3, Shape.KV: 0.25, Shape.SLOTS: 0.1}
_MORE_CHANCE = 0.3
"""Of each of the kinds that have a stream of their own, so that the plans drawn before them stay what they were."""
_KINDS = {
    FaultKind.FRONTEND_CRASH: 0.32,
    FaultKind.SCHEDULER_CRASH: 0.07,
    FaultKind.STALE_READS: 0.14,
    FaultKind.REORDERED_READS: 0.14,
    FaultKind.SLOW_GRAPHS: 0.1,
    FaultKind.STUCK_GRAPH: 0.06,
    FaultKind.CANCEL_STORM: 0.12,
}


@dataclass(frozen=True, slots=True)
class Case:
    """One drill. Times in nanoseconds of its clock; `patience_ns` is NEVER_NS for clients that wait.

    Faults lie before `span_ns`; at `heal_ns` all of them are over; `probes` are sent after that.
    """

    seed: int
    span_ns: int
    heal_ns: int
    scenario: Scenario
    load: Requests
    asked: I64  # output_tokens_max of each request: half of the clients ask for less than the model would say
    patience_ns: I64
    probes: frozenset[int]
    kv_block_count: int
    plan: FaultPlan
    text: str


def draw_case(seed: int, span_ns: int, shapes: tuple[Shape, ...] = tuple(Shape)) -> Case:
    """The case of a seed, scaled to a length of the time in which faults happen. `shapes` restricts the loads."""
    rng = generator(seed, Stream.FAULTS)
    weights = np.array([_WEIGHTS[shape] for shape in shapes])
    shape = shapes[int(rng.choice(len(shapes), p=weights / weights.sum()))]
    load, patience = _load(rng, shape, span_ns)
    kv_block_count = int(rng.integers(12, 25)) if shape is Shape.KV else KV_BLOCKS
    scenario = parse_scenario(_document(rng, seed, shape, len(load)), f"drill {seed}")
    sent = len(load) - PROBE_COUNT
    limits = scenario.limits
    text = (
        f"{sent} requests, {shape.value}; batch {limits.batch_max}, prefill {limits.prefill_batch_max}, "
        f"window {limits.window}, {kv_block_count} KV blocks"
    )
    return Case(
        seed=seed,
        span_ns=span_ns,
        heal_ns=int(_HEAL * span_ns),
        scenario=scenario,
        load=load,
        asked=np.where(rng.random(len(load)) < 0.5, load.output_tokens, (load.output_tokens + 1) // 2),
        patience_ns=patience,
        probes=frozenset(range(sent, len(load))),
        kv_block_count=kv_block_count,
        plan=merged(draw_plan(rng, span_ns), draw_more(generator(seed, Stream.MORE_FAULTS), span_ns)),
        text=text,
    )


def draw_plan(rng: np.random.Generator, span_ns: int) -> FaultPlan:
    """One to FAULTS_MAX faults within the span; at most RING_ENDS_MAX of them end the ring."""
    kinds, weights = list(_KINDS), np.array(list(_KINDS.values()))
    faults: list[Fault] = []
    for _ in range(int(rng.integers(1, FAULTS_MAX + 1))):
        kind = kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))]
        fault = _fault(rng, kind, span_ns)
        if kind.ends_the_ring and sum(other.kind.ends_the_ring for other in faults) == RING_ENDS_MAX:
            continue
        faults.append(fault)
    return merged(tuple(faults))


def draw_more(rng: np.random.Generator, span_ns: int) -> FaultPlan:
    """Perhaps a descriptor that is damaged on its way, perhaps a time limit for a while."""
    bad = Fault(_moment_ns(rng, span_ns), FaultKind.BAD_DESCRIPTOR, size=int(rng.integers(DESCRIPTOR_BITS)))
    limit = Fault(
        _moment_ns(rng, span_ns), FaultKind.TIME_LIMIT, _window_ns(rng, span_ns), int(rng.integers(100, 5_000))
    )
    return tuple(fault for fault in (bad, limit) if rng.random() < _MORE_CHANCE)


def merged(*plans: FaultPlan) -> FaultPlan:
    """All faults in the order of time."""
    return tuple(sorted((fault for plan in plans for fault in plan), key=lambda fault: fault.at_ns))


def _moment_ns(rng: np.random.Generator, span_ns: int) -> int:
    return int(rng.uniform(0.02, 0.9) * span_ns)


def _window_ns(rng: np.random.Generator, span_ns: int) -> int:
    return int(rng.uniform(0.05, 0.3) * span_ns)


def _fault(rng: np.random.Generator, kind: FaultKind, span_ns: int) -> Fault:
    at_ns, window_ns = _moment_ns(rng, span_ns), _window_ns(rng, span_ns)
    if kind is FaultKind.FRONTEND_CRASH:
        down_ns = int(rng.uniform(0.0001, 0.12) * span_ns)
        moment = list(Moment)[int(rng.choice(3, p=(0.3, 0.45, 0.25)))]
        return Fault(at_ns, kind, down_ns, int(rng.integers(0, 101)), moment)
    if kind in (FaultKind.STALE_READS, FaultKind.REORDERED_READS):
        return Fault(at_ns, kind, window_ns, int(rng.integers(5, 1000)))
    if kind is FaultKind.SLOW_GRAPHS:
        return Fault(at_ns, kind, window_ns, int(rng.integers(2, 9)))
    if kind is FaultKind.CANCEL_STORM:
        return Fault(at_ns, kind, size=int(rng.integers(20, 101)))
    return Fault(at_ns, kind)


def _load(rng: np.random.Generator, shape: Shape, span_ns: int) -> tuple[Requests, I64]:
    few = shape is Shape.SLOTS
    count = SLOT_COUNT + int(rng.integers(600, 900)) if few else int(rng.integers(20, 140))
    arrival = np.sort(_arrivals(rng, shape, count, span_ns))
    probes = np.sort(rng.uniform(_LATER, _LATER + 0.1, PROBE_COUNT) * span_ns)
    prompt = rng.integers(1, (8 if few else PROMPT_TOKENS_MAX) + 1, count + PROBE_COUNT)
    output = rng.integers(1, (3 if few else OUTPUT_TOKENS_MAX) + 1, count + PROBE_COUNT)
    patience = np.rint(rng.exponential(0.05 * span_ns, count + PROBE_COUNT)).astype(np.int64)
    patience[rng.random(count + PROBE_COUNT) >= (_IMPATIENT_OF_MANY if few else _IMPATIENT)] = NEVER_NS
    patience[count:] = NEVER_NS
    arrivals = np.rint(np.concatenate((arrival, probes))).astype(np.int64)
    return synthetic(arrivals, prompt.astype(np.int64), output.astype(np.int64)), patience


def _arrivals(rng: np.random.Generator, shape: Shape, count: int, span_ns: int) -> np.ndarray[Any, Any]:
    if shape is Shape.SLOTS:
        return rng.uniform(0, 0.01, count) * span_ns
    if shape is Shape.BURSTS:
        bursts = rng.uniform(0, 0.9, int(rng.integers(1, 6))) * span_ns
        return rng.choice(bursts, count) + rng.uniform(0, 0.002, count) * span_ns
    return rng.uniform(0, 0.95, count) * span_ns


def _document(rng: np.random.Generator, seed: int, shape: Shape, count: int) -> dict[str, Any]:
    few = shape is Shape.SLOTS
    return {
        "name": f"drill {seed}",
        "seed": seed,
        "model": {"profile": "smollm2-135m"},
        "gpu": {"profile": "h200"},
        "workload": {
            "requests": count,
            "arrivals": {"kind": "all-at-once"},
            "lengths": {"kind": "fixed", "prompt_tokens": 1, "output_tokens": 1},
        },
        "limits": {
            "batch_max": 64 if few else int(rng.integers(1, 17)),
            "prefill_batch_max": 8 if few else int(rng.integers(1, 5)),
            "context_tokens": 192,
            "prompt_capacity_tokens": 128,
            "output_capacity_tokens": 48,
            "window": int(rng.choice([3, 8, 120])),
        },
        "frontend": {
            "poll_min_ns": 20_000,
            "poll_max_ns": 100_000,
            "token_reads_per_poll_max": int(rng.choice([3, 512])),
            "submissions_per_burst_max": 64 if few else int(rng.choice([1, 8, 64])),
        },
        "run": {"mode": "step"},
    }
