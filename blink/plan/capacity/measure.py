"""What one run of a fleet says about the objectives, over the requests of its window."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common import metrics
from blink.common.config import Scenario
from blink.common.distribution import Distribution
from blink.common.metrics import Slo
from blink.common.results import I64, Outcome, RunResult
from blink.common.summary import WAITS
from blink.common.units import NS_PER_MS, NS_PER_S
from blink.plan.capacity.question import Goodput, Objectives
from blink.plan.point import Point
from blink.plan.reproduce.window import delivered_tokens
from blink.plan.sweep.point import asked_tokens, window_of
from blink.plan.sweep.question import SERVICEABLE_SHARE
from blink.sim.fleet.run import FleetModel
from blink.workload.requests import NO_PARENT, Requests

P99 = 990
LOOK_NS = 2 * NS_PER_S
"""How often it is looked whether a run can still meet its objectives."""
STOPPED = "stopped"
KEEPS_UP = "served_share"


@dataclass(frozen=True, slots=True)
class Objective:
    """One objective: the figure it is about, its bound, and whether the figure must be at least that, or at most."""

    name: str
    says: str
    unit: str
    bound: float
    at_least: bool = False

    def met(self, value: float | None) -> bool:
        """Whether a figure keeps it; none does not."""
        if value is None:
            return False
        return value >= self.bound if self.at_least else value <= self.bound

    def margin(self, value: float) -> float:
        """By which share of the bound it is kept; negative if it is missed."""
        return value / self.bound - 1.0 if self.at_least else 1.0 - value / self.bound

    def badness(self, value: float) -> float:
        """What there should be little of: the figure, or the share that is missing."""
        return 1.0 - value if self.at_least else value


def objectives_of(slo: Objectives) -> list[Objective]:
    """Those of the question. Without one on the first token a queue could grow unseen: then a fleet must keep up."""
    found = []
    if slo.p99_ttft_ms is not None:
        found.append(Objective("p99_ttft_ms", "P99 TTFT", "ms", slo.p99_ttft_ms))
    if slo.p99_tpot_ms is not None:
        found.append(Objective("p99_tpot_ms", "P99 TPOT", "ms", slo.p99_tpot_ms))
    if slo.goodput is not None:
        found.append(Objective("goodput_share", "goodput", "", slo.goodput.share, at_least=True))
    if first_token_bound(slo)[0] is None:
        found.append(Objective(KEEPS_UP, "delivered of what was asked", "", SERVICEABLE_SHARE, at_least=True))
    return found


@dataclass(frozen=True, slots=True)
class CapacityPoint(Point):
    """One run of a fleet."""

    slo: Objectives | None = None
    whole: bool = False  # run to the end, however hopeless

    def simulate(self, scenario: Scenario, requests: Requests, stop: Callable[[], bool] | None) -> RunResult:
        """The run, ended as soon as more requests have missed their first token's time than may."""
        fleet = FleetModel(scenario, requests)
        hopeless = Hopeless(self, scenario, requests, fleet)
        partial = fleet.run(None, lambda: (not self.whole and hopeless()) or bool(stop and stop()))
        result = fleet.result(partial and not hopeless.found)
        if hopeless.found:
            result.notes.append(hopeless.sentence)
        return result

    def summarize(self, result: RunResult, requests: Requests) -> dict[str, Any]:
        """Figures of the window, the fleet's accounts, what it waited for."""
        rows = result.requests
        begin, end = window_of(self, rows)
        inside = (rows["sent_ns"] >= begin) & (rows["sent_ns"] < end)
        sent = {name: column[inside] for name, column in rows.items()}
        done = metrics.completed(sent)
        delivered = delivered_tokens(rows, end) - delivered_tokens(rows, begin)
        asked = asked_tokens(self, sent, requests)
        span, end_ns = result.scheduler_ns, begin + result.duration_ns
        stopped = bool(result.notes) and result.notes[-1].startswith(STOPPED)
        if stopped:  # who has waited so long without a token waits at least that long
            waits = np.where(sent["first_token_ns"] >= 0, sent["ttft_ns"], np.maximum(end_ns - sent["sent_ns"], 0))
        else:
            waits = metrics.ttft_ns(done)
        goodput = self.slo.goodput if self.slo else None
        return {
            "stopped": stopped,
            "requests": len(sent["sent_ns"]),
            "p99_ttft_ms": _ms(Distribution.of(waits).percentile(P99)),
            "p99_tpot_ms": _ms(Distribution.of(metrics.tpot_ns(done)).percentile(P99)),
            "median_ttft_ms": _ms(Distribution.of(metrics.ttft_ns(done)).percentile(500)),
            "median_tpot_ms": _ms(Distribution.of(metrics.tpot_ns(done)).percentile(500)),
            "goodput_share": _share_within(goodput, sent, done),
            "within": _within(self.slo, sent, waits, done),
            "under_way": _under_way(sent, begin, end, end_ns),
            "started": result.fleet.get("started"),
            KEEPS_UP: delivered / asked if asked else None,
            "output_tokens_per_s": delivered * NS_PER_S / (end - begin) if end > begin else None,
            "wall_kw": result.accounts.get("wall_w", 0.0) / 1000.0,
            "gpu_busy": result.accounts.get("gpu_busy"),
            "gpu_memory": result.accounts.get("gpu_memory_utilization"),
            "gpu_compute": result.accounts.get("gpu_compute_utilization"),
            "waits": {name: getattr(result.scheduler, counter) / span for name, (counter, _) in WAITS.items()},
            "loop": result.scheduler.loop_ns / span,
            "slots_in_use_max": result.scheduler.slots_in_use_max,
            "notes": list(result.notes),
        }


class Hopeless:
    """Whether a run has missed its objective on the first token already; asked now and then, while it runs."""

    def __init__(self, point: CapacityPoint, scenario: Scenario, requests: Requests, fleet: FleetModel) -> None:
        self._fleet, self.found, self.sentence = fleet, False, ""
        sent = requests.arrival_ns
        begin, end = window_of(point, {"sent_ns": sent})
        judged = np.flatnonzero((sent >= begin) & (sent < end) & (requests.parent == NO_PARENT))
        self._sent, self._judged = sent[judged], judged.tolist()
        bound_ms, share = first_token_bound(point.slo)
        cancels = scenario.workload.cancel.fraction > 0  # who leaves is judged by nobody
        self._bound_ns = -1 if bound_ms is None or cancels else round(bound_ms * NS_PER_MS)
        self._may_miss = may_miss(share, len(judged))
        self._next_ns = begin

    def __call__(self) -> bool:
        """True once more have missed it than may."""
        now = self._fleet.now_ns
        if self._bound_ns < 0 or now < self._next_ns:
            return False
        self._next_ns = now + LOOK_NS
        rows = self._fleet.rows
        # A first token is known of at the latest when it is read; a moment is left for its way to the client.
        due = int(np.searchsorted(self._sent, now - self._bound_ns - LOOK_NS, side="right"))
        missed = 0
        for index in self._judged[:due]:
            row = rows[index]
            late = row.first_token_ns < 0 or row.first_token_ns - row.sent_ns > self._bound_ns
            missed += late and row.outcome is not Outcome.REFUSED
        if missed > self._may_miss:
            self.found = True
            self.sentence = (
                f"{STOPPED} after {now / NS_PER_S:.0f} s: {missed} first tokens were late, {self._may_miss} may"
            )
        return self.found


def may_miss(share: float | None, count: int) -> int:
    """Of `count` requests, how many may miss a bound that a share of them must keep; None: its P99 must."""
    if share is not None:
        return math.floor((1 - share) * count)
    # The percentile lies between two ranks: at most those above the lower one are beyond it.
    return max(0, count - 1 - math.floor((count - 1) * P99 / 1000))


def first_token_bound(slo: Objectives | None) -> tuple[float | None, float | None]:
    """The bound on TTFT in ms, and the share that must keep it; None for P99."""
    if slo is not None and slo.p99_ttft_ms is not None:
        return slo.p99_ttft_ms, None
    if slo is not None and slo.goodput is not None and slo.goodput.ttft_ms is not None:
        return slo.goodput.ttft_ms, slo.goodput.share
    return None, None


def _share_within(goodput: Goodput | None, sent: dict[str, I64], done: dict[str, I64]) -> float | None:
    count = len(sent["sent_ns"])
    if goodput is None or not count:
        return None
    within = metrics.meets(done, Slo(goodput.ttft_ms, goodput.tpot_ms, goodput.e2e_ms))
    return float(np.count_nonzero(within)) / count


def _within(slo: Objectives | None, sent: dict[str, I64], waits: I64, done: dict[str, I64]) -> dict[str, float]:
    """By objective: which share of the requests kept its bound; of times, of those that have such a time."""
    found = {}
    if slo is not None and slo.p99_ttft_ms is not None:
        found["p99_ttft_ms"] = _share_below(waits, slo.p99_ttft_ms)
    if slo is not None and slo.p99_tpot_ms is not None:
        found["p99_tpot_ms"] = _share_below(metrics.tpot_ns(done), slo.p99_tpot_ms)
    share = _share_within(slo.goodput if slo else None, sent, done)
    return found if share is None else {**found, "goodput_share": share}


def _share_below(values_ns: NDArray[Any], bound_ms: float) -> float:
    return float(np.count_nonzero(values_ns <= bound_ms * NS_PER_MS)) / len(values_ns) if len(values_ns) else 1.0


def _under_way(sent: dict[str, I64], begin: int, end: int, last: int) -> float:
    """Requests under way on average, by Little's law: those that are sent, times for how long they stay."""
    over = np.where(sent["last_token_ns"] >= 0, sent["last_token_ns"], last)
    return float(np.maximum(over - sent["sent_ns"], 0).sum()) / (end - begin) if end > begin else 0.0


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS
