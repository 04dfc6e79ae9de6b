"""Hosts and jobs that the tests of the host model share."""

from __future__ import annotations

from blink.perf.host.conditions import HostConditions, conditions
from blink.perf.host.interference import Interference, InterfererProfile, Job, Mitigations, Placement
from blink.perf.host.profile import HostProfile

XEON = HostProfile.load("xeon-6336y-2s")
NODE = HostProfile.load("h200-node")
PBZIP2, BUILD = InterfererProfile.load("pbzip2"), InterfererProfile.load("llvm-build")
RESERVED = 6
BUSY = 3
"""Threads of vLLM that work at the same time."""
NOTHING = Mitigations()


def published_jobs(threads: float, placement: Placement = "spread") -> Interference:
    """Half compression, half compiler build, as the published testbed had 45 and 45."""
    return Interference((Job(PBZIP2, threads / 2), Job(BUILD, threads / 2)), placement)


def beside(
    threads: float, mitigations: Mitigations = NOTHING, placement: Placement = "spread", reserved: int = RESERVED
) -> HostConditions:
    """The published testbed with so many threads of other jobs."""
    return conditions(XEON, published_jobs(threads, placement), mitigations, BUSY, reserved_cores=reserved)
