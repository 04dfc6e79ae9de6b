"""One group of measured runs against the predicted ones: every error, every distance, and what is outside tolerance."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from blink.common.checker import check_trace
from blink.common.errors import InputError
from blink.common.lifecycle import is_lifecycle
from blink.common.lifecycle_check import check_lifecycle
from blink.common.results import I64
from blink.common.trace import Trace, read_trace
from blink.common.units import NS_PER_MS, NS_PER_S
from blink.common.verdict import CONFORMS, Verdict
from blink.twin.decompose import Contribution, Decomposition, Steps, decompose
from blink.twin.observed import ObservedRun, is_run, matched, read_observed
from blink.twin.occupancy import REGIMES, Occupancy, occupancies, regimes
from blink.twin.statistics import Comparison, Floats, compare, compare_owned, ratio_interval
from blink.twin.tolerances import Tolerances

REGIME_MIN = 20
"""Requests of a regime below which no statistics are made of it."""
OFFENDERS = 5
STARTS_MIN = 3
"""Runs below which nothing is said of what they scatter by."""
_SEED = re.compile(r"-s(eed)?\d+$")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pair:
    """A measured and a predicted run, and rows of both that are the same request."""

    real: ObservedRun
    sim: ObservedRun
    mine: I64
    theirs: I64

    def latencies(self) -> dict[str, tuple[Floats, Floats, I64]]:
        """Name -> measured and predicted samples in ms of the same requests, and which rows of `mine` they are."""
        every = np.arange(len(self.mine))
        several = np.flatnonzero(self.real.output_tokens[self.mine] > 1)
        found = {}
        for name, rows in (("ttft", every), ("e2e", every), ("tpot", several)):
            samples = [_samples(name, run, at[rows]) for run, at in ((self.real, self.mine), (self.sim, self.theirs))]
            found[name] = (samples[0], samples[1], rows)
        return found


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens or requests a second, over all runs of a group."""

    what: str
    real: float
    sim: float

    @property
    def error(self) -> float:
        """Relative to the measurement."""
        return self.sim / self.real - 1.0 if self.real else 0.0


@dataclass(frozen=True, slots=True)
class Offender:
    """A request whose E2E the prediction misses most: its times in ms on both sides, by part where parts are known."""

    run: str
    key: int
    prompt_tokens: int
    output_tokens: int
    real: dict[str, float]
    sim: dict[str, float]


@dataclass(frozen=True, slots=True)
class Breach:
    """Something outside tolerance: what, by how much, and how much was allowed."""

    what: str
    error: float
    allowed: float
    part: str = ""  # of blink.twin.decompose.PARTS, if it is one
    interval: tuple[float, float] | None = None  # where what runs scatter by counts

    @property
    def excused(self) -> bool:
        """Whether the interval reaches what is allowed, so that nothing is said against the prediction."""
        return self.interval is not None and self.interval[0] <= self.allowed and self.interval[1] >= -self.allowed


@dataclass(slots=True)
class Validation:
    """What came of a group of pairs. `latencies`: by regime, "all" first, and name."""

    name: str
    pairs: list[Pair]
    left_out: int
    latencies: dict[str, dict[str, Comparison]]
    gaps: dict[str, tuple[float, float]]  # of ITL where only summaries know it: statistic -> measured, predicted
    throughputs: list[Throughput]
    occupancy: list[Occupancy]
    offenders: list[Offender]
    conformance: list[tuple[str, Verdict]]
    decompositions: list[tuple[str, Decomposition]]
    not_decomposed: str
    token_gaps: tuple[Floats, Floats]  # measured and predicted, ms, pooled; empty where a run has none
    no_token_gaps: tuple[str, ...]  # runs that have none
    breaches: list[Breach] = field(default_factory=list)
    excused: list[Breach] = field(default_factory=list)  # within tolerance only by what starts scatter by

    @property
    def passed(self) -> bool:
        """Whether everything that is judged is within tolerance."""
        return not self.breaches


def groups(real: Path, sim: Path) -> dict[str, list[tuple[Path, Path]]]:
    """Pairs of paths by group: one pair, or the runs of two folders by their names, seeds (`-s1`) of one load together.

    Raises InputError if the folders hold different runs.
    """
    if not (real.is_dir() and not is_run(real)):
        return {real.stem if real.is_file() else real.name: [(real, sim)]}
    names = sorted(folder.name for folder in real.iterdir() if is_run(folder))
    if not names:
        raise InputError(f"{real}: holds neither a run nor folders of runs")
    missing = [name for name in names if not is_run(sim / name)]
    if missing:
        raise InputError(f"{sim}: no run {missing[0]}; needed: the runs of {real}, by the same names")
    found: dict[str, list[tuple[Path, Path]]] = {}
    for name in names:
        found.setdefault(_SEED.sub("", name), []).append((real / name, sim / name))
    return found


def validate(
    name: str,
    paths: Sequence[tuple[Path, Path]],
    tolerances: Tolerances,
    *,
    skip: int = 0,
    say: Say = lambda text: None,
) -> Validation:
    """Compare one group. `skip`: requests at the beginning that take no part: the prediction was fitted to them."""
    pairs = [_pair(*both, skip) for both in paths]
    conformance, decompositions, why = [], [], ""
    for pair in pairs:
        for run in (pair.real, pair.sim):
            if run.trace_path:
                say(f"{name}: checking the trace of {run.name}")
                conformance.append(
                    (f"{run.name} ({'measured' if run is pair.real else 'twin'})", _check(run.trace_path))
                )
        why = _why_not(pair) or why
        if not why:
            say(f"{name}: which part errs in {pair.real.name}")
            decompositions.append((pair.real.name, decompose(*_parts(pair), _trace(pair))))
    say(f"{name}: statistics")
    gaps = _Gaps.of(pairs)
    found = Validation(
        name, pairs, sum(len(pair.real) + pair.real.left_out - len(pair.mine) for pair in pairs),
        _latencies(pairs, gaps, by_start=tolerances.by_start), _gaps(pairs), list(_throughputs(pairs)),
        _occupancy(pairs), list(_offenders(pairs)), conformance, decompositions, why, gaps.samples, gaps.missing,
    )  # fmt: skip
    judged = list(_judge(found, tolerances))
    found.breaches, found.excused = ([b for b in judged if b.excused is excused] for excused in (False, True))
    return found


def _pair(real_path: Path, sim_path: Path, skip: int) -> Pair:
    real, sim = read_observed(real_path), read_observed(sim_path)
    return Pair(real, sim, *matched(real, sim, skip))


def _parts(pair: Pair) -> tuple[ObservedRun, ObservedRun, I64, I64]:
    return pair.real, pair.sim, pair.mine, pair.theirs


def _trace(pair: Pair) -> Trace:
    assert pair.real.trace_path is not None
    return read_trace(pair.real.trace_path)


def _check(path: Path) -> Verdict:
    return check_lifecycle(path) if is_lifecycle(path) else check_trace(path)


def _why_not(pair: Pair) -> str:
    """Why the parts cannot be told apart, empty if they can."""
    if pair.real.trace_path is None:
        return "the measured run has no trace"
    if is_lifecycle(pair.real.trace_path):
        return "the measured run's trace is not one of slots: its engine is driven by the host"
    if pair.sim.scenario_path is None:
        return "the predicted run has no scenario"
    if pair.real.left_out or len(pair.mine) < len(pair.real):
        return "not every request of the measured run was completed and compared"
    return ""


# --- what there is to compare ---


def _samples(name: str, run: ObservedRun, rows: I64) -> Floats:
    if name == "ttft":
        return (run.first_ns[rows] - run.sent_ns[rows]) / NS_PER_MS
    if name == "e2e":
        return (run.last_ns[rows] - run.sent_ns[rows]) / NS_PER_MS
    return (run.last_ns[rows] - run.first_ns[rows]) / (run.output_tokens[rows] - 1) / NS_PER_MS


def _latencies(pairs: Sequence[Pair], gaps: _Gaps, *, by_start: bool) -> dict[str, dict[str, Comparison]]:
    """Pooled over the pairs; by regime of the measured run, too. `by_start`: intervals are of whole pairs."""
    samples: dict[str, list[tuple[Floats, Floats, I64, I64]]] = {}
    by_start = by_start and len(pairs) >= STARTS_MIN

    def compared(real: Floats, sim: Floats, start: I64) -> Comparison:
        if not by_start:
            return compare(real, sim)
        _, number = np.unique(start, return_inverse=True)
        return compare_owned(real, sim, number, number)

    for index, pair in enumerate(pairs):
        regime = regimes(pair.real, pair.real.limit or pair.sim.limit)[pair.mine]
        for name, (real, sim, rows) in pair.latencies().items():
            samples.setdefault(name, []).append((real, sim, regime[rows], np.full(len(real), index)))
    found: dict[str, dict[str, Comparison]] = {"all": {}}
    for name, parts in samples.items():
        real, sim = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        regime, start = (np.concatenate([part[which] for part in parts]) for which in (2, 3))
        if not real.size:
            continue
        found["all"][name] = compared(real, sim, start)
        for index, label in enumerate(REGIMES):
            chosen = regime == index
            if REGIME_MIN <= np.count_nonzero(chosen) < real.size:
                found.setdefault(label, {})[name] = compared(real[chosen], sim[chosen], start[chosen])
    for label, comparison in gaps.comparisons(list(found), by_start=by_start):
        found[label]["itl"] = comparison
    return found


@dataclass(frozen=True, slots=True)
class _Gaps:
    """Times between tokens of all pairs: measured and predicted ms, and of each the request, the pooled ones numbered.

    `regime` and `start` are of the requests. `missing` names runs that have none; then nothing else is there.
    """

    samples: tuple[Floats, Floats]
    owners: tuple[I64, I64]
    regime: I64
    start: I64
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, pairs: Sequence[Pair]) -> _Gaps:
        sides: tuple[list[Floats], list[Floats]] = ([], [])
        owners: tuple[list[I64], list[I64]] = ([], [])
        regime: list[I64] = []
        missing: list[str] = []
        for pair in pairs:
            before = sum(map(len, regime))
            for side, (run, rows) in enumerate(((pair.real, pair.mine), (pair.sim, pair.theirs))):
                gaps = run.gaps()
                if gaps is None:
                    missing.append(f"{run.name} ({'twin' if side else 'measured'})")
                    continue
                owner, gap_ns = gaps.of_rows(rows)
                owners[side].append(owner + before)
                sides[side].append(gap_ns / NS_PER_MS)
            regime.append(regimes(pair.real, pair.real.limit or pair.sim.limit)[pair.mine])
        start = np.repeat(np.arange(len(regime)), [len(part) for part in regime])
        if missing:
            nothing, none = np.zeros(0), np.zeros(0, np.int64)
            return cls((nothing, nothing), (none, none), np.concatenate(regime), start, tuple(missing))
        real, sim = (np.concatenate(part) for part in sides)
        mine, theirs = (np.concatenate(part) for part in owners)
        return cls((real, sim), (mine, theirs), np.concatenate(regime), start)

    def comparisons(self, labels: Iterable[str], *, by_start: bool) -> Iterator[tuple[str, Comparison]]:
        """By regime, where both sides have gaps."""
        for label in labels:
            chosen = self.regime >= 0 if label == "all" else self.regime == REGIMES.index(label)
            number = self.start if by_start else np.cumsum(chosen) - 1
            real, sim = (chosen[owner] for owner in self.owners)
            if real.any() and sim.any():
                mine, theirs = number[self.owners[0][real]], number[self.owners[1][sim]]
                yield label, compare_owned(self.samples[0][real], self.samples[1][sim], mine, theirs)


def _gaps(pairs: Sequence[Pair]) -> dict[str, tuple[float, float]]:
    """What the summaries say of ITL: over several runs the mean, weighted by output tokens."""
    found: dict[str, tuple[float, float]] = {}
    weights = [float(pair.real.output_tokens.sum()) for pair in pairs]
    for name in ("mean", "p50", "p90", "p99"):
        sides = []
        for which in ("real", "sim"):
            values = [(getattr(pair, which).gap_statistics_ms or {}).get(name) for pair in pairs]
            if any(value is None for value in values):
                return {}
            sides.append(float(np.average([value for value in values if value is not None], weights=weights)))
        found[name] = (sides[0], sides[1])
    return found


def _throughputs(pairs: Sequence[Pair]) -> Iterator[Throughput]:
    for what in ("output_tokens", "requests"):
        rates = []
        for which, rows in (("real", "mine"), ("sim", "theirs")):
            amount = seconds = 0.0
            for pair in pairs:
                run, at = getattr(pair, which), getattr(pair, rows)
                amount += float(run.output_tokens[at].sum()) if what == "output_tokens" else len(at)
                seconds += float(run.last_ns[at].max() - run.sent_ns[at].min()) / NS_PER_S
            rates.append(amount / seconds if seconds else 0.0)
        yield Throughput(what, *rates)


def _occupancy(pairs: Sequence[Pair]) -> list[Occupancy]:
    """The mean over the pairs."""
    each = [occupancies(pair.real, pair.sim) for pair in pairs]

    def mean(rows: Sequence[Occupancy], name: str) -> float:
        return float(np.mean([getattr(row, name) for row in rows]))

    return [
        Occupancy(rows[0].what, *(mean(rows, name) for name in ("real", "sim", "apart")))
        for rows in zip(*each, strict=True)
    ]


def _offenders(pairs: Sequence[Pair]) -> Iterator[Offender]:
    """The requests of all pairs with the largest difference of E2E over the measured."""
    rows = []
    for number, pair in enumerate(pairs):
        real, sim, _ = pair.latencies()["e2e"]
        rows += [(float(miss), number, row) for row, miss in enumerate(np.abs(sim - real) / np.maximum(real, 1e-9))]
    for _, number, row in sorted(rows, key=lambda entry: (-entry[0], entry[1:]))[:OFFENDERS]:
        pair = pairs[number]
        mine, theirs = int(pair.mine[row]), int(pair.theirs[row])
        yield Offender(
            pair.real.name, int(pair.real.key[mine]), int(pair.real.prompt_tokens[mine]),
            int(pair.real.output_tokens[mine]), *_both_times(pair, mine, theirs),
        )  # fmt: skip


def _both_times(pair: Pair, mine: int, theirs: int) -> tuple[dict[str, float], dict[str, float]]:
    """By the same parts on both sides."""
    by_part = bool(pair.real.parts and pair.sim.parts)
    return _times(pair.real, mine, by_part=by_part), _times(pair.sim, theirs, by_part=by_part)


def _times(run: ObservedRun, row: int, *, by_part: bool) -> dict[str, float]:
    """Milliseconds of a request by part, in the order of its life."""
    parts = {name.removesuffix("_ns"): float(values[row]) / NS_PER_MS for name, values in run.parts.items()}
    if not by_part:
        parts = {"first token": float(run.first_ns[row] - run.sent_ns[row]) / NS_PER_MS}
    return {**parts, "decode": float(run.last_ns[row] - run.first_ns[row]) / NS_PER_MS}


# --- the verdict ---


def _judge(found: Validation, tolerances: Tolerances) -> Iterator[Breach]:
    for label, table in found.latencies.items():
        if label == "all" or tolerances.each_regime:
            yield from _judge_latencies(label, table, tolerances, by_start=_by_start(found, tolerances))
    for name, (real, sim) in found.gaps.items():
        allowed = tolerances.latency.get("itl", {}).get(name)
        if "itl" in found.latencies["all"] or (name != "mean" and len(found.pairs) > 1):
            continue  # single gaps are judged where they are known; a mean of percentiles is none
        if allowed is not None and abs(sim - real) > tolerances.floor_ms:
            yield from _breach(f"ITL {name}", sim / real - 1.0 if real else 0.0, allowed)
    for throughput in found.throughputs:
        yield from _breach(
            f"throughput, {throughput.what}", throughput.error, tolerances.throughput.get(throughput.what)
        )
    for occupancy in found.occupancy:
        error = occupancy.sim / occupancy.real - 1.0 if occupancy.real else 0.0
        yield from _breach(f"mean {occupancy.what}", error, tolerances.occupancy.get(occupancy.what))
    if tolerances.conformance:
        for name, verdict in found.conformance:
            if verdict.code != CONFORMS:
                yield Breach(f"the trace of {name}: {verdict.name}: {verdict.reason}", 1.0, 0.0)
    yield from _judge_parts(found, tolerances)


def _by_start(found: Validation, tolerances: Tolerances) -> bool:
    return tolerances.by_start and len(found.pairs) >= STARTS_MIN


def _judge_latencies(
    label: str, table: dict[str, Comparison], tolerances: Tolerances, *, by_start: bool
) -> Iterator[Breach]:
    where = "" if label == "all" else f", {label}"
    for name, comparison in table.items():
        for statistic, allowed in tolerances.latency.get(name, {}).items():
            error = comparison.error(statistic)
            if abs(error.sim - error.real) > tolerances.floor_ms:
                interval = (error.low, error.high) if by_start else None
                yield from _breach(f"{name.upper()} {statistic}{where}", error.relative, allowed, interval=interval)
        apart = {"wasserstein": comparison.wasserstein_relative, "kolmogorov_smirnov": comparison.kolmogorov_smirnov}
        for distance, value in apart.items():
            yield from _breach(f"{name.upper()} {distance}{where}", value, tolerances.distance.get(distance))


def _judge_parts(found: Validation, tolerances: Tolerances) -> Iterator[Breach]:
    for name, parts in found.decompositions:
        policy = parts.policy
        if policy.difference is not None:
            share = 1.0 - policy.equal / policy.total if policy.total else 1.0
            what = f"decisions of {name} differ from {policy.difference}"
            yield from _breach(what, share, tolerances.parts.get("policy"), "policy")
    every = [parts for _, parts in found.decompositions]
    for steps in pooled_steps(every):
        if steps.kind != "loop":
            what, allowed = f"time of {steps.count} {steps.kind} steps", tolerances.parts.get("step_model")
            scatter = _steps_interval(every, steps.kind) if _by_start(found, tolerances) else None
            yield from _breach(what, steps.error, allowed, "step model", scatter)
    if every:
        first = pooled_contributions(every)[0]
        share = first.by_part_ns[2] / first.real_ns if first.real_ns else 0.0
        yield from _breach("the frontend's part of mean TTFT", share, tolerances.parts.get("frontend"), "frontend")


def pooled_steps(found: Sequence[Decomposition]) -> list[Steps]:
    """Totals by kind over several runs."""
    totals: dict[str, list[int]] = {}
    for parts in found:
        for steps in parts.steps:
            total = totals.setdefault(steps.kind, [0, 0, 0])
            for index, value in enumerate((steps.count, steps.real_ns, steps.sim_ns)):
                total[index] += value
    return [Steps(kind, *total) for kind, total in totals.items()]


def pooled_contributions(found: Sequence[Decomposition]) -> list[Contribution]:
    """Means over several runs, each run counting alike."""
    rows = zip(*(parts.contributions for parts in found), strict=True)
    return [
        Contribution(
            row[0].latency,
            float(np.mean([entry.real_ns for entry in row])),
            (_mean(row, 0), _mean(row, 1), _mean(row, 2)),
        )
        for row in rows
    ]


def _mean(row: Sequence[Contribution], part: int) -> float:
    return float(np.mean([entry.by_part_ns[part] for entry in row]))


def _steps_interval(found: Sequence[Decomposition], kind: str) -> tuple[float, float]:
    each = [steps for parts in found for steps in parts.steps if steps.kind == kind]
    return ratio_interval([steps.real_ns for steps in each], [steps.sim_ns for steps in each])


def _breach(
    what: str, error: float, allowed: float | None, part: str = "", interval: tuple[float, float] | None = None
) -> Iterator[Breach]:
    if allowed is not None and abs(error) > allowed:
        yield Breach(what, error, allowed, part, interval)
