"""What a host does to a thread that keeps it busy, from probes: how it shares its cores, and how work slows down."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blink.common.events import GraphKind
from blink.common.results import I64
from blink.common.steps import StepTable

TURN_NS = 1_000_000
"""A shorter gap is no turn of another thread: an interrupt, or the kernel's own work."""


@dataclass(frozen=True, slots=True)
class HostShare:
    """`slice_ns`: median turn of another thread; `competitors`: mean number of other threads that the scheduler's
    thread shares its core with; `crowding`: that over an even spread; `imbalance`: half the share of time with fewer or
    more than the mean's neighbours; `inflation`: of work between turns; `noise_per_s` and `noise_ns`: short gaps of a
    thread that is alone.
    """

    slice_ns: float
    competitors: float
    crowding: float
    imbalance: float
    inflation: dict[str, float]
    samples: int
    noise_per_s: float
    noise_ns: float


def host_share(
    probes: Sequence[Mapping[str, Any]],
    alone: Sequence[Mapping[str, Any]],
    loops: Sequence[StepTable],
    busy: int,
    core_count: int,
) -> HostShare:
    """From probes beside `busy` processes on `core_count` cores, probes alone, and runs of the scheduler beside them.

    Competitors are those of the scheduler's own thread, second by second, where it ran: the system has had time to move
    a thread that lives long, a fresh process stands where it began.
    """
    gaps = np.concatenate([_turns(probe) for probe in probes])
    slice_ns = _slice_ns(gaps)
    rivals = np.array([found for run in loops for found in _rivals_in(run, slice_ns)])
    if not rivals.size:
        rivals = np.array([_rivals_of(probe) for probe in probes])
    mean = float(rivals.mean())
    outside = (np.rint(rivals) < math.floor(mean)) | (np.rint(rivals) > math.ceil(mean))
    imbalance = min(0.5, float(np.mean(outside)) / 2.0)
    even = max(0.0, busy - (core_count - 1)) / core_count
    inflation = {name: max(1.0, _median(probes, name) / _median(alone, name)) for name in alone[0]["stretches_ns"]}
    short = np.concatenate([_lengths(probe) for probe in alone])
    short = short[short <= TURN_NS]
    rate = short.size / sum(probe["seconds"] for probe in alone)
    crowding = mean / even if even else 1.0
    noise_ns = float(short.mean()) if short.size else 0.0
    return HostShare(slice_ns, mean, crowding, imbalance, inflation, int(rivals.size), rate, noise_ns)


def _lengths(probe: Mapping[str, Any]) -> I64:
    lengths: I64 = np.array(probe["gaps_ns"], np.int64).reshape(-1, 2)[:, 1]
    return lengths


def _turns(probe: Mapping[str, Any]) -> I64:
    lengths = _lengths(probe)
    return lengths[lengths > TURN_NS]


def _slice_ns(gaps: I64) -> float:
    """The length of one turn: gaps are whole numbers of it, and the shortest are one."""
    if not gaps.size:
        return 0.0
    shortest = float(np.percentile(gaps, 5))
    return float(np.median(gaps / np.maximum(1, np.rint(gaps / shortest))))


def _rivals_of(probe: Mapping[str, Any]) -> float:
    """Time of others over time of its own."""
    off = float(_turns(probe).sum())
    on = probe["seconds"] * 1e9 - off
    return off / on if on > 0 else 0.0


def _rivals_in(run: StepTable, slice_ns: float) -> list[float]:
    """Of each second of a run: the median decode step, in slices, less its own."""
    decode = run.of_kind(GraphKind.DECODE)
    if len(decode) < 2 or not slice_ns:
        return []
    period = np.diff(decode.launched_ns)[np.diff(decode.step) == 1]
    at = decode.launched_ns[:-1][np.diff(decode.step) == 1]
    seconds = (at - at[0]) // 1_000_000_000
    return [max(0.0, float(np.median(period[seconds == second])) / slice_ns - 1.0) for second in np.unique(seconds)]


def _median(probes: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(np.median(np.concatenate([np.array(probe["stretches_ns"][name], np.float64) for probe in probes])))
