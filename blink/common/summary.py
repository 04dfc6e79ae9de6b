"""summary.json: a run in one dict, under the names that serving benchmarks use, and in `blink` what else is known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from blink.common import metrics
from blink.common.distribution import PERCENTILES, Distribution
from blink.common.results import I64, TTFT_PARTS, Outcome, RunResult, SchedulerCounters
from blink.common.states import SlotStatus
from blink.common.units import NS_PER_MS, NS_PER_S

WAITS = {
    "batch": ("wait_batch_ns", "a place in the batch"),
    "kv": ("wait_kv_ns", "KV blocks"),
    "gpu": ("wait_gpu_ns", "the GPU, behind other prefills and decode steps,"),
    "window": ("wait_window_ns", "launches in the window"),
    "slot": ("wait_slot_ns", "a slot of the ring"),
}
"""What a request can wait for: the counter of SchedulerCounters, and the words of a report."""

_NUMBER = re.compile(r"\d+")

WAIT_SHARE_MIN = 0.01
"""Below this share of the run, waiting is not worth a sentence of blame."""


def summarize(result: RunResult) -> dict[str, Any]:
    """Every figure of the run as plain data in a fixed order; no wall clock, so the same run gives the same bytes.

    The top level has the names of vLLM's serving benchmark, latencies in ms over completed requests, None where there
    is no sample. `blink` holds outcomes, parts of TTFT, occupancy, launches, padding, shares of time, what limited it.
    """
    done = metrics.completed(result.requests)
    slo = metrics.Slo(**result.scenario.get("slo", {}))
    count, duration_ns = len(done["sent_ns"]), result.duration_ns
    tokens_in, tokens_out = int(done["prompt_tokens"].sum()), int(done["output_tokens"].sum())
    summary: dict[str, Any] = {
        **_identity(result),
        **_load(result),
        "duration": duration_ns / NS_PER_S,
        "completed": count,
        "failed": len(result.requests["sent_ns"]) - count,
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": metrics.per_second(count, duration_ns),
        "request_goodput": metrics.goodput(result.requests, slo, duration_ns),
        "output_throughput": metrics.per_second(tokens_out, duration_ns),
        "total_token_throughput": metrics.per_second(tokens_in + tokens_out, duration_ns),
        "max_concurrent_requests": metrics.concurrent_max(result.requests),
    }
    for name, distribution in latencies(result).items():
        summary.update(_in_ms(name, distribution))
    summary["blink"] = _blink(result, done)
    return summary


def latencies(result: RunResult) -> dict[str, Distribution]:
    """The four latency distributions in ns: TTFT, TPOT and E2E over completed requests, ITL over all gaps."""
    done = metrics.completed(result.requests)
    return {
        "ttft": Distribution.of(metrics.ttft_ns(done)),
        "tpot": Distribution.of(metrics.tpot_ns(done)),
        "itl": Distribution.of_weighted(result.itl),
        "e2el": Distribution.of(metrics.e2e_ns(done)),
    }


def _identity(result: RunResult) -> dict[str, Any]:
    scenario = result.scenario
    model = scenario.get("model", {})
    return {
        "backend": scenario.get("system", {}).get("kind", "blink"),
        "label": scenario.get("name"),
        "model_id": model.get("profile") or model.get("hf_config"),
    }


def _load(result: RunResult) -> dict[str, Any]:
    """The offered load: as configured where the scenario draws arrivals, else as it was sent."""
    workload = result.scenario.get("workload", {})
    arrivals = workload.get("arrivals", {})
    rate = arrivals.get("rate")
    return {
        "num_prompts": len(result.requests["sent_ns"]),
        "request_rate": rate if rate is not None else metrics.offered_rate(result.requests),
        "burstiness": arrivals.get("burstiness", 1.0 if arrivals.get("kind") == "poisson" else None),
        "max_concurrency": arrivals.get("concurrency"),
    }


def _in_ms(name: str, distribution: Distribution) -> dict[str, float | None]:
    median = distribution.percentile(500)
    figures = {"mean": distribution.mean(), "median": median, "std": distribution.std()}
    figures |= {label: distribution.percentile(thousandths) for label, thousandths in PERCENTILES.items()}
    return {f"{label}_{name}_ms": _ms(value) for label, value in figures.items()}


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS


def _blink(result: RunResult, done: dict[str, I64]) -> dict[str, Any]:
    scheduler, duration_ns = result.scheduler, result.scheduler_ns
    return {
        "seed": result.scenario.get("seed"),
        "partial": result.partial,
        "outcomes": {
            outcome.label: int(np.count_nonzero(result.requests["outcome"] == outcome)) for outcome in Outcome
        },
        "statuses": _statuses(result),
        "refusals": refusal_reasons(result.refusals.values()),
        "itl_count": Distribution.of_weighted(result.itl).count,
        "ttft_parts_mean_ms": {
            name.removesuffix("_ns"): _ms(Distribution.of(done[name][done["first_token_ns"] >= 0]).mean())
            for name in TTFT_PARTS
        },
        "batch": _occupancy(scheduler.batch_ns, scheduler.batch_max, scheduler.batch_limit, duration_ns),
        "kv_blocks": _occupancy(scheduler.kv_block_ns, scheduler.kv_blocks_max, scheduler.kv_blocks_total, duration_ns),
        "slots_in_use_max": scheduler.slots_in_use_max,
        "decode_launches": scheduler.decode_launches,
        "prefill_launches": scheduler.prefill_launches,
        "relaunches": scheduler.relaunches,
        "padding_share": {
            "decode_rows": _padding(scheduler.padded_decode_rows, scheduler.decode_rows),
            "prefill_tokens": _padding(scheduler.padded_prefill_tokens, scheduler.prefill_tokens),
        },
        "time_share": _time_share(scheduler, duration_ns),
        "wait_share": {name: _share(getattr(scheduler, counter), duration_ns) for name, (counter, _) in WAITS.items()},
        "limited_by": limited_by(scheduler, duration_ns),
        "accounts": accounts(result, done),
        "notes": list(result.notes),
        "counters": dict(sorted(result.counters.items())),
        **({"fleet": result.fleet} if result.fleet else {}),
    }


def _time_share(scheduler: SchedulerCounters, duration_ns: int) -> dict[str, float | None]:
    """Of the run. Idle is the rest: a scheduler is there before the first request and after the last one, too."""
    work = {name: getattr(scheduler, f"{name}_ns") for name in ("decode", "prefill", "loop")}
    work["idle"] = max(0, duration_ns - sum(work.values()))
    return {name: _share(spent, duration_ns) for name, spent in work.items()}


def refusal_reasons(reasons: Iterable[str]) -> dict[str, int]:
    """Reason -> number of requests. Reasons that differ in their numbers alone are one, with the numbers' range."""
    alike: dict[str, list[list[int]]] = {}
    for reason in sorted(reasons):
        numbers = [int(number) for number in _NUMBER.findall(reason)]
        alike.setdefault(_NUMBER.sub("\0", reason), []).append(numbers)
    counts = {}
    for form, rows in alike.items():
        spans = iter(
            [
                f"{min(column)}" + (f" to {max(column)}" if len(set(column)) > 1 else "")
                for column in zip(*rows, strict=True)
            ]
        )
        counts["".join(next(spans) if part == "\0" else part for part in re.split("(\0)", form))] = len(rows)
    return counts


def accounts(result: RunResult, done: dict[str, I64]) -> dict[str, float | None]:
    """Power, energy and cost of the run, and per output token and request completed; empty if nobody accounted."""
    if not result.accounts:
        return {}
    requests, tokens = len(done["sent_ns"]), int(done["output_tokens"].sum())
    joules, dollars = result.accounts["energy_j"], result.accounts["cost_usd"]
    return {
        **result.accounts,
        "energy_mj_per_token": 1e3 * joules / tokens if tokens else None,
        "energy_j_per_request": joules / requests if requests else None,
        "cost_usd_per_million_tokens": 1e6 * dollars / tokens if tokens else None,
    }


def _statuses(result: RunResult) -> dict[str, int]:
    counts = {status.label: int(np.count_nonzero(result.requests["status"] == status)) for status in SlotStatus}
    return {label: count for label, count in counts.items() if count}


def _occupancy(integral_ns: int, most: int, limit: int, duration_ns: int) -> dict[str, float | int | None]:
    """Mean over the run (integral over time / duration), maximum, limit, and the mean's share of the limit."""
    mean = integral_ns / duration_ns if duration_ns > 0 else None
    return {"mean": mean, "max": most, "limit": limit, "share": _share(integral_ns, limit * duration_ns)}


def _padding(padded: int, used: int) -> float | None:
    """Share of padding in all that was launched."""
    return _share(padded, padded + used)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None


def limited_by(scheduler: SchedulerCounters, duration_ns: int) -> dict[str, Any]:
    """Which wait lasted longest, with its share of the run, in a sentence; name None if no wait reached 1 %."""
    waits = {name: getattr(scheduler, counter) for name, (counter, _) in WAITS.items()}
    name = max(waits, key=lambda key: int(waits[key]))
    share = _share(waits[name], duration_ns) or 0.0
    if share < WAIT_SHARE_MIN:
        return {
            "name": None,
            "share": share,
            "sentence": "Nothing: no wait for a resource lasted 1% of the run.",
        }
    return {
        "name": name,
        "share": share,
        "sentence": f"Requests waited for {WAITS[name][1]} during {share:.0%} of the run.",
    }
