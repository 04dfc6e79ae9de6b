"""HostProfile: cores, caches, TLBs, memory and scheduler of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blink.common.profile import Constant, constant, load_profile, typed_values


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProfile:
    """Constants of one server. Caches and bandwidth are per socket, TLB entries per hardware thread."""

    name: str
    constants: Mapping[str, Constant] = field(repr=False)

    # Cores.
    socket_count: int = constant("sockets", 1)
    cores_per_socket: int = constant("cores", 1)
    threads_per_core: int = constant("threads", 1)
    frequency_hz: float = constant("Hz", 1e6)

    # Caches, TLBs and memory.
    llc_bytes: int = constant("bytes", 1)
    llc_ways: int = constant("ways", 1)
    llc_ns: float = constant("ns", 0)
    dtlb_entries: int = constant("entries", 1)
    stlb_entries: int = constant("entries", 1)
    walk_fixed_ns: float = constant("ns", 0)
    walk_llc_accesses: float = constant("accesses", 0)
    dram_ns: float = constant("ns", 0)
    dram_service_ns: float = constant("ns", 0)
    memory_bandwidth_bytes_per_s: float = constant("bytes/s", 1)
    memory_efficiency: float = constant("ratio", 0.01, 1)
    memory_utilization_max: float = constant("ratio", 0, 0.99)
    llc_miss_floor: float = constant("ratio", 0, 1)
    invalidation_reach: float = constant("ratio", 0, 1)
    huge_page_walk_share: float = constant("ratio", 0, 1)
    huge_page_invalidation_share: float = constant("ratio", 0, 1)

    # The operating system.
    slice_ns: int = constant("ns", 1)
    imbalance_share: float = constant("ratio", 0, 0.5)
    placement_ns: int = constant("ns", 0, default=0)  # for which a busy thread's competitors stay; 0: for one turn
    crowding: float = constant("ratio", 0, 10, default=1.0)  # its competitors over those of an even spread
    migration_share: float = constant("ratio", 0, 1)
    wakeup_ns: int = constant("ns", 0)
    wakeup_preempts_share: float = constant("ratio", 0, 1)
    nice_weight_step: float = constant("ratio", 1)
    noise_per_s: float = constant("1/s", 0)
    noise_ns: int = constant("ns", 0)
    roaming_share: float = constant("ratio", 0, 1)
    kernel_busy_max: float = constant("ratio", 0, 0.99)
    section_ns: int = constant("ns", 1)
    huge_page_section_ratio: float = constant("ratio", 1)
    steered_share: float = constant("ratio", 0, 1)

    # What a device that needs no CPU still shares with it.
    device_path_memory_share: float = constant("ratio", 0, 1)

    @classmethod
    def load(cls, name_or_path: str | Path) -> HostProfile:
        """A shipped host by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("host", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))

    @property
    def thread_count(self) -> int:
        """Hardware threads of the whole server."""
        return self.socket_count * self.threads_per_socket

    @property
    def threads_per_socket(self) -> int:
        """Hardware threads of one socket."""
        return self.cores_per_socket * self.threads_per_core
