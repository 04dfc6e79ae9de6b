"""The programme: what is measured of a machine, in under five minutes of GPU time, and in which order.

Staircases make every batch size over several KV lengths; bursts of prompts make every captured prefill, some of them
padded, with decode steps between them so that the GPU is as warm as when it serves. A mixture of requests of any
length, of which now few and now many run together, shows both kinds of steps as a load has them: between one another,
with sequences of different lengths, at every level of the GPU's clock. All run through the real scheduler. A served
probe shows what the frontend costs.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from blink.common.config import Scenario, parse_scenario
from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.results import I64
from blink.common.steps import StepTable
from blink.common.trace import read_trace
from blink.frontend.tokenizer import Tokenizer
from blink.hw.cuda.bench.loop import loop_settings
from blink.hw.cuda.bench.paths import copy_read_ns, echo_ns, scan_ns, status_read_ns
from blink.hw.cuda.calibration.session import Burst, run_session, staircase
from blink.hw.cuda.engine_run import System, engine_settings, serve_engine
from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.ports import Ingress
from blink.hw.cuda.ring import CudaRing
from blink.hw.engines.contract import Engine
from blink.hw.measure.busy import busy_processes
from blink.hw.measure.host_work import measure_on
from blink.hw.measure.placement import placements
from blink.hw.native.settings import NativeSettings
from blink.hw.native.thread import SCHEDULER_THREAD
from blink.perf.calibration.measurements import VERSION, Measurements
from blink.perf.plant import Plant
from blink.workload.build import build_load

Say = Callable[[str], None]
FRONTEND_CORES = 2
BURSTS_A_SESSION = 40
MIXED_SWINGS, MIXED_PAIRS, MIXED_RANGE = 2, 0.15, 64
"""Of the mixture: times that it goes from few to many and back, share of prompts that come in pairs, longest over
shortest."""
REST_TOKENS = 8
"""Output of a prompt of a burst: so many decode steps lie between two bursts."""


@dataclass(frozen=True, slots=True)
class Programme:
    """How much is measured. `stairs`: prompt lengths as shares of the longest; `repeats` of each captured prefill;
    `mixed`: requests of the mixture.
    """

    stairs: tuple[float, ...] = (1 / 64, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
    steps_each: int = 3
    repeats: int = 6
    mixed: int = 700
    mixed_on_host: int = 350
    busy: int = 32
    busy_rounds: int = 6
    host_probes: int = 8
    host_probe_s: float = 0.6
    probe_rate: float = 25.0
    probe_s: float = 4.0
    rounds: int = 500
    seed: int = 20_261


def settings_for(engine: Engine, scenario: Scenario) -> NativeSettings:
    """The scheduler's settings for an engine under a scenario's limits; texts end by their length alone."""
    limits = Plant.of(scenario).limits
    return engine_settings(
        engine, window=limits.window, output_tokens=scenario.limits.output_capacity_tokens, ignore_eos=True,
        padding_tokens_max=limits.prefill_padding_tokens_max, resume_after_tokens=limits.resume_after_tokens,
    )  # fmt: skip


def cores() -> tuple[frozenset[int], frozenset[int]]:
    """Cores for the frontend, which is a stand-in for one on a DPU, and those that everybody else shares."""
    every = frozenset(os.sched_getaffinity(0))
    mine = frozenset(sorted(every)[:FRONTEND_CORES])
    return mine, (every - mine) or every


def measure(
    kernels: Kernels,
    engine: Engine,
    on_gpu: System,
    on_host: System,
    scenario: Scenario,
    programme: Programme,
    *,
    tokenizer: Tokenizer | None = None,
    say: Say = lambda text: None,
) -> Measurements:
    """Measure everything. `scenario` gives limits; neither system serves anything else meanwhile."""
    begun, every = time.monotonic(), frozenset(os.sched_getaffinity(0))
    mine, others = cores()
    steps: dict[str, list[StepTable]] = {}
    times: dict[str, I64] = {}
    about = _about(kernels, engine, scenario, programme)
    try:
        os.sched_setaffinity(0, mine)
        steps["gpu"] = list(_runs(on_gpu, engine, scenario, programme, programme.mixed, say))
        frontend = _frontend(on_gpu, engine, scenario, programme, say)
        times |= _paths(kernels, programme, say)
        times |= _tokens(tokenizer, say)
        about["tokenizer"] = tokenizer.name if tokenizer else ""
        about["host_work"] = {
            str(count): list(_host_work(programme, count, others, say)) for count in (0, programme.busy)
        }
        steps["host"] = list(_runs(on_host, engine, scenario, programme, programme.mixed_on_host, say))
        steps["host-busy"] = []
        for number in range(programme.busy_rounds):  # where the system puts them is drawn anew with each set
            say(f"{on_host.name}: two staircases beside {programme.busy} busy processes, set {number + 1}")
            with busy_processes(programme.busy, others) as them, placements(them, SCHEDULER_THREAD) as seen:
                stairs = [_stair(engine, programme, share) for share in (1 / 4, 1 / 2)]
                steps["host-busy"].append(run_session(on_host, stairs, engine.vocabulary_count)[0])
            times[f"cores_{number}"] = seen.table()
    finally:
        os.sched_setaffinity(0, every)
    about["seconds"] = round(time.monotonic() - begun, 1)
    return Measurements(about, steps, frontend, times)


def _about(kernels: Kernels, engine: Engine, scenario: Scenario, programme: Programme) -> dict[str, Any]:
    mine, others = cores()
    return {
        "version": VERSION, "date": date.today().isoformat(), "machine": kernels.cuda.describe(),
        "model": scenario.model.profile or "", "engine": engine.name, "limits": scenario.resolved()["limits"],
        "cores": {"frontend": len(mine), "others": len(others)}, "busy": programme.busy,
    }  # fmt: skip


def _runs(
    system: System, engine: Engine, scenario: Scenario, programme: Programme, mixed: int, say: Say
) -> Iterator[StepTable]:
    yield from _stairs(system, engine, programme, programme.stairs, say)
    bursts = list(_bursts(engine, scenario, programme))
    background = Burst(((64, scenario.limits.output_capacity_tokens - 8),), 0)
    for first in range(0, len(bursts), BURSTS_A_SESSION):
        say(f"{system.name}: prefills {first} to {first + BURSTS_A_SESSION} of {len(bursts)}")
        part = bursts[first : first + BURSTS_A_SESSION]
        yield run_session(system, [background, *part], engine.vocabulary_count)[0]
    say(f"{system.name}: a mixture of {mixed} requests")
    prefills, decodes = engine.tables[GraphKind.PREFILL], engine.tables[GraphKind.DECODE]
    prompt_max, output_max = prefills.sequences[-1], scenario.limits.output_capacity_tokens
    prompts = _spread(mixed, prompt_max, programme.seed + 1)
    outputs = _spread(mixed, min(output_max, decodes.sequences[-1] - prompt_max), programme.seed + 2)
    mixture = mixed_bursts(prompts, outputs, decodes.batches[-1], np.random.default_rng(programme.seed + 3))
    yield run_session(system, list(mixture), engine.vocabulary_count)[0]


def mixed_bursts(prompts: I64, outputs: I64, batch_max: int, rng: np.random.Generator) -> Iterator[Burst]:
    """Requests of these lengths, mostly one by one; how many run together swings between 1 and `batch_max`.

    The swings, MIXED_SWINGS of them, take every number for about as long.
    """
    count = len(prompts)
    made = 0
    while made < count:
        phase = made * 2 * MIXED_SWINGS / count % 2  # 0 to 1 and back; more together also means that more come and go
        together = max(1, round(batch_max * math.sqrt(min(phase, 2 - phase))))
        some = slice(made, min(count, made + (2 if rng.random() < MIXED_PAIRS else 1)))
        yield Burst(tuple(zip(prompts[some].tolist(), outputs[some].tolist(), strict=True)), together - 1)
        made = some.stop


def _spread(count: int, longest: int, seed: int) -> I64:
    """Lengths that are spread evenly over their logarithms."""
    lowest, rng = max(1, longest // MIXED_RANGE), np.random.default_rng(seed)
    lengths: I64 = np.exp(rng.uniform(math.log(lowest), math.log(longest), count)).astype(np.int64)
    return lengths


def _stairs(
    system: System, engine: Engine, programme: Programme, shares: tuple[float, ...], say: Say
) -> Iterator[StepTable]:
    for share in shares:
        burst = _stair(engine, programme, share)
        say(f"{system.name}: {len(burst.prompts)} prompts of {burst.prompts[0][0]} tokens, one after another ends")
        yield run_session(system, [burst], engine.vocabulary_count)[0]


def _stair(engine: Engine, programme: Programme, share: float) -> Burst:
    longest, batch = engine.tables[GraphKind.PREFILL].sequences[-1], engine.tables[GraphKind.DECODE].batches[-1]
    return staircase(max(1, round(share * longest)), batch, programme.steps_each)


def _bursts(engine: Engine, scenario: Scenario, programme: Programme) -> Iterator[Burst]:
    """Bursts of prompts that fill a captured prefill as prompts of a load do, in an order that is drawn."""
    rng, table = np.random.default_rng(programme.seed), engine.tables[GraphKind.PREFILL]
    padding = Plant.of(scenario).limits.prefill_padding_tokens_max
    shapes = [
        (batch, before, sequence)
        for batch in table.batches
        for before, sequence in zip((0, *table.sequences), table.sequences, strict=False)
        if table.dense(batch, sequence)
    ]
    order = rng.permutation(np.repeat(np.arange(len(shapes)), programme.repeats)).tolist()
    for index in order:
        batch, before, sequence = shapes[index]
        shortest = max(before + 1, sequence - padding // batch)
        lengths = rng.integers(shortest, sequence + 1, batch).tolist()
        yield Burst(tuple((int(tokens), REST_TOKENS) for tokens in lengths), 1)


def _frontend(system: System, engine: Engine, scenario: Scenario, programme: Programme, say: Say) -> dict[str, I64]:
    """Columns of the requests of a served load that has nothing to do with any that is predicted."""
    say(f"{system.name}: a load of {programme.probe_rate:g} requests/s for the frontend's part")
    document = scenario.resolved() | {
        "name": "calibration probe", "seed": programme.seed,
        "workload": {
            "duration_s": programme.probe_s, "arrivals": {"kind": "poisson", "rate": programme.probe_rate},
            "output_tokens_max": {"kind": "traced"},
            "lengths": {
                "kind": "uniform", "prompt_tokens": [16, 256],
                "output_tokens": [16, 128],
            },
        },
    }  # fmt: skip
    probe, requests = build_load(parse_scenario(document, "calibration probe"))
    system.ring.reset()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.parquet"
        result = serve_engine(system, engine, probe, requests, trace_path=path)
        steps = StepTable.of_trace(read_trace(path))
    table, first_ns = result.requests, result.requests["sent_ns"].copy()
    for name in ("ingress_ns", "tokenize_ns", "slot_wait_ns", "link_ns", "ring_wait_ns", "prefill_ns", "publish_ns"):
        first_ns += table[name]
    decodes = steps.of_kind(GraphKind.DECODE)
    if not len(decodes):
        raise InputError("calibrate: the served probe has no decode step")
    after = np.minimum(np.searchsorted(decodes.launched_ns, first_ns), len(decodes) - 1)
    wanted = ("prompt_tokens", "ingress_ns", "tokenize_ns", "link_ns", "read_ns", "ttft_ns")
    return {**{name: table[name] for name in wanted}, "live": decodes.live[after]}


def _paths(kernels: Kernels, programme: Programme, say: Say) -> dict[str, I64]:
    """The ways into the ring and out of it, and the scan."""
    say("the path to the ring")
    system = System.on_gpu(kernels, loop_settings(1), ingress=Ingress.COPY)
    try:
        assert isinstance(system.ring, CudaRing)
        return {
            "echo": echo_ns(kernels, programme.rounds, by_copy=True),
            "status_read": status_read_ns(system.ring, programme.rounds),
            "status_copy": copy_read_ns(system.ring, programme.rounds),
            "scan": scan_ns(kernels, system, programme.rounds),
        }
    finally:
        system.close()


def _tokens(tokenizer: Tokenizer | None, say: Say) -> dict[str, I64]:
    """Nanoseconds of encoding and decoding texts, with their tokens; nothing without a tokenizer."""
    if tokenizer is None:
        return {}
    say(f"the tokenizer {tokenizer.name}")
    tokenizer.decode(tokenizer.encode("once, so that nothing is loaded meanwhile"))
    rows = []
    for words in (8, 32, 128, 512, 1024) * 5:
        text = "the quick brown fox jumps over the lazy dog " * (words // 9 + 1)
        begun = time.perf_counter_ns()
        ids = tokenizer.encode(text)
        encoded = time.perf_counter_ns()
        tokenizer.decode(ids)
        rows.append((len(ids), encoded - begun, time.perf_counter_ns() - encoded))
    table = np.array(rows, np.int64)
    return {"tokenizer_tokens": table[:, 0], "tokenizer_encode": table[:, 1], "tokenizer_decode": table[:, 2]}


def _host_work(programme: Programme, busy: int, where: frozenset[int], say: Say) -> Iterator[dict[str, Any]]:
    """Probes of host work, each a process of its own, so that each is placed anew; alone one is enough."""
    say(f"host work beside {busy} busy processes")
    with busy_processes(busy, where):
        for _ in range(programme.host_probes if busy else 1):
            found = measure_on(programme.host_probe_s, where)
            stretches = {name: _thin(values) for name, values in found["stretches_ns"].items()}
            yield {"seconds": programme.host_probe_s, "gaps_ns": found["gaps_ns"][-400:], "stretches_ns": stretches}


def _thin(values: list[int], most: int = 400) -> list[int]:
    """Evenly spaced ones of many."""
    return values[:: max(1, len(values) // most)]
