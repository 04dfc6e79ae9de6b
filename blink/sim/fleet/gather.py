"""One result of all replicas: requests as their clients saw them, counters added up, accounts of the whole fleet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from blink.common.config import Scenario
from blink.common.ranges import range_notes
from blink.common.request import Request, request_table
from blink.common.results import RunResult, SchedulerCounters, WeightedValues
from blink.common.units import NS_PER_S
from blink.perf.energy import Part, fleet_account
from blink.perf.placement import Placement
from blink.perf.step import StepModel
from blink.sim.fleet.replica import Replica

MAXIMA = ("batch_max", "kv_blocks_max", "kv_blocks_total", "batch_limit", "slots_in_use_max")
"""Counters that are not added up: the most of any replica."""


def gather(
    scenario: Scenario,
    step: StepModel,
    rows: list[Request],
    replicas: Sequence[Replica],
    partial: bool,
    more_gaps: Sequence[WeightedValues] = (),
) -> RunResult:
    """The run as a whole; refusals of the replicas alone, and notes on the ranges of profiles."""
    parts = [replica.result(partial) for replica in replicas]
    table = request_table(rows)
    sent = table["sent_ns"][table["sent_ns"] >= 0]
    start = int(sent.min()) if sent.size else 0
    end = max([int(sent.max(initial=0)), int(table["last_token_ns"].max(initial=0)), *map(_end_ns, parts)])
    paid = [replica.paid_ns(start, end) for replica in replicas]
    result = RunResult(
        scenario=scenario.resolved(),
        requests=table,
        refusals={key: reason for part in parts for key, reason in part.refusals.items()},
        itl=_gaps([*(part.itl for part in parts), *more_gaps]),
        scheduler=_counters(parts),
        duration_ns=end - start,
        partial=partial,
        notes=range_notes(step.range_violations(_observed(replicas))),
        counters=_sum(part.counters for part in parts),
        replica_ns=sum(paid),
    )
    result.accounts = fleet_account(
        scenario, [Part(part, paid_ns) for part, paid_ns in zip(parts, paid, strict=True)], end - start
    )
    result.fleet = {
        "router": scenario.fleet.router if scenario.fleet else None,
        "hosts": Placement.of(scenario).hosts(_at_once(replicas, start, end)),
        "replicas": [_about(replica, part, ns) for replica, part, ns in zip(replicas, parts, paid, strict=True)],
    }
    return result


def _at_once(replicas: Sequence[Replica], start_ns: int, end_ns: int) -> int:
    """Most replicas that were paid for at one moment."""
    spans = [
        (max(one.since_ns, start_ns), one.until_ns if one.until_ns >= 0 else end_ns + 1)
        for one in replicas
        if one.since_ns <= end_ns
    ]
    return max((sum(begin <= moment < until for begin, until in spans) for moment, _ in spans), default=1) or 1


def _end_ns(part: RunResult) -> int:
    """When a replica did its last thing."""
    sent = part.requests["sent_ns"]
    return (int(sent.min()) if sent.size else 0) + part.duration_ns


def _about(replica: Replica, part: RunResult, paid_ns: int) -> dict[str, Any]:
    busy = part.scheduler.decode_ns + part.scheduler.prefill_ns
    return {
        "index": replica.index,
        "state": replica.state.value,
        "completed": replica.served,
        "under_way_max": replica.under_way_max,
        "paid_s": paid_ns / NS_PER_S,
        "gpu_busy": busy / paid_ns if paid_ns else None,
    }


def _counters(parts: Sequence[RunResult]) -> SchedulerCounters:
    found = SchedulerCounters()
    for field in fields(SchedulerCounters):
        values = [getattr(part.scheduler, field.name) for part in parts]
        setattr(found, field.name, max(values) if field.name in MAXIMA else sum(values))
    return found


def _sum(all_counters: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for counters in all_counters:
        total.update(counters)
    return dict(total)


def _gaps(parts: Sequence[WeightedValues]) -> WeightedValues:
    values = np.concatenate([part.values for part in parts])
    weights = np.concatenate([part.weights for part in parts])
    distinct, inverse = np.unique(values, return_inverse=True)
    counts = np.zeros(distinct.size, np.int64)
    np.add.at(counts, inverse, weights)
    return WeightedValues(distinct, counts)


def _observed(replicas: Sequence[Replica]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for replica in replicas:
        for name, (low, high) in replica.observed().items():
            known = found.get(name, (low, high))
            found[name] = (min(low, known[0]), max(high, known[1]))
    return found
