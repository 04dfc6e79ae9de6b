"""From a scenario to its requests: drawn, read from a trace, or both."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from blink.common.config import Scenario
from blink.common.config.workload import (
    REQUESTS_MAX,
    TOKENS_MAX,
    CapOutput,
    CurveArrivals,
    FileLengths,
    FixedLengths,
    GammaArrivals,
    LognormalLength,
    LognormalLengths,
    MultipleOutput,
    PoissonArrivals,
    TraceArrivals,
    TraceSource,
    UniformLengths,
)
from blink.common.config.workload import Workload as WorkloadConfig
from blink.common.errors import InputError
from blink.common.ranges import range_notes, violations
from blink.common.units import NS_PER_S, ns_from_s
from blink.workload import arrivals, lengths, prefixes
from blink.workload.dialects.base import UNUSED_HASHES
from blink.workload.lengths_profile import LengthsProfile
from blink.workload.lognormal import TruncatedLogNormal
from blink.workload.reader import read_trace
from blink.workload.requests import COLUMNS, Column, Requests, synthetic, with_arrivals
from blink.workload.streams import Stream, generator

NEVER_NS = -1
SHAREGPT_LIKE = "sharegpt-like"


def build_load(scenario: Scenario) -> tuple[Scenario, Requests]:
    """The scenario as it will really run, and its requests.

    A trace takes the place of `workload.lengths`, and of `workload.arrivals` where it has times: the scenario that
    comes back says so (`lengths` unset, `arrivals.kind = "trace"`). Raises InputError for an unusable trace, impossible
    lengths, or a load of no request.
    """
    workload = scenario.workload
    if workload.trace is None:
        return scenario, _prefixed(scenario, _drawn(scenario))
    requests = _traced(workload.trace)
    update: dict[str, object] = {"lengths": None}
    if requests.has_arrivals:
        update["arrivals"] = TraceArrivals(kind="trace")
        requests = _first(requests, _kept(requests.arrival_ns, workload))
    else:
        count = min(len(requests), workload.requests or len(requests))
        requests = _first(requests, count)
        requests = with_arrivals(requests, _arrivals_for(scenario, count))
        requests = _first(requests, _kept(requests.arrival_ns, workload))
    return scenario.model_copy(update={"workload": workload.model_copy(update=update)}), _prefixed(scenario, requests)


def _prefixed(scenario: Scenario, requests: Requests) -> Requests:
    """The requests with what the scenario says of their prompts' beginnings; a trace with hashes knows its own."""
    common = scenario.workload.shared_prefix
    if common is None or requests.prefixes is not None:
        return requests
    rng = generator(scenario.seed, Stream.PREFIXES)
    return replace(requests, prefixes=prefixes.shared(rng, requests.prompt_tokens, common.groups, common.tokens))


def build_requests(scenario: Scenario) -> Requests:
    """The requests alone."""
    return build_load(scenario)[1]


def output_tokens_asked(scenario: Scenario, requests: Requests) -> Column:
    """`output_tokens_max` of each request: what its client asks for, not what the model will say."""
    asked = scenario.workload.output_tokens_max
    if isinstance(asked, CapOutput):
        return np.full(len(requests), asked.value, dtype=np.int64)
    if isinstance(asked, MultipleOutput):
        factor = Fraction(repr(asked.value))  # the decimal that was written: 10 tokens x 1.1 are 11, not 12
        ceilings = [math.ceil(tokens * factor) for tokens in requests.output_tokens.tolist()]
        return np.minimum(np.array(ceilings, dtype=np.int64), TOKENS_MAX)
    return requests.output_tokens.copy()


def cancel_after_ns(scenario: Scenario, requests: Requests) -> Column:
    """When each client hangs up, counted from the sending of its request; NEVER_NS for those that wait."""
    cancel, count = scenario.workload.cancel, len(requests)
    leaves = generator(scenario.seed, Stream.CANCELS).random(count) < cancel.fraction
    patience = generator(scenario.seed, Stream.PATIENCE).standard_exponential(count) * (cancel.after_s * NS_PER_S)
    return np.where(leaves, np.rint(patience).astype(np.int64), NEVER_NS)


def load_notes(scenario: Scenario, requests: Requests) -> list[str]:
    """What a reader of the results must know about the load.

    Of a trace: rows left out, and what was assumed in reading it. Of drawn lengths: where they leave the range that
    their profile was fitted in.
    """
    report = requests.report
    if report is None:
        return range_notes(_stretched_lengths(scenario, requests))
    left_out = [
        f"{report.file}: {count} of {report.rows_read} rows left out: {why}" for why, count in report.skipped.items()
    ]
    reused = scenario.serving is not None and scenario.serving.prefix_caching
    said = [note for note in report.notes if not (reused and note == UNUSED_HASHES)]
    return left_out + [f"{report.file}: {note}" for note in said]


def _stretched_lengths(scenario: Scenario, requests: Requests) -> list[str]:
    lengths_asked = scenario.workload.lengths
    if lengths_asked is None or lengths_asked.kind != SHAREGPT_LIKE or not len(requests):
        return []
    drawn = int(requests.prompt_tokens.min()), int(requests.prompt_tokens.max())
    profile = LengthsProfile.load(SHAREGPT_LIKE)
    return violations(profile.name, profile.constants, {"prompt_tokens": drawn})


def _drawn(scenario: Scenario) -> Requests:
    arrival_ns = _arrivals_for(scenario, _count_needed(scenario.workload))
    arrival_ns = arrival_ns[: _kept(arrival_ns, scenario.workload)]
    prompt_tokens, output_tokens = _lengths_for(scenario, len(arrival_ns))
    return synthetic(arrival_ns, prompt_tokens, output_tokens)


def _count_needed(workload: WorkloadConfig) -> int | None:
    return workload.requests if workload.duration_s is None else None


def _arrivals_for(scenario: Scenario, count: int | None) -> Column:
    """Sorted times of `count` requests; None: of at least as many as are sent within the duration."""
    workload = scenario.workload
    if count is not None:
        return _arrivals(scenario, count)
    assert workload.duration_s is not None
    rate = getattr(workload.arrivals, "rate", 0.0)
    count, most = math.ceil(rate * workload.duration_s) + 16, workload.requests or REQUESTS_MAX + 1
    while True:
        count = min(count, most)
        # A fresh generator each time: a longer draw begins with the shorter one.
        arrival_ns = _arrivals(scenario, count)
        if count == most or arrival_ns[-1] >= ns_from_s(workload.duration_s):
            return arrival_ns
        count *= 2


def _arrivals(scenario: Scenario, count: int) -> Column:
    kind, rng = scenario.workload.arrivals, generator(scenario.seed, Stream.ARRIVALS)
    if isinstance(kind, PoissonArrivals):
        return arrivals.poisson(rng, count, kind.rate)
    if isinstance(kind, GammaArrivals):
        return arrivals.gamma(rng, count, kind.rate, kind.burstiness)
    if isinstance(kind, CurveArrivals):
        return arrivals.curve(rng, count, kind.points)
    if kind is not None and kind.kind == "constant":
        return arrivals.constant(rng, count, kind.rate)
    if kind is not None and kind.kind == "closed-loop":
        return arrivals.closed_loop(rng, count, kind.concurrency)
    if kind is not None and kind.kind == "all-at-once":
        return arrivals.all_at_once(rng, count)
    trace = scenario.workload.trace
    raise InputError(
        f"{trace.file if trace else 'workload.trace'}: has no arrival times: set workload.arrivals to a process"
    )


def _kept(arrival_ns: Column, workload: WorkloadConfig) -> int:
    """How many of the sorted arrivals the bounds on number and duration keep."""
    count = len(arrival_ns)
    if workload.duration_s is not None:
        count = int(np.searchsorted(arrival_ns, ns_from_s(workload.duration_s), side="left"))
        if workload.arrivals is not None and workload.arrivals.kind in ("closed-loop", "all-at-once"):
            raise InputError(
                f"workload.duration_s = {workload.duration_s}: {workload.arrivals.kind} has no end in time"
            )
    count = min(count, workload.requests or count)
    if count > REQUESTS_MAX:
        raise InputError(f"workload: more than {REQUESTS_MAX} requests; lower the rate, duration_s or requests")
    if count == 0:
        raise InputError(f"workload.duration_s = {workload.duration_s}: no request is sent in that time")
    return count


def _first(requests: Requests, count: int) -> Requests:
    if count == len(requests):
        return requests
    columns = {name: getattr(requests, name)[:count].copy() for name in COLUMNS}
    kept = requests.prefixes.first(count) if requests.prefixes else None
    return replace(requests, **columns, prefixes=kept)


def _lengths_for(scenario: Scenario, count: int) -> lengths.Lengths:
    kind, rng = scenario.workload.lengths, generator(scenario.seed, Stream.LENGTHS)
    if isinstance(kind, FixedLengths):
        return lengths.fixed(rng, count, kind.prompt_tokens, kind.output_tokens)
    if isinstance(kind, UniformLengths):
        return lengths.uniform(rng, count, kind.prompt_tokens, kind.output_tokens)
    if isinstance(kind, LognormalLengths):
        return lengths.lognormal(rng, count, _lognormal(kind.prompt_tokens), _lognormal(kind.output_tokens))
    if isinstance(kind, FileLengths):
        source = read_trace(kind.file, dialect=_dialect(kind.dialect))
        return (lengths.in_order if kind.order == "in-order" else lengths.resampled)(rng, count, source)
    return lengths.sharegpt_like(rng, count)


def _lognormal(length: LognormalLength) -> TruncatedLogNormal:
    return TruncatedLogNormal(length.mean, length.sigma, length.minimum, length.maximum)


def _traced(source: TraceSource) -> Requests:
    return read_trace(
        source.file,
        dialect=_dialect(source.dialect),
        limit=source.limit,
        rate_scale=source.rate_scale,
        time_scale=source.time_scale,
    )


def _dialect(name: str) -> str | None:
    return None if name == "auto" else name
