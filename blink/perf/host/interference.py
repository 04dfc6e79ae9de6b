"""The other jobs on the host: what one thread of each asks of it, how many run and where; and the mitigations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from blink.common.errors import InputError
from blink.common.profile import Constant, constant, load_profile, typed_values
from blink.perf.host.measured import MeasuredWork

Placement = Literal["spread", "near"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfererProfile:
    """What one thread of a job asks of the host.

    `memory_bytes_per_s` is its traffic to memory when it finds the LLC contended, which is also the rate at which it
    fills LLC lines. `kernel_share` is work of the kernel on cores other than its own, as a share of one
    core: write-back, reclaim, interrupts, freeing of pages, and locks held meanwhile.
    """

    name: str
    constants: Mapping[str, Constant] = field(repr=False)
    llc_footprint_bytes: int = constant("bytes", 0)
    memory_bytes_per_s: float = constant("bytes/s", 0)
    invalidations_per_s: float = constant("1/s", 0)
    kernel_share: float = constant("ratio", 0, 1)
    cpu_share: float = constant("ratio", 0, 1)

    @classmethod
    def load(cls, name_or_path: str | Path) -> InterfererProfile:
        """A shipped job by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("interferer", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))


@dataclass(frozen=True, slots=True)
class Job:
    """A job and the number of its threads."""

    profile: InterfererProfile
    threads: float

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise InputError(f"interference: {self.profile.name}: threads: {self.threads!r}; allowed: at least 0")


@dataclass(frozen=True, slots=True)
class Interference:
    """All that shares the host with the engine.

    `jobs`: other jobs; `spread`: evenly over the sockets; `near`: the engine's socket is filled first. `neighbours`:
    further engines of the same kind, each with as many busy threads and reserved hardware threads as this one.
    """

    jobs: tuple[Job, ...] = ()
    placement: Placement = "spread"
    measured: tuple[MeasuredWork, ...] = ()
    neighbours: int = 0

    @property
    def threads(self) -> float:
        """Threads of all jobs."""
        return sum(job.threads for job in self.jobs)

    def total(self, quantity: str) -> float:
        """A per-thread constant of the profiles, summed over all threads."""
        return sum(job.threads * float(getattr(job.profile, quantity)) for job in self.jobs)


@dataclass(frozen=True, slots=True)
class Mitigations:
    """What an operator may try. `cat_ways` None: the LLC is not partitioned; `nice` is the engine's."""

    huge_pages_victim: bool = False
    huge_pages_interferer: bool = False
    pinning: bool = False
    dedicated_cores: bool = False
    cat_ways: int | None = None
    nice: int = 0
