"""Step times of a model's decode graph under both schedulers, alone and beside busy processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from blink.common.results import I64
from blink.hw.cuda.bench.samples import Row, without_trend
from blink.hw.cuda.bench.steps import bare_ns, run_batch, step_times
from blink.hw.cuda.engine_run import System, engine_settings
from blink.hw.cuda.kernels import Kernels
from blink.hw.engines.contract import Engine
from blink.hw.measure.busy import busy_processes

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """`steps` decode steps of each batch, over prompts of `prompt_tokens`, beside each number of busy processes."""

    batches: tuple[int, ...] = (1, 16, 64)
    steps: int = 400
    prompt_tokens: int = 1024
    busy: tuple[int, ...] = (0, 32, 64)


def engine_rows(
    kernels: Kernels, engine: Engine, plan: StepPlan, say: Say = lambda text: None, systems: Sequence[str] = ()
) -> Iterator[Row]:
    """Periods with the growth of the KV cache taken out. `outside_ns`: the part of a period in which no graph runs,
    from the moment that one is seen to be done until the next is launched. `bare_last_ns`: the last graph alone.

    `systems` restricts which schedulers run: cuda, cpu-resident.
    """
    settings = engine_settings(
        engine, output_tokens=plan.steps + max(plan.batches) + 2, ignore_eos=True, resume_after_tokens=1
    )
    for name, opener in (("cuda", System.on_gpu), ("cpu-resident", System.on_host)):
        if systems and name not in systems:
            continue
        say(f"capturing graphs for {name}")
        system = opener(kernels, settings, engine)
        try:
            for count in plan.busy:
                for batch in plan.batches:
                    say(f"{name}: batch {batch} beside {count} busy processes")
                    with busy_processes(count):
                        yield _row(kernels, system, engine, plan, batch, count)
        finally:
            system.close()


def _row(kernels: Kernels, system: System, engine: Engine, plan: StepPlan, batch: int, busy: int) -> Row:
    records = run_batch(system, batch, plan.steps, plan.prompt_tokens, engine.vocabulary_count)
    times = step_times(records, batch)
    bare = bare_ns(kernels.cuda, system, batch, 10)
    return Row.of(
        f"decode step of {engine.name}; batch {batch}", system.name, busy, without_trend(times.period_ns),
        prompt_tokens=plan.prompt_tokens, mean_ns=_mean(times.period_ns), bare_last_ns=bare,
        outside_ns=_median(times.period_ns) - _median(times.graph_ns), relaunch_mean_ns=_mean(times.relaunch_ns),
        claim_mean_ns=_mean(times.claim_ns),
    )  # fmt: skip


def _median(times_ns: I64) -> int:
    return round(float(np.median(times_ns))) if times_ns.size else 0


def _mean(times_ns: I64) -> int:
    return round(float(times_ns.mean())) if times_ns.size else 0
