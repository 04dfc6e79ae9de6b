"""The paths of a run: named hops as a networkx graph, and the queues of their directions."""

from __future__ import annotations

import networkx as nx

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.common.units import transfer_ns
from blink.perf.host.scenario import host_conditions
from blink.perf.link import LinkProfile


def topology(scenario: Scenario) -> nx.DiGraph[str]:
    """Nodes are devices; an edge is one direction of a hop with `latency_ns` and `bandwidth_bytes_per_s`.

    `links.background` takes a share of a hop's bandwidth away, `links.extra_latency_ns` makes it longer. A hop that is
    shared with the host feels the other jobs' traffic to memory: `HostConditions.device_path_ratio`.
    Raises InputError for a hop that the link profile does not have.
    """
    profile = LinkProfile.load(scenario.links.profile)
    names = [hop.name for hop in profile.hops]
    for field in ("background", "extra_latency_ns"):
        for name in getattr(scenario.links, field):
            if name not in names:
                raise InputError(
                    f"links.{field}.{name}: no such hop in {profile.name}; its hops are {', '.join(names)}"
                )
    felt = host_conditions(scenario, victim_threads=1).device_path_ratio
    graph: nx.DiGraph[str] = nx.DiGraph()
    for hop in profile.hops:
        left = 1.0 - scenario.links.background.get(hop.name, 0.0)
        inside = round(hop.latency_ns * felt) if hop.shared else hop.latency_ns
        latency = inside + scenario.links.extra_latency_ns.get(hop.name, 0)
        bandwidth = max(1, int(hop.bandwidth_bytes_per_s * left))
        for source, target in ((hop.source, hop.target), (hop.target, hop.source)):
            graph.add_edge(source, target, name=hop.name, latency_ns=latency, bandwidth_bytes_per_s=bandwidth)
    return graph


class Path:
    """The way from one device to another: the sum of latencies, the least bandwidth, and the queue before it."""

    def __init__(self, graph: nx.DiGraph[str], source: str, target: str) -> None:
        nodes = nx.shortest_path(graph, source, target, weight="latency_ns")
        edges = [graph.edges[pair] for pair in nx.utils.pairwise(nodes)]
        self.hops = [str(edge["name"]) for edge in edges]
        self.latency_ns = sum(int(edge["latency_ns"]) for edge in edges)
        self.bandwidth_bytes_per_s = min(int(edge["bandwidth_bytes_per_s"]) for edge in edges)
        self._free_ns = 0
        self.bytes_sent = 0

    def one_way_ns(self, size_bytes: int) -> int:
        """Time of one message on an idle path."""
        return self.latency_ns + transfer_ns(size_bytes, self.bandwidth_bytes_per_s)

    def send(self, now_ns: int, size_bytes: int) -> int:
        """When a message handed over at `now_ns` has arrived: in order, behind what was handed over before."""
        self._free_ns = max(now_ns, self._free_ns) + transfer_ns(size_bytes, self.bandwidth_bytes_per_s)
        self.bytes_sent += size_bytes
        return self._free_ns + self.latency_ns
