"""Profiles for the twin from what was measured: a link, and what a verb costs the frontend's processor."""

from __future__ import annotations

from datetime import date
from typing import Any

from blink.common.layout import STATUS_ARRAY_BYTES
from blink.hw.verbs.bench import SIZES, Costs
from blink.perf.link import Hop, LinkProfile


def link_toml(costs: Costs, base: LinkProfile, name: str) -> str:
    """A link profile: the way from the client is that of `base`, the rest one hop with what was measured."""
    source = _source(costs)
    about = f"From the DPU to the ring as measured with device {costs.device}; the rest is that of {base.name}."
    lines = [
        'profile = "link"',
        f"name = {_text(name)}",
        f"description = {_text(about)}",
        "",
    ]
    for hop in base.between("client", "dpu"):
        lines += _hop(hop)
    lines += [
        "[[hop]]",
        'name = "dpu-gpu"',
        'from = "dpu"',
        'to = "gpu"',
        _constant("latency_ns", costs.latency_ns, "ns", f"half of a READ's time without its bytes; {source}"),
        _constant(
            "bandwidth_bytes_per_s", costs.bandwidth_bytes_per_s, "bytes/s", f"slope of READ times by size; {source}"
        ),
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def dpu_toml(costs: Costs, base: str, name: str) -> str:
    """A DPU profile: that of `base`, with the costs of verbs as they were measured by this program's own Python."""
    source = _source(costs)
    about = f"{base}, with the cost of verbs as Python posts them on device {costs.device}."
    return "\n".join(
        [
            'profile = "dpu"',
            f"name = {_text(name)}",
            f"description = {_text(about)}",
            f"carry_over = {_text(base)}",
            "",
            "[constants]",
            _constant("verb_post_ns", costs.post_ns, "ns", f"to post a WRITE of 8 bytes; {source}"),
            _constant("completion_ns", costs.completion_ns, "ns", f"to look for completions; {source}"),
            "",
        ]
    )


def _source(costs: Costs) -> str:
    return (
        f"blink bench rdma, device {costs.device}, {costs.rounds} rounds, {date.today().isoformat()}: "
        f"{costs.write_rate_per_s:.0f} WRITEs/s and {costs.read_rate_per_s:.0f} READs/s of 8 bytes, "
        f"a burst in one WRITE {costs.burst_gain:.1f} times as fast as apart"
    )


def _constant(name: str, value: int, unit: str, source: str) -> str:
    held = f"range = {{ size_bytes = [{SIZES[0]}, {STATUS_ARRAY_BYTES}] }}"
    return f'{name} = {{ value = {value}, unit = "{unit}", kind = "measured", source = {_text(source)}, {held} }}'


def _hop(hop: Hop) -> list[str]:
    lines = ["[[hop]]", f"name = {_text(hop.name)}", f"from = {_text(hop.source)}", f"to = {_text(hop.target)}"]
    if hop.shared:
        lines.append("shared = true")
    for found in hop.constants:
        parts: dict[str, Any] = {"value": found.value, "unit": _text(found.unit), "kind": _text(found.kind)}
        parts["source"] = _text(found.source)
        if found.range:
            parts["range"] = "{ " + ", ".join(f"{key} = {list(ends)}" for key, ends in found.range.items()) + " }"
        lines.append(f"{found.name} = {{ {', '.join(f'{key} = {value}' for key, value in parts.items())} }}")
    return [*lines, ""]


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
