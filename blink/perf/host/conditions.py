"""HostConditions: what a host is like for the engine on it, given the other jobs and the mitigations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from blink.common.errors import InputError
from blink.common.results import I64
from blink.perf.host.cores import CoreShare, core_share
from blink.perf.host.interference import Interference, Mitigations
from blink.perf.host.memory import MemoryState, memory_state
from blink.perf.host.operation import HostOp, OpCharacter, load_operations
from blink.perf.host.profile import HostProfile
from blink.perf.host.stall import StallDistribution, competitors


@dataclass(frozen=True, slots=True)
class HostCounters:
    """What performance counters of the engine's cores would show; `*_ratio` is over the undisturbed host."""

    llc_miss_rate: float
    dtlb_misses_ratio: float
    walk_active_ratio: float
    llc_stall_ratio: float
    page_walk_share_of_llc_stall: float
    memory_utilization: float
    cores_available: float
    oversubscription: float


@dataclass(frozen=True, slots=True)
class HostConditions:
    """How much longer each kind of host work runs, what interrupts it, and how late a blocked thread wakes.

    `device_path_ratio` is the factor on the latency of a device's path through the host's PCIe root and memory: all
    that a server without CPU work in its steady state still feels.
    """

    inflation: Mapping[HostOp, float]
    stall: StallDistribution
    counters: HostCounters
    device_path_ratio: float
    cores: CoreShare

    def op_ns(self, kind: HostOp, base_ns: float, rng: np.random.Generator) -> int:
        """Time from start to end of host work that takes `base_ns` of CPU time on the undisturbed host."""
        cpu_ns = base_ns * self.inflation[kind]
        return round(cpu_ns + self.stall.sample_ns(cpu_ns, rng))

    def op_ns_many(self, kind: HostOp, base_ns: I64, rng: np.random.Generator) -> I64:
        """The same for an int64 array of stretches, all of one kind."""
        cpu_ns: I64 = np.rint(base_ns * self.inflation[kind]).astype(np.int64)
        return cpu_ns + self.stall.sample_many_ns(cpu_ns, rng)

    def mean_op_ns(self, kind: HostOp, base_ns: float) -> float:
        """The expectation of `op_ns`."""
        return base_ns * self.inflation[kind] * (1.0 + self.stall.load)

    def wakeup_ns(self, rng: np.random.Generator) -> int:
        """From the event that a blocked thread waits for (a message, an interrupt) until it runs again."""
        cores = self.cores
        late = float(cores.wakeup_ns)
        if cores.kernel.busy > 0.0 and float(rng.random()) < cores.kernel.busy:
            late += cores.kernel.draw_remaining_ns(rng)
        if cores.competitors > 0.0 and float(rng.random()) >= cores.wakeup_preempts:
            rivals = competitors(cores.competitors, cores.imbalance, rng)
            late += rivals * float(rng.random()) * cores.slice_ns
        return round(late)

    def spin_ns(self, wait_ns: float, rng: np.random.Generator) -> int:
        """From now until a thread that spins for something `wait_ns` away has seen it: it may be off its core then."""
        return round(wait_ns + self.stall.overlap_ns(rng))


def conditions(
    host: HostProfile,
    interference: Interference,
    mitigations: Mitigations,
    victim_threads: int,
    *,
    reserved_cores: int = 0,
    operations: Mapping[HostOp, OpCharacter] | None = None,
) -> HostConditions:
    """The conditions on `host` for an engine of `victim_threads` busy threads.

    `reserved_cores` hardware threads are the engine's alone as far as user code goes; 0: it competes on all of them.
    Without interference and mitigations every inflation is exactly 1 and the only stalls are the system's noise.
    Raises InputError for reserved cores or cache ways that the host does not have.
    """
    _check(host, mitigations, victim_threads, reserved_cores, 1 + interference.neighbours)
    characters = load_operations() if operations is None else operations
    cores = core_share(host, interference, mitigations, victim_threads, reserved_cores)
    idle = core_share(host, Interference(), Mitigations(), victim_threads, reserved_cores)
    state = memory_state(host, interference, mitigations, cores, characters)
    base = memory_state(host, Interference(), Mitigations(), idle, characters)
    slowed = math.prod(found.inflation for found in interference.measured)
    return HostConditions(
        inflation={kind: slowed * state.instruction_ns[kind] / base.instruction_ns[kind] for kind in characters},
        stall=cores.stall,
        counters=_counters(state, base, cores),
        device_path_ratio=1.0 + host.device_path_memory_share * (state.dram_ns / base.dram_ns - 1.0),
        cores=cores,
    )


def _counters(state: MemoryState, base: MemoryState, cores: CoreShare) -> HostCounters:
    return HostCounters(
        llc_miss_rate=state.llc_miss_rate,
        dtlb_misses_ratio=state.walks / base.walks,
        walk_active_ratio=state.walk_active_ns / base.walk_active_ns,
        llc_stall_ratio=state.llc_stall_ns / base.llc_stall_ns,
        page_walk_share_of_llc_stall=state.walk_active_ns / state.llc_stall_ns,
        memory_utilization=state.memory_utilization,
        cores_available=cores.available,
        oversubscription=cores.oversubscription,
    )


def _check(host: HostProfile, mitigations: Mitigations, victim_threads: int, reserved_cores: int, engines: int) -> None:
    if victim_threads < 1:
        raise InputError(f"host: victim_threads: {victim_threads!r} is not allowed; allowed: at least 1")
    if not 0 <= reserved_cores <= host.thread_count:
        raise InputError(
            f"host.reserved_cores = {reserved_cores}: must be between 0 and {host.thread_count}, "
            f"the hardware threads of {host.name}"
        )
    if engines * reserved_cores > host.thread_count:
        raise InputError(
            f"host.reserved_cores = {reserved_cores}: {engines} engines on a host keep {engines * reserved_cores} "
            f"hardware threads, and {host.name} has {host.thread_count}"
        )
    ways = mitigations.cat_ways
    if ways is not None and not 1 <= ways <= host.llc_ways:
        raise InputError(f"mitigations.cat_ways = {ways}: must be between 1 and {host.llc_ways}, those of {host.name}")
    if not -20 <= mitigations.nice <= 19:
        raise InputError(f"mitigations.nice = {mitigations.nice}: must be between -20 and 19")
