"""How many requests decode and how many wait, over time; and how loaded the system was when each request came."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blink.common.results import I64
from blink.twin.observed import ObservedRun

GRID = 400
REGIMES = ("below half", "to saturation", "beyond")
"""Requests under way, over the places of the batch, when a request came: under a half, up to all, more than all."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Mean number over the time in which both runs serve, measured and predicted, and the mean distance over time."""

    what: str
    real: float
    sim: float
    apart: float


def occupancies(real: ObservedRun, sim: ObservedRun) -> list[Occupancy]:
    """Of requests that have their first token (the batch), and of those that wait for it (the queue)."""
    start = min(int(run.sent_ns.min()) for run in (real, sim))
    end = min(int(run.last_ns.max()) for run in (real, sim))
    grid = np.linspace(start, end, GRID + 2)[1:-1].astype(np.int64)
    found = []
    for what, begin, finish in (("batch", "first_ns", "last_ns"), ("queue", "sent_ns", "first_ns")):
        lines = [_under_way(grid, getattr(run, begin), getattr(run, finish)) for run in (real, sim)]
        apart = float(np.abs(lines[0] - lines[1]).mean())
        found.append(Occupancy(what, float(lines[0].mean()), float(lines[1].mean()), apart))
    return found


def regimes(real: ObservedRun, limit: int | None) -> NDArray[np.int64]:
    """For each request of a measured run, the index into REGIMES.

    Places are the `limit` of sequences, or as many as ran together where memory kept more from it: where at least as
    many waited as ran. `limit` None: the most requests that were ever under way, and nothing is beyond.
    """
    under_way = _under_way(real.sent_ns, real.sent_ns, real.last_ns)
    places = limit or int(under_way.max(initial=1))
    running = _under_way(real.sent_ns, real.first_ns, real.last_ns)
    crowded = (running > 0) & (under_way >= 2 * running) & (under_way >= places / 4)
    if limit and crowded.any():
        places = min(places, max(1, int(running[crowded].max())))
    share = under_way / places
    return np.where(share <= 0.5, 0, np.where(share <= 1.0, 1, 2)).astype(np.int64)


def _under_way(times: I64, begin: I64, end: I64) -> NDArray[np.float64]:
    """How many intervals hold each time; one that begins then counts, one that ends then does not."""
    begun = np.searchsorted(np.sort(begin), times, side="right")
    ended = np.searchsorted(np.sort(end), times, side="right")
    return (begun - ended).astype(np.float64)
