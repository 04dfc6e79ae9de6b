"""FabricProfile: how the GPUs of a replica reach each other, and host memory; collectives over that topology.

The graph has GPUs, NVLink and PCIe switches, root complexes, adapters and the network between hosts. A collective is a
ring over the GPUs in their order: each step moves a piece from every GPU to the next, over the way on which a mebibyte
arrives first; edges that several of these ways share are shared by their bandwidth. So a group within NVLink, one
across PCIe roots and one across hosts come out as differently as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blink.common.profile import Constant, constant, load_profile, typed_values
from blink.common.units import MIB, NS_PER_S

Way = tuple[float, float]
"""Latency in ns and bandwidth in bytes/s."""
ROUTED_BYTES = MIB
"""The message whose way is taken: by latency alone two GPUs below one PCIe switch would not use their NVLink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricProfile:
    """Links of a host and between hosts, one direction each. `*_gpus`: how many GPUs share one of them."""

    name: str
    constants: Mapping[str, Constant] = field(repr=False)
    gpus_per_host: int = constant("GPUs", 1)
    nvlink_gpus: int = constant("GPUs", 1)
    nvlink_latency_ns: int = constant("ns")
    nvlink_bytes_per_s: float = constant("bytes/s", 1)
    pcie_switch_gpus: int = constant("GPUs", 1)
    pcie_latency_ns: int = constant("ns")
    pcie_bytes_per_s: float = constant("bytes/s", 1)
    root_latency_ns: int = constant("ns")
    root_bytes_per_s: float = constant("bytes/s", 1)
    nic_gpus: int = constant("GPUs", 1)
    network_latency_ns: int = constant("ns")
    network_bytes_per_s: float = constant("bytes/s", 1)
    collective_ns: int = constant("ns")

    @classmethod
    def load(cls, name_or_path: str | Path) -> FabricProfile:
        """A shipped fabric by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("fabric", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))

    def graph(self, gpu_count: int) -> Any:
        """A networkx.DiGraph of so many GPUs, hosts filled in order; nodes are (kind, number), edges have both figures.

        Edges: `latency_ns`, `bytes_per_s`, and `piece_ns` by which ways are chosen.
        """
        import networkx as nx  # only who asks for a fabric pays for it

        graph: nx.DiGraph[Any] = nx.DiGraph()

        def join(one: Any, other: Any, latency_ns: float, bytes_per_s: float) -> None:
            for pair in ((one, other), (other, one)):
                piece_ns = latency_ns + ROUTED_BYTES / bytes_per_s * NS_PER_S
                graph.add_edge(*pair, latency_ns=latency_ns, bytes_per_s=bytes_per_s, piece_ns=piece_ns)

        for gpu in range(gpu_count):
            host, place = divmod(gpu, self.gpus_per_host)
            here: Any = ("gpu", gpu)
            switch, root = ("pcie", (host, place // self.pcie_switch_gpus)), ("root", host)
            nic = ("nic", (host, place // self.nic_gpus))
            if self.nvlink_gpus > 1:
                link = ("nvlink", (host, place // self.nvlink_gpus))
                join(here, link, self.nvlink_latency_ns, self.nvlink_bytes_per_s)
            join(here, switch, self.pcie_latency_ns, self.pcie_bytes_per_s)
            join(switch, root, self.root_latency_ns, self.root_bytes_per_s)
            join(switch, nic, self.pcie_latency_ns, self.pcie_bytes_per_s)
            join(nic, ("network", 0), self.network_latency_ns, self.network_bytes_per_s)
        return graph


class Collectives:
    """Times of collectives in a group of GPUs, given by their numbers in the fabric's order."""

    def __init__(self, profile: FabricProfile, gpus: tuple[int, ...]) -> None:
        self._profile, self._gpus = profile, gpus
        self._graph = profile.graph(max(gpus) + 1)
        ring = [(one, gpus[(place + 1) % len(gpus)]) for place, one in enumerate(gpus)] if len(gpus) > 1 else []
        paths = [self._edges(*pair) for pair in ring]
        load = Counter(edge for path in paths for edge in path)
        ways = [self._way(path, load) for path in paths]
        self.step_latency_ns = max((latency for latency, _ in ways), default=0.0)
        self.ring_bytes_per_s = min((rate for _, rate in ways), default=float("inf"))

    def all_reduce_ns(self, size_bytes: float) -> float:
        """Ring: 2 (n - 1) steps of a piece of 1 / n each (Patarasu and Yuan, 2009); or, of little, all to all at once.

        In the second way every GPU reads all of the others and adds them itself: one step, n - 1 times the bytes.
        """
        count = len(self._gpus)
        if count == 1:
            return 0.0
        ring = 2 * (count - 1) * (self.step_latency_ns + size_bytes / count / self.ring_bytes_per_s * NS_PER_S)
        direct = self.step_latency_ns + (count - 1) * size_bytes / self.ring_bytes_per_s * NS_PER_S
        return self._profile.collective_ns + min(ring, direct)

    def all_gather_ns(self, size_bytes: float) -> float:
        """Of `size_bytes` in all: n - 1 steps of a piece of 1 / n each."""
        count = len(self._gpus)
        if count == 1:
            return 0.0
        piece = size_bytes / count / self.ring_bytes_per_s * NS_PER_S
        return self._profile.collective_ns + (count - 1) * (self.step_latency_ns + piece)

    def pass_on_ns(self, size_bytes: float) -> float:
        """From each GPU to the next in the ring, all at the same time."""
        return self.step_latency_ns + size_bytes / self.ring_bytes_per_s * NS_PER_S

    def _edges(self, source: int, target: int) -> list[tuple[Any, Any]]:
        import networkx as nx

        nodes = nx.shortest_path(self._graph, ("gpu", source), ("gpu", target), weight="piece_ns")
        return list(nx.utils.pairwise(nodes))

    def _way(self, edges: list[tuple[Any, Any]], load: Counter[tuple[Any, Any]]) -> Way:
        found = [self._graph.edges[edge] for edge in edges]
        latency = sum(edge["latency_ns"] for edge in found)
        rate = min(self._graph.edges[edge]["bytes_per_s"] / max(1, load[edge]) for edge in edges)
        return float(latency), float(rate)
