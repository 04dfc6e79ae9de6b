"""Placement: which replicas of a fleet share a host."""

from __future__ import annotations

from dataclasses import dataclass

from blink.common.config import Scenario
from blink.perf.fleet import FleetProfile
from blink.perf.host.profile import HostProfile

KINDS_WITHOUT_HOST = ("blink",)
"""Stacks that need no host CPU in their steady state, so that neighbours on the host are nothing to them."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Replicas fill hosts one after the other, `per_host` each; a replica of several hosts has `hosts_each` alone."""

    per_host: int
    hosts_each: int
    felt: bool

    @classmethod
    def of(cls, scenario: Scenario) -> Placement:
        """By the GPUs of a replica and those of a host, and by the hardware threads that a replica keeps."""
        assert scenario.fleet is not None
        fleet, gpus = FleetProfile.load(scenario.fleet.profile), scenario.gpu.gpu_count
        felt = scenario.system.kind not in KINDS_WITHOUT_HOST
        if gpus > fleet.gpus_per_host:
            return cls(1, -(-gpus // fleet.gpus_per_host), felt)
        kept = scenario.host.reserved_cores if felt else 0
        most = HostProfile.load(scenario.host.profile).thread_count // kept if kept else fleet.gpus_per_host
        return cls(max(1, min(fleet.gpus_per_host // gpus, most)), 1, felt)

    def hosts(self, replicas: int) -> int:
        """Hosts of so many replicas."""
        return self.hosts_each * -(-replicas // self.per_host)

    def engines(self, place: int, replicas: int) -> int:
        """Engines on the host of the replica at a place, from 0, that feel one another; itself too."""
        if not self.felt:
            return 1
        first = place // self.per_host * self.per_host
        return max(1, min(self.per_host, replicas - first))
