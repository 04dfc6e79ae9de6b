"""Loads served one after another by systems that are built once, each kept as the folder of a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blink.common.config import Scenario
from blink.common.results import RunResult
from blink.hw.cuda.calibration.programme import cores, settings_for
from blink.hw.cuda.engine_run import System, serve_engine
from blink.hw.cuda.lockstep import load_kernels
from blink.hw.cuda.model_run import engine_limits
from blink.hw.engines.contract import Engine
from blink.hw.engines.torch_engine import TorchEngine
from blink.hw.measure.busy import busy_processes
from blink.workload.build import build_load

Say = Callable[[str], None]


@dataclass(slots=True)
class Machine:
    """An engine with the scheduler on the GPU and the same one on the host; one of them at a time serves."""

    engine: Engine
    on_gpu: System
    on_host: System

    def serve(self, scenario: Scenario, trace_path: Path | None, *, on_host: bool = False, busy: int = 0) -> RunResult:
        """Serve a scenario's load beside `busy` processes; the frontend keeps to cores of its own."""
        system, every = self.on_host if on_host else self.on_gpu, frozenset(os.sched_getaffinity(0))
        mine, others = cores()
        prepared, requests = build_load(scenario)
        system.ring.reset()
        os.sched_setaffinity(0, mine)
        try:
            with busy_processes(busy, others):
                return serve_engine(system, self.engine, prepared, requests, trace_path=trace_path)
        finally:
            os.sched_setaffinity(0, every)


@contextmanager
def open_machine(scenario: Scenario, model: str, say: Say = lambda text: None) -> Iterator[Machine]:
    """Build the engine and capture its graphs for both schedulers."""
    kernels = load_kernels()
    say(f"building {model}")
    engine = TorchEngine.of_model(model, engine_limits(scenario))
    try:
        settings = settings_for(engine, scenario)
        say("capturing graphs for the scheduler on the GPU")
        on_gpu = System.on_gpu(kernels, settings, engine)
        try:
            say("capturing graphs for the scheduler on the host")
            on_host = System.on_host(kernels, settings, engine, cores()[1])
            try:
                yield Machine(engine, on_gpu, on_host)
            finally:
                on_host.close()
        finally:
            on_gpu.close()
    finally:
        engine.close()
