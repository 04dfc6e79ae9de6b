"""What the device scheduler adds to the bare graph of a step: both in turns, measured by the graph's own nodes.

A graph's first node notes when it began and its last node when it ended, by the GPU's clock (ticks of 32 ns). So one
step of the scheduler gives its graph's duration and the gap until the next graph begins, and a bare launch of the same
executable gives the duration without a scheduler. A round is one after the other; a difference is that of a round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blink.common.results import I64
from blink.hw.cuda.bench.samples import Row, without_trend
from blink.hw.cuda.bench.steps import bare_ns, run_batch
from blink.hw.cuda.engine_run import System, engine_settings
from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.marks import GraphMarks
from blink.hw.engines.contract import Engine
from blink.hw.measure.busy import busy_processes

Say = Callable[[str], None]
_MARKS = 1 << 14
_SETTLE = 10
"""Steps of the whole batch that are left out at the start."""


@dataclass(frozen=True, slots=True)
class OverheadPlan:
    """`rounds` of `steps` decode steps of the whole batch, then `bare` launches of its last graph."""

    batches: tuple[int, ...] = (1, 16, 64)
    rounds: int = 8
    steps: int = 140
    bare: int = 60
    prompt_tokens: int = 1024
    busy: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Round:
    """Nanoseconds of one round."""

    graph_ns: I64  # of each step, from its first node's begin to its last node's end
    gap_ns: I64  # from the end of each but the last to the begin of the next
    bare_graph_ns: I64
    bare_gap_ns: I64

    @property
    def period_ns(self) -> I64:
        """From begin to begin, with the growth of the KV cache taken out."""
        return without_trend(self.graph_ns[:-1] + self.gap_ns)

    @property
    def added_ns(self) -> tuple[float, float]:
        """(between the graphs, inside the graph): what a step of the scheduler takes more than the bare graph.

        The bare graph repeats the last step, so the scheduler's graphs are compared where their trend is then.
        """
        slope, start = np.polyfit(np.arange(self.graph_ns.size), self.graph_ns.astype(float), 1)
        last = start + slope * (self.graph_ns.size - 1)
        return float(np.median(self.gap_ns)), last - float(np.median(self.bare_graph_ns))


def overhead_rows(kernels: Kernels, engine: Engine, plan: OverheadPlan, say: Say = lambda text: None) -> Iterator[Row]:
    """For each number of busy processes and each batch the periods of all rounds, and what they say of the overhead."""
    settings = engine_settings(
        engine, output_tokens=plan.steps + max(plan.batches) + 2, ignore_eos=True, resume_after_tokens=1
    )
    marks = GraphMarks(kernels.cuda, _MARKS)
    say("capturing graphs")
    system = System.on_gpu(kernels, settings, engine, marks=marks)
    try:
        for busy in plan.busy:
            with busy_processes(busy):
                for batch in plan.batches:
                    say(f"batch {batch} beside {busy} busy processes")
                    rounds = [_round(kernels, system, marks, engine, batch, plan) for _ in range(plan.rounds)]
                    yield row_of(rounds, engine.name, batch, busy)
    finally:
        system.close()
        if not system.scheduler.is_running:
            marks.close()


def _round(
    kernels: Kernels, system: System, marks: GraphMarks, engine: Engine, batch: int, plan: OverheadPlan
) -> Round:
    marks.clear()
    run_batch(system, batch, plan.steps, plan.prompt_tokens, engine.vocabulary_count)
    begun, ended = (times[-(plan.steps - _SETTLE) :] for times in marks.read())
    marks.clear()
    bare_ns(kernels.cuda, system, batch, plan.bare)
    bare_begun, bare_ended = (times[-plan.bare :] for times in marks.read())
    return Round(ended - begun, begun[1:] - ended[:-1], bare_ended - bare_begun, bare_begun[1:] - bare_ended[:-1])


def row_of(rounds: Sequence[Round], engine_name: str, batch: int, busy: int) -> Row:
    """The periods of all rounds together. `between_ns` and `inside_ns`: what each round says of the overhead."""
    gaps = np.concatenate([each.gap_ns for each in rounds])
    more: dict[str, Any] = {
        "gap_p50_ns": _percentile(gaps, 50),
        "gap_p99_ns": _percentile(gaps, 99),
        "gap_p999_ns": _percentile(gaps, 99.9),
        "bare_graph_p50_ns": _percentile(np.concatenate([each.bare_graph_ns for each in rounds]), 50),
        "bare_gap_p50_ns": _percentile(np.concatenate([each.bare_gap_ns for each in rounds]), 50),
        "between_ns": [each.added_ns[0] for each in rounds],
        "inside_ns": [each.added_ns[1] for each in rounds],
    }
    periods = np.concatenate([each.period_ns for each in rounds])
    return Row.of(f"step of {engine_name}; batch {batch}", "cuda", busy, periods, **more)


def _percentile(values: I64, q: float) -> int:
    return int(np.percentile(values, q, method="higher"))
