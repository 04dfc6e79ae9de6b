"""FleetProfile: what lies around the replicas: the router, the hosts, and how long a replica takes to start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blink.common.profile import Constant, constant, load_profile, typed_values
from blink.common.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProfile:
    """`router_hop_ns` is one way, between the router and a frontend, beside the way between client and router."""

    name: str
    constants: Mapping[str, Constant] = field(repr=False)
    gpus_per_host: int = constant("GPUs", 1)
    router_ns: int = constant("ns")
    router_hop_ns: int = constant("ns")
    start_ns: int = constant("ns")
    load_bytes_per_s: float = constant("bytes/s", 1)
    graph_capture_ns: int = constant("ns")

    @classmethod
    def load(cls, name_or_path: str | Path) -> FleetProfile:
        """A shipped fleet by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("fleet", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))

    def warm_up_ns(self, weight_bytes: int, graph_count: int) -> int:
        """From the decision to start a replica until it serves: start, weights of a GPU, graphs."""
        return (
            self.start_ns + round(weight_bytes / self.load_bytes_per_s * NS_PER_S) + graph_count * self.graph_capture_ns
        )
