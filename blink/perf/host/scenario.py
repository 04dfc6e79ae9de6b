"""From a scenario's tables to the conditions on its host."""

from __future__ import annotations

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.perf.host.conditions import HostConditions, conditions
from blink.perf.host.interference import Interference, InterfererProfile, Job, Mitigations
from blink.perf.host.measured import MeasuredWork
from blink.perf.host.profile import HostProfile


def host_conditions(scenario: Scenario, victim_threads: int, engines: int = 1) -> HostConditions:
    """The conditions for an engine of `victim_threads` busy threads, by [host], [interference] and [mitigations].

    `engines` of its kind stand on the host, this one too. Raises InputError for an unknown profile, and for cores or
    cache ways that the host does not have.
    """
    return conditions(
        HostProfile.load(scenario.host.profile),
        interference_of(scenario, engines),
        Mitigations(**scenario.mitigations.model_dump()),
        victim_threads,
        reserved_cores=scenario.host.reserved_cores,
    )


def interference_of(scenario: Scenario, engines: int = 1) -> Interference:
    """The jobs of [interference], with their threads scaled to `interference.threads` where that is given.

    Beside several engines they have the hardware threads that all of these leave: jobs that fill what one leaves are
    fewer by what the others keep.
    """
    mix = scenario.interference
    whole = sum(job.threads for job in mix.jobs)
    scale = 1.0 if mix.threads is None or not whole else mix.threads / whole
    scale *= _fitting(scenario, whole * scale, engines)
    jobs = tuple(
        Job(InterfererProfile.load(job.profile), job.threads * scale) for job in mix.jobs if job.profile is not None
    )
    measured = tuple(MeasuredWork.read(job.file) for job in mix.jobs if job.file is not None and job.threads)
    room = HostProfile.load(scenario.host.profile).thread_count - scenario.host.reserved_cores
    if jobs and room <= 0 and any(job.threads for job in jobs):
        raise InputError(f"host.reserved_cores = {scenario.host.reserved_cores}: no hardware thread is left for jobs")
    return Interference(jobs, mix.placement, measured, engines - 1)


def _fitting(scenario: Scenario, threads: float, engines: int) -> float:
    """Which share of the jobs' threads is left when so many engines keep their hardware threads, not one."""
    host, kept = HostProfile.load(scenario.host.profile), scenario.host.reserved_cores
    beside_one, left = host.thread_count - kept, host.thread_count - engines * kept
    wanted = min(threads, beside_one)
    return 1.0 if wanted <= left else max(0.0, left) / wanted
