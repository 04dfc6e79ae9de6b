"""What the runs of an answer were of, in a sentence: how much of the traffic was simulated, and what the seeds vary."""

from __future__ import annotations

from blink.common.units import NS_PER_S
from blink.plan.capacity.question import Question, Traffic
from blink.plan.sweep.point import WARMUP_PARTS
from blink.workload.reader import read_trace


def simulated(question: Question) -> str:
    """The sentence for a question that was answered."""
    traffic, seeds = question.traffic, question.search.seeds
    if traffic.trace is not None:
        return _trace(traffic, seeds)
    window, judged = traffic.window_s, traffic.window_s * (WARMUP_PARTS - 1) / WARMUP_PARTS
    busiest = "the highest rate of the curve" if traffic.curve else "the rate"
    return (
        f"A run is {window:g} s of Poisson arrivals at {busiest}, {traffic.peak_rate:.4g} requests/s, of which the "
        f"last {judged:g} s are judged; each of the {seeds} seeds draws requests of its own"
    )


def _trace(traffic: Traffic, seeds: int) -> str:
    assert traffic.trace is not None
    requests = read_trace(traffic.trace, rate_scale=traffic.growth)
    sent = requests.arrival_ns
    length_ns = int(sent[-1] - sent[0])
    judged = int((sent >= sent[0] + length_ns // WARMUP_PARTS).sum()) - 1
    often = f", {traffic.growth:.3g} times as often as it was recorded" if traffic.growth != 1 else ""
    few = "; a P99 of so few requests is their worst" if judged < 100 else ""
    return (
        f"A run is the whole trace{often}: {len(sent):,} requests in {length_ns / NS_PER_S:,.0f} s, of which the "
        f"{judged:,} of the last three quarters are judged{few}. It is the same with each of the {seeds} seeds, which "
        "vary what router and engines draw, and not the load"
    )
