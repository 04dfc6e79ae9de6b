"""MemoryState: TLB invalidations force walks, walks find a polluted LLC, and LLC misses pay a busy memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from blink.common.units import NS_PER_S
from blink.perf.host.cores import CoreShare
from blink.perf.host.interference import Interference, Mitigations
from blink.perf.host.operation import HostOp, OpCharacter
from blink.perf.host.profile import HostProfile

LINE_BYTES = 64
PAGE_BYTES = 4096
BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class MemoryState:
    """What the engine's cores find. `walks`, `walk_active_ns` and `llc_stall_ns` are per ns of undisturbed work."""

    instruction_ns: Mapping[HostOp, float]
    llc_miss_rate: float
    dram_ns: float
    memory_utilization: float
    walks: float
    walk_active_ns: float
    llc_stall_ns: float


@dataclass(frozen=True, slots=True)
class Mix:
    """The engine's kinds of work together, per ns of undisturbed work of one busy core.

    `working` is the share of its busy threads' time in which they work: while they wait, nothing fills the cache for
    them.
    """

    data_accesses: float
    walks: float
    working: float
    touched_bytes: int
    reused_bytes: int


def memory_state(
    host: HostProfile,
    interference: Interference,
    mitigations: Mitigations,
    cores: CoreShare,
    operations: Mapping[HostOp, OpCharacter],
) -> MemoryState:
    """Caches, TLBs and memory as the engine finds them: see `docs/host.md`, "Memory"."""
    mix = _mix(host, operations)
    factor = _walk_factor(host, interference, mitigations, cores, mix)
    walks = mix.walks * factor
    accesses = mix.data_accesses + walks * host.walk_llc_accesses
    lines_per_ns = accesses * cores.busy_threads * mix.working
    fills_per_ns = _on_socket(host, interference, cores, "memory_bytes_per_s") / LINE_BYTES / NS_PER_S
    jobs_bytes = _on_socket(host, interference, cores, "llc_footprint_bytes")
    engines = 1.0 + interference.neighbours / host.socket_count
    miss = miss_rate(host, mitigations, mix.reused_bytes, lines_per_ns, jobs_bytes, fills_per_ns, engines)
    utilization = _utilization(host, (lines_per_ns * engines * miss + fills_per_ns) * LINE_BYTES * NS_PER_S)
    dram_ns = host.dram_ns + host.dram_service_ns * utilization / (2.0 * (1.0 - utilization))
    return MemoryState(
        instruction_ns={kind: instruction_ns(host, op, factor, miss, dram_ns) for kind, op in operations.items()},
        llc_miss_rate=miss,
        dram_ns=dram_ns,
        memory_utilization=utilization,
        walks=walks,
        walk_active_ns=walks * _walk_ns(host, miss, dram_ns),
        llc_stall_ns=accesses * miss * dram_ns,
    )


def instruction_ns(host: HostProfile, op: OpCharacter, walk_factor: float, miss: float, dram_ns: float) -> float:
    """Mean time of one instruction: the core's own part, accesses that reach the LLC, and page walks."""
    core = op.core_cycles_per_instruction / host.frequency_hz * NS_PER_S
    data = _access_ns(host, miss, dram_ns) / op.instructions_per_llc_access
    return core + data + walk_factor * _walk_ns(host, miss, dram_ns) / op.instructions_per_walk


def miss_rate(
    host: HostProfile,
    mitigations: Mitigations,
    reused_bytes: float,
    lines_per_ns: float,
    jobs_bytes: float,
    fills_per_ns: float,
    engines: float = 1.0,
) -> float:
    """LLC miss rate of the engine, which accesses its `reused_bytes` `lines_per_ns` times, beside jobs on its socket.

    A shared LRU cache settles where each party holds lines in proportion to the rate at which it fills them, and the
    engine's filling is its accesses times this very miss rate; solved by bisection. What the jobs' footprint leaves
    over is the engine's in any case. `engines` on the socket, this one too, are alike: they miss as often, fill as
    fast, and share in equal parts what they have together.
    """
    private, contested = _partition(host, mitigations)
    floor, reused = host.llc_miss_floor, 1.0 - host.llc_miss_floor
    least = private + max(0.0, contested - jobs_bytes)

    def after(miss: float) -> float:
        filled = lines_per_ns * engines * miss
        share = filled / (filled + fills_per_ns) if fills_per_ns > 0.0 else 1.0
        held = max(least, private + contested * share) / engines
        return floor + reused * max(0.0, 1.0 - held / reused_bytes)

    low, high = floor, 1.0
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if after(middle) > middle else (low, middle)
    return high if high > floor + 1e-12 else floor


def _partition(host: HostProfile, mitigations: Mitigations) -> tuple[float, float]:
    """LLC bytes that are the engine's alone, and those it shares. Other jobs always keep one way, so it overlaps."""
    ways = mitigations.cat_ways
    if ways is None:
        return 0.0, float(host.llc_bytes)
    way_bytes = host.llc_bytes / host.llc_ways
    alone = min(ways, host.llc_ways - 1)
    return alone * way_bytes, (ways - alone) * way_bytes


def _mix(host: HostProfile, operations: Mapping[HostOp, OpCharacter]) -> Mix:
    whole = math.fsum(op.busy_share for op in operations.values())
    data, walks = [], []
    for op in operations.values():
        instructions = op.busy_share / whole / instruction_ns(host, op, 1.0, host.llc_miss_floor, host.dram_ns)
        data.append(instructions / op.instructions_per_llc_access)
        walks.append(instructions / op.instructions_per_walk)
    touched = sum(op.working_set_bytes for op in operations.values())
    reused = sum(op.reused_bytes for op in operations.values())
    return Mix(math.fsum(data), math.fsum(walks), whole, touched, reused)


def _walk_factor(
    host: HostProfile, interference: Interference, mitigations: Mitigations, cores: CoreShare, mix: Mix
) -> float:
    """Page walks over those of the undisturbed engine: every flush and every migration makes it refill its TLB."""
    sent = interference.total("invalidations_per_s")
    if mitigations.huge_pages_interferer:
        sent *= 1.0 - host.huge_page_invalidation_share
    flushes_per_ns = (sent * host.invalidation_reach + cores.migrations_per_s) / NS_PER_S
    refill = min(host.dtlb_entries + host.stlb_entries, mix.touched_bytes // PAGE_BYTES)
    factor = 1.0 + flushes_per_ns * refill / mix.walks
    return factor * (1.0 - host.huge_page_walk_share) if mitigations.huge_pages_victim else factor


def _on_socket(host: HostProfile, interference: Interference, cores: CoreShare, quantity: str) -> float:
    """A per-thread constant summed over the threads that run on the engine's socket."""
    threads = interference.threads
    if threads == 0:
        return 0.0
    here = threads / host.socket_count
    if interference.placement == "near":
        kept = cores.reserved * (1.0 + interference.neighbours / host.socket_count)
        room = max(0.0, host.threads_per_socket - kept)
        here = max(here, min(threads, room))
    return interference.total(quantity) * here / threads


def _utilization(host: HostProfile, bytes_per_s: float) -> float:
    return min(host.memory_utilization_max, bytes_per_s / (host.memory_bandwidth_bytes_per_s * host.memory_efficiency))


def _access_ns(host: HostProfile, miss: float, dram_ns: float) -> float:
    return host.llc_ns + miss * (dram_ns - host.llc_ns)


def _walk_ns(host: HostProfile, miss: float, dram_ns: float) -> float:
    return host.walk_fixed_ns + host.walk_llc_accesses * _access_ns(host, miss, dram_ns)
