"""LinkProfile: the path from a client to GPU memory as a list of named hops; only data, no simulation."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.profile import Constant, Profile, constant, load_profile, parse_constant, typed_value
from blink.common.units import transfer_ns

_HOP_KEYS = ("name", "from", "to", "latency_ns", "bandwidth_bytes_per_s", "shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One link, full duplex, from `source` to `target` and back.

    `latency_ns` is one way, for a message of no size; `bandwidth_bytes_per_s` is the payload rate of one direction,
    after headers. A `shared` hop also carries traffic that is not this path's, such as the host's own.
    """

    name: str
    source: str
    target: str
    shared: bool
    constants: tuple[Constant, ...] = dataclasses.field(repr=False)
    latency_ns: int = constant("ns")
    bandwidth_bytes_per_s: int = constant("bytes/s", 1)

    def one_way_ns(self, size_bytes: int) -> int:
        """Latency plus transfer of a message on an idle link."""
        return self.latency_ns + transfer_ns(size_bytes, self.bandwidth_bytes_per_s)


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """A topology: hops in order from the client to the GPU, each beginning where the one before ends."""

    name: str
    description: str
    hops: tuple[Hop, ...]

    @classmethod
    def load(cls, name_or_path: str | Path) -> LinkProfile:
        """A shipped topology by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("link", name_or_path)
        if profile.constants:
            raise InputError(f"{profile.origin}: constants: not allowed in a link profile; allowed: [[hop]] tables")
        hops = tuple(_hop(profile, index, table) for index, table in enumerate(profile.hops))
        _check_path(profile, hops)
        return cls(profile.name, profile.description, hops)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Devices along the path, the client first and the GPU last."""
        return (self.hops[0].source, *(hop.target for hop in self.hops))

    def between(self, source: str, target: str) -> tuple[Hop, ...]:
        """The hops from one device to another further along the path."""
        nodes = self.nodes
        for name in (source, target):
            if name not in nodes:
                raise InputError(f"link {self.name}: device: {name!r} is not allowed; allowed: {', '.join(nodes)}")
        start, end = nodes.index(source), nodes.index(target)
        if start > end:
            raise InputError(f"link {self.name}: {source} comes after {target}; the order is {', '.join(nodes)}")
        return self.hops[start:end]


def _hop(profile: Profile, index: int, table: Any) -> Hop:
    where = f"hop {index}"
    for key in table:
        if key not in _HOP_KEYS:
            raise InputError(f"{profile.origin}: {where} key: {key!r} is not allowed; allowed: {', '.join(_HOP_KEYS)}")
    texts = {key: table.get(key) for key in ("name", "from", "to")}
    for key, text in texts.items():
        if not isinstance(text, str) or not text:
            raise InputError(f"{profile.origin}: {where}.{key}: {text!r} is not allowed; allowed: a text")
    shared = table.get("shared", False)
    if not isinstance(shared, bool):
        raise InputError(f"{profile.origin}: {where}.shared: {shared!r} is not allowed; allowed: true, false")
    specs = {field.name: field for field in dataclasses.fields(Hop) if "unit" in field.metadata}
    found = {
        name: parse_constant(
            profile.origin,
            f"{where}.{name}",
            name,
            table.get(name),
            profile.default_kind,
            profile.default_source,
        )
        for name in specs
    }
    values = {name: typed_value(profile.origin, f"{where}.{name}", found[name], specs[name]) for name in specs}
    return Hop(
        name=texts["name"],
        source=texts["from"],
        target=texts["to"],
        shared=shared,
        constants=tuple(found.values()),
        **values,
    )


def _check_path(profile: Profile, hops: tuple[Hop, ...]) -> None:
    if not hops or hops[0].source != "client" or hops[-1].target != "gpu" or all(hop.target != "dpu" for hop in hops):
        raise InputError(f"{profile.origin}: hop: the path must begin at client, pass dpu and end at gpu")
    for before, after in itertools.pairwise(hops):
        if before.target != after.source:
            raise InputError(
                f"{profile.origin}: hop {after.name}: from: {after.source!r} is not allowed; allowed: {before.target}"
            )
    for what, names in (("name", [hop.name for hop in hops]), ("to", [hop.target for hop in hops])):
        if len(set(names)) != len(names):
            raise InputError(
                f"{profile.origin}: hop: {what}: {', '.join(names)} is not allowed; allowed: each one once"
            )
