"""What the device scheduler adds to the bare graph of a step: both in turns, measured by the graph's own nodes.

A graph's first node notes when it began and its last node when it ended, by the GPU's clock (ticks of 32 ns). So the
steps of the scheduler give their graphs' durations and the gaps between them, and so do launches of the last graph by a
host that waits for none of them: the bare graph, back to back. A round is one after the other; a difference is that of
a round. The scheduler's records, by the same clock, say what a gap is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blink.common.events import Event
from blink.common.results import I64
from blink.hw.cuda.bench.samples import Row, without_trend
from blink.hw.cuda.bench.steps import bare_ns, full_steps, run_batch
from blink.hw.cuda.engine_run import System, engine_settings
from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.marks import GraphMarks
from blink.hw.engines.contract import Engine
from blink.hw.measure.busy import busy_processes

Say = Callable[[str], None]
_PARTS = ("gap_ns", "seen_ns", "between_ns", "begins_ns", "bare_graph_ns", "bare_gap_ns")
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
    gap_ns: I64  # from the end of each but the last to the begin of the next: seen, between, begins
    seen_ns: I64  # from the end of each until the scheduler sees it
    between_ns: I64  # from there until it launches the next
    begins_ns: I64  # from a launch until the graph begins
    bare_graph_ns: I64
    bare_gap_ns: I64

    @property
    def period_ns(self) -> I64:
        """From begin to begin, with the growth of the KV cache taken out."""
        return without_trend(self.graph_ns[:-1] + self.gap_ns)

    @property
    def added_ns(self) -> tuple[float, float]:
        """(between the graphs, inside the graph): what a step of the scheduler takes more than one of the bare graph.

        The bare graph repeats the last step, so the scheduler's graphs are compared where their trend is then.
        """
        slope, start = np.polyfit(np.arange(self.graph_ns.size), self.graph_ns.astype(float), 1)
        last = start + slope * (self.graph_ns.size - 1)
        gap = float(np.median(self.gap_ns)) - float(np.median(self.bare_gap_ns))
        return gap, last - float(np.median(self.bare_graph_ns))


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
    records = run_batch(system, batch, plan.steps, plan.prompt_tokens, engine.vocabulary_count)
    last = slice(-(plan.steps - _SETTLE), None)
    begun, ended = (times[last] for times in marks.read())
    launched, done = (
        records["t_ns"].astype(np.int64)[full_steps(records, batch, event)[last]]
        for event in (Event.GRAPH_LAUNCHED, Event.GRAPH_DONE)
    )
    marks.clear()
    bare_ns(kernels.cuda, system, batch, plan.bare)
    bare_begun, bare_ended = (times[-plan.bare :] for times in marks.read())
    return Round(
        graph_ns=ended - begun,
        gap_ns=begun[1:] - ended[:-1],
        seen_ns=done - ended,
        between_ns=launched[1:] - done[:-1],
        begins_ns=begun - launched,
        bare_graph_ns=bare_ended - bare_begun,
        bare_gap_ns=bare_begun[1:] - bare_ended[:-1],
    )


def row_of(rounds: Sequence[Round], engine_name: str, batch: int, busy: int) -> Row:
    """The periods of all rounds together. `added_gap_ns`, `added_graph_ns`: what each round says of the overhead."""

    def p50(name: str) -> int:
        return _percentile(np.concatenate([getattr(each, name) for each in rounds]), 50)

    more: dict[str, Any] = {f"{name.removesuffix('_ns')}_p50_ns": p50(name) for name in _PARTS}
    more["gap_p999_ns"] = _percentile(np.concatenate([each.gap_ns for each in rounds]), 99.9)
    more["added_gap_ns"] = [each.added_ns[0] for each in rounds]
    more["added_graph_ns"] = [each.added_ns[1] for each in rounds]
    periods = np.concatenate([each.period_ns for each in rounds])
    return Row.of(f"step of {engine_name}; batch {batch}", "cuda", busy, periods, **more)


def _percentile(values: I64, q: float) -> int:
    return int(np.percentile(values, q, method="higher"))
