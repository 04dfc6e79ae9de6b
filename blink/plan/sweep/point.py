"""A point of a sweep: what is kept of its run, beside its summary.

The window begins when a quarter of the time is over in which requests are sent, and ends with that time: a run's
beginning, which fills the batch, and its end, which drains it, belong to no load. What was asked for and what was
delivered are counted in the same window, over the same requests, so that the one over the other says whether the
system keeps up, also in a short run whose arrivals happen to be many or few.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from blink.common import metrics
from blink.common.errors import InputError
from blink.common.results import I64, Outcome, RunResult
from blink.common.summary import summarize
from blink.common.units import NS_PER_S, ns_from_s
from blink.plan.point import Point
from blink.plan.reproduce.window import delivered_tokens
from blink.plan.sweep.slo import SloClass
from blink.workload.build import output_tokens_asked
from blink.workload.requests import Requests

WARMUP_PARTS = 4
"""The first part of so many is warm-up."""


@dataclass(frozen=True, slots=True)
class SweepPoint(Point):
    """One run of a sweep, which tells what it delivered in its window and how many requests kept each objective."""

    classes: tuple[SloClass, ...] = ()

    def summarize(self, result: RunResult, requests: Requests) -> dict[str, Any]:
        """`summary` as of any run; `window`: its length and counts; `within`: class -> requests that kept it."""
        rows = result.requests
        begin, end = window_of(self, rows)
        inside = (rows["sent_ns"] >= begin) & (rows["sent_ns"] < end)
        sent = {name: column[inside] for name, column in rows.items()}
        done = metrics.completed(sent)
        return {
            "summary": summarize(result),
            "window": {
                "seconds": (end - begin) / NS_PER_S,
                "requests": len(sent["sent_ns"]),
                "asked_tokens": asked_tokens(self, sent, requests),
                "delivered_tokens": delivered_tokens(rows, end) - delivered_tokens(rows, begin),
            },
            "within": {one.name: int(np.count_nonzero(metrics.meets(done, one.slo))) for one in self.classes},
        }

    def refused(self, error: InputError) -> dict[str, Any]:
        """A combination that cannot run is a result too: the reason."""
        return {"error": " ".join(str(error).split())}


def window_of(point: Point, rows: dict[str, I64]) -> tuple[int, int]:
    """Begin and end of the window, from the times at which requests were sent."""
    sent = rows["sent_ns"][rows["sent_ns"] >= 0]
    if not len(sent):
        return 0, 0
    workload = point.scenario.workload
    start, last = int(sent.min()), int(sent.max())
    whole = workload.duration_s is not None and workload.requests is None and workload.trace is None
    end = start + ns_from_s(workload.duration_s or 0.0) if whole else last
    return start + (end - start) // WARMUP_PARTS, end


def asked_tokens(point: Point, sent: dict[str, I64], requests: Requests) -> int:
    """Output tokens of these requests, as many as the model will say; of those whose client left, what it still got."""
    asked = np.minimum(requests.output_tokens, output_tokens_asked(point.scenario, requests))
    each = asked[sent["request_id"]]
    return int(np.where(sent["outcome"] == Outcome.CANCELLED, sent["output_tokens"], each).sum())
