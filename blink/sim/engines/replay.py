"""Hold the model against a measured run: `python -m blink.sim.engines.replay SCENARIO`.

The scenario replays the arrivals of a recorded run (dialect vllm-run); its latencies are compared with the recorded
ones. Inputs are declared: the scenario and the run that its trace names, nothing else.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np

from blink.common.config import Scenario, load_scenario
from blink.common.distribution import Distribution
from blink.common.errors import InputError
from blink.common.results import I64, Outcome
from blink.common.units import NS_PER_MS
from blink.sim.run import simulate
from blink.workload.build import build_load
from blink.workload.measured import MeasuredRun

STATISTICS = ("mean", "P50", "P99")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One statistic of one latency, in ns: measured and simulated."""

    latency: str
    statistic: str
    measured_ns: float
    simulated_ns: float

    @property
    def error(self) -> float:
        """Relative to the measurement."""
        return self.simulated_ns / self.measured_ns - 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Latencies:
    """TTFT, TPOT and E2E of the same requests, in the same order. `tpot_ns` is of those with more than one token."""

    ttft_ns: I64
    e2e_ns: I64
    output_tokens: I64

    def tables(self, rows: slice) -> dict[str, Distribution]:
        """The distributions over some of the requests."""
        ttft, e2e, tokens = self.ttft_ns[rows], self.e2e_ns[rows], self.output_tokens[rows]
        several = tokens > 1
        tpot = (e2e - ttft)[several] / (tokens[several] - 1)
        return {"TTFT": Distribution.of(ttft), "TPOT": Distribution.of(tpot), "E2E": Distribution.of(e2e)}


def replay(scenario: Scenario) -> tuple[Latencies, Latencies]:
    """Measured and simulated latencies, in order of arrival. InputError if a request was not completed."""
    trace = scenario.workload.trace
    if trace is None:
        raise InputError("workload.trace: is missing: a replay needs the recorded run")
    measured = MeasuredRun.read(trace.file)
    scenario, load = build_load(scenario)
    result = simulate(scenario, load)
    requests = result.requests
    bad = np.flatnonzero(requests["outcome"] != Outcome.COMPLETED)
    if bad.size:
        first = int(requests["request_id"][bad[0]])
        raise InputError(f"replay: request {first} was not completed: {result.refusals.get(first, 'unknown')}")
    rows = requests["source_row"] - 1
    recorded = Latencies(measured.ttft_ns[rows], measured.e2e_ns[rows], measured.output_tokens[rows])
    return recorded, Latencies(requests["ttft_ns"], requests["e2e_ns"], requests["output_tokens"])


def compare(measured: Latencies, simulated: Latencies, rows: slice) -> list[Comparison]:
    """Mean, P50 and P99 of every latency over some of the requests."""
    found = []
    ours, theirs = simulated.tables(rows), measured.tables(rows)
    for name, recorded in theirs.items():
        pairs = zip(_statistics(recorded), _statistics(ours[name]), strict=True)
        found += [Comparison(name, label, *pair) for label, pair in zip(STATISTICS, pairs, strict=True)]
    return found


def _statistics(distribution: Distribution) -> tuple[float, float, float]:
    figures = distribution.mean(), distribution.percentile(500), distribution.percentile(990)
    return tuple(float(figure or 0.0) for figure in figures)  # type: ignore[return-value]


def report(measured: Latencies, simulated: Latencies, first: int) -> str:
    """Tables over all requests, over the first ones, and over the rest."""
    total = len(measured.ttft_ns)
    groups = [(f"all {total} requests", slice(0, total))]
    if 0 < first < total:
        groups += [(f"first {first}", slice(0, first)), (f"the other {total - first}", slice(first, total))]
    lines = []
    for title, rows in groups:
        lines += [title, f"  {'':5} {'':5} {'measured_ms':>12} {'model_ms':>12} {'error':>8}"]
        for row in compare(measured, simulated, rows):
            lines.append(
                f"  {row.latency:5} {row.statistic:5} {row.measured_ns / NS_PER_MS:12.2f} "
                f"{row.simulated_ns / NS_PER_MS:12.2f} {row.error:+8.2%}"
            )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison; 2 with one line on stderr if an input is wrong."""
    parser = argparse.ArgumentParser(prog="python -m blink.sim.engines.replay", description=__doc__)
    parser.add_argument("scenario", help="scenario TOML whose workload.trace is a recorded run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override an option")
    parser.add_argument("--first", type=int, default=100, help="requests of the first group (default: 100)")
    options = parser.parse_args(arguments)
    try:
        print(report(*replay(load_scenario(options.scenario, options.set)), options.first))
    except InputError as error:
        print(f"blink: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
