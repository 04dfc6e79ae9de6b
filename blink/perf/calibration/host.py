"""What a host does to a thread that keeps it busy, from probes: how it shares its cores, and how work slows down.

Where threads never sleep, the system moves them between cores that have one more or one less, so that in time each has
been everywhere: the others on a thread's core are those of any busy thread. All of them are counted, since one thread
for some seconds is a few draws. A thread that starts is put where fewest run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common.events import GraphKind
from blink.common.results import I64
from blink.common.steps import StepTable
from blink.common.units import NS_PER_S

STAY_NS = 2_000_000_000
LAG_S, STAY_BOUNDS_S = 0.5, (0.2, 60.0)
"""How long competitors stay where no placements were measured, and what a measured stay is kept within."""
PLACEMENT_PERIOD_S = 0.1
"""Between two samples of where threads run (blink.hw.measure.placement)."""
Floats = NDArray[np.float64]
TURN_NS = 1_000_000
"""A shorter gap is no turn of another thread: an interrupt, or the kernel's own work."""


@dataclass(frozen=True, slots=True)
class HostShare:
    """`slice_ns`: median turn of another thread; `competitors`: mean number of other threads on the core of one that
    never sleeps, `error` its standard error over sets of processes, `own` that of the scheduler's own thread by its
    steps; `crowding`: that over an even spread; `imbalance`: half the share of time with fewer or more than the mean's
    neighbours; `stay_ns`: for how long they stay; `inflation`: of work between turns; `noise_per_s` and `noise_ns`:
    short gaps of a thread that is alone.
    """

    slice_ns: float
    competitors: float
    error: float
    own: float
    stay_ns: float
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
    cores: Sequence[I64] = (),
) -> HostShare:
    """From probes beside `busy` processes on `core_count` cores, probes alone, and runs of the scheduler beside them.

    `cores`: of each set of processes, samples of the core of each thread (blink.hw.measure.placement). Without them
    competitors are those of the scheduler's own thread, second by second: the system has had time to move a thread that
    lives long, a fresh process stands where it began.
    """
    gaps = np.concatenate([_turns(probe) for probe in probes])
    slice_ns = _slice_ns(gaps)
    rivals = np.array([found for run in loops for found in _rivals_in(run, slice_ns)])
    if not rivals.size:
        rivals = np.array([_rivals_of(probe) for probe in probes])
    own, error, stay_ns = float(rivals.mean()), 0.0, float(STAY_NS)
    sets = [beside for beside in (_beside(table) for table in cores) if beside.size]
    if sets:
        rivals = np.concatenate([beside.ravel() for beside in sets])
        rivals = rivals[np.isfinite(rivals)]
        error = float(np.std([np.nanmean(beside) for beside in sets])) / math.sqrt(len(sets))
        stay_ns = _stay_s(sets) * NS_PER_S
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
    return HostShare(
        slice_ns, mean, error, own, stay_ns, crowding, imbalance, inflation, int(rivals.size), rate, noise_ns
    )


def _beside(table: I64) -> Floats:
    """Of samples of cores, one a row: the other threads on the core of each; nan for one that is nowhere."""
    if not table.size:
        return np.zeros((0, 0))
    there = table >= 0
    counts = np.zeros((len(table), int(table.max(initial=0)) + 1))
    np.add.at(counts, (np.nonzero(there)[0], table[there]), 1)
    found = np.take_along_axis(counts, np.maximum(table, 0), axis=1) - 1
    return np.where(there, found, np.nan)


def _stay_s(sets: Sequence[Floats]) -> float:
    """By how fast a thread's competitors are forgotten from one LAG_S to the next: samples stray for a moment, too."""
    mean = float(np.nanmean(np.concatenate([beside.ravel() for beside in sets])))

    def kept(seconds: float) -> float:
        lag = round(seconds / PLACEMENT_PERIOD_S)
        parts = [((one[:-lag] - mean) * (one[lag:] - mean)).ravel() for one in sets if len(one) > lag]
        return float(np.nanmean(np.concatenate(parts))) if parts else 0.0

    soon, later = kept(LAG_S), kept(2 * LAG_S)
    if later >= soon > 0:
        return STAY_BOUNDS_S[1]
    stay = LAG_S / math.log(soon / later) if later > 0 else LAG_S
    return min(max(stay, STAY_BOUNDS_S[0]), STAY_BOUNDS_S[1])


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
