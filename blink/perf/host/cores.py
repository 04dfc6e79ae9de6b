"""CoreShare: who else wants the engine's cores, and what that means for work that runs there or wakes there."""

from __future__ import annotations

import math
from dataclasses import dataclass

from blink.common.units import NS_PER_S
from blink.perf.host.interference import Interference, Mitigations
from blink.perf.host.measured import MeasuredWork
from blink.perf.host.profile import HostProfile
from blink.perf.host.stall import KernelQueue, StallDistribution, StallSource

SLICES = "slices"
"""The source of stalls that is the turns of competitors."""


@dataclass(frozen=True, slots=True)
class CoreShare:
    """The engine's cores as its threads see them.

    `competitors` is the mean number of other runnable user threads on a core of the engine, `kernel` the work of
    the kernel for the other jobs that holds it, `migrations_per_s` counts per second of work, and
    `oversubscription` is runnable threads per hardware thread of those the engine may use;
    `rival_weight` the scheduler's weight of a competitor over the engine's; `first_beside` how many others run on the
    core where one of its threads starts, which is one with fewest.
    """

    available: float
    reserved: int
    busy_threads: int
    oversubscription: float
    competitors: float
    imbalance: float
    placement_ns: int
    first_beside: int
    kernel: KernelQueue
    slice_ns: int
    rival_weight: float
    wakeup_ns: int
    wakeup_preempts: float
    migrations_per_s: float
    stall: StallDistribution


def core_share(
    host: HostProfile, interference: Interference, mitigations: Mitigations, victim_threads: int, reserved_cores: int
) -> CoreShare:
    """How the engine shares its cores: see `docs/host.md`, "Cores"."""
    rivals = _competitors(host, interference, victim_threads, reserved_cores)
    busy = _kernel_busy(host, interference, mitigations, reserved_cores)
    section_ns = float(host.section_ns)
    if mitigations.huge_pages_interferer and interference.threads:
        section_ns *= host.huge_page_section_ratio
    imbalance = 0.0 if mitigations.pinning else host.imbalance_share
    weight = host.nice_weight_step**mitigations.nice
    noise = StallSource("noise", host.noise_per_s, host.noise_ns)
    queue = KernelQueue(busy, section_ns)
    kernel = StallSource.kernel(queue)
    turns = StallSource(
        SLICES,
        NS_PER_S / host.slice_ns * weight if rivals else 0.0,
        rivals * host.slice_ns,
        slice_ns=host.slice_ns,
        imbalance=imbalance,
    )
    found = [_measured(work) for work in interference.measured]
    moved = 0.0 if mitigations.pinning else host.migration_share * (kernel.rate_per_s + turns.rate_per_s)
    owned = reserved_cores or host.thread_count
    return CoreShare(
        available=owned * (1.0 - busy) / (1.0 + rivals),
        reserved=reserved_cores,
        busy_threads=min(victim_threads, owned),
        oversubscription=(
            victim_threads / owned + (0.0 if reserved_cores else _others(interference, victim_threads) / owned)
        ),
        competitors=rivals,
        imbalance=imbalance,
        placement_ns=0 if mitigations.pinning else host.placement_ns,
        first_beside=0 if reserved_cores else int(_others(interference, victim_threads) // host.thread_count),
        kernel=queue,
        slice_ns=host.slice_ns,
        rival_weight=weight,
        wakeup_ns=host.wakeup_ns,
        wakeup_preempts=1.0 - min(1.0, (1.0 - host.wakeup_preempts_share) * weight),
        migrations_per_s=moved,
        stall=StallDistribution(tuple(source for source in (noise, kernel, turns, *found) if source.load > 0.0)),
    )


def _measured(work: MeasuredWork) -> StallSource:
    lengths = work.stall_lengths_ns
    mean = math.fsum(lengths) / len(lengths) if lengths else 0.0
    return StallSource("measured", work.stalls_per_s, mean, lengths_ns=lengths)


def _competitors(host: HostProfile, interference: Interference, victim_threads: int, reserved_cores: int) -> float:
    """Other runnable threads on a core of the engine: none if its cores are reserved, else what exceeds free cores."""
    if reserved_cores:
        return 0.0
    free = max(0, host.thread_count - victim_threads)
    return host.crowding * max(0.0, _others(interference, victim_threads) - free) / host.thread_count


def _others(interference: Interference, victim_threads: int) -> float:
    """Runnable user threads beside the engine's: of the other jobs, and of neighbours as many as its own of each."""
    return interference.total("cpu_share") + interference.neighbours * victim_threads


def _kernel_busy(host: HostProfile, interference: Interference, mitigations: Mitigations, reserved_cores: int) -> float:
    """Share of a core's time that kernel work of the other jobs takes.

    One part runs on every core alike. The rest is queued wherever a core has time left: while other cores idle it
    stays away, but once the jobs fill all others, the reserved cores are the only ones left: those of all engines on
    the host, which share it.
    """
    work = interference.total("kernel_share")
    if not reserved_cores:
        return min(host.kernel_busy_max, work / host.thread_count)
    kept = reserved_cores * (1 + interference.neighbours)
    idle = max(0.0, host.thread_count - kept - interference.total("cpu_share"))
    roaming = host.roaming_share * (1.0 - host.steered_share * mitigations.dedicated_cores)
    everywhere = 1.0 - host.roaming_share
    share = work * (everywhere / host.thread_count + roaming / (kept + idle))
    return min(host.kernel_busy_max, share)
