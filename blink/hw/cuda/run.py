"""Serves a scenario with the scheduler on the GPU, in real time or as fast as it goes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from blink.common.config import Scenario
from blink.common.config.replica import require_replica
from blink.common.results import RunResult
from blink.hw.cuda.lockstep import load_kernels
from blink.hw.cuda.ports import Ingress
from blink.hw.cuda.ring import CudaRing
from blink.hw.cuda.scheduler import CudaScheduler
from blink.hw.native.library import load_library
from blink.hw.native.run import Progress, admitted, serve_over, settings_of
from blink.perf.plant import Plant
from blink.workload.requests import Requests

GPU_CLOCK = {
    "frontend": {"name": "monotonic", "unit": "ns"},
    "gpu": {"name": "globaltimer", "unit": "ns"},
    "shared": False,
}
"""The GPU's times are shifted by what the clocks showed when they were compared, before the scheduler started."""


def serve(
    scenario: Scenario,
    requests: Requests,
    *,
    trace_path: Path | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    time_scale: float = 1.0,
    flags: tuple[str, ...] = (),
    ingress: Ingress = Ingress.COPY,
) -> RunResult:
    """Serve these requests with the stub engine; as blink.hw.native.run.serve, with the scheduler on the GPU.

    `ingress` is the path of this process to the ring. Raises InputError for what cannot run, and if there is no GPU.
    """
    require_replica(scenario, "backend cuda")
    kernels = load_kernels(flags)
    plant = Plant.of(scenario)
    ring = CudaRing(kernels.cuda, load_library(), settings_of(scenario, plant, time_scale), ingress)
    scheduler = CudaScheduler(kernels, ring)
    try:
        return serve_over(
            scenario, requests, admitted(scenario, requests, plant), ring, scheduler, GPU_CLOCK,
            trace_path=trace_path, progress=progress, stop=stop, time_scale=time_scale, step=plant.step,
        )  # fmt: skip
    finally:
        scheduler.close()
        if not scheduler.is_running:
            ring.close()
