"""GpuProfile: what one GPU can do, and what the persistent scheduler's loop costs on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blink.common.errors import InputError
from blink.common.profile import Constant, constant, load_profile, typed_values


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProfile:
    """Constants of one GPU. Efficiencies are shares of a peak; `constants` keeps every source and range."""

    name: str
    constants: Mapping[str, Constant] = field(repr=False)

    # Roofline.
    memory_bytes: int = constant("bytes", 1)
    memory_bandwidth_bytes_per_s: float = constant("bytes/s", 1)
    peak_flops_16bit: float = constant("flop/s", 1)
    peak_flops_8bit: float = constant("flop/s", 0, default=0.0)
    memory_efficiency: float = constant("ratio", 0.01, 1)
    flops_efficiency: float = constant("ratio", 0.01, 1)
    attention_bandwidth_efficiency: float = constant("ratio", 0.01, 1)
    attention_flops_efficiency: float = constant("ratio", 0.01, 1)
    kernel_floor_ns: int = constant("ns")
    gemm_ramp_ns: int = constant("ns")
    gemm_overlap_exponent: float = constant("exponent", 1)
    peer_bandwidth_bytes_per_s: float = constant("bytes/s", 1)
    all_reduce_latency_ns: int = constant("ns")

    # The clock under load (blink.perf.throttle); 0: it does not fall.
    throttle_time_ns: int = constant("ns", default=0)
    throttle_compute: float = constant("ratio", 0, 100, default=0.0)
    throttle_memory: float = constant("ratio", 0, 100, default=0.0)
    throttle_exponent: float = constant("exponent", 1, default=1.0)
    padding_saving: float = constant("ratio", 0, 1, default=0.0)

    # The scheduler's loop around a graph.
    trivial_node_ns: int = constant("ns")
    launch_ns: int = constant("ns")
    completion_ns: int = constant("ns")
    publish_ns: int = constant("ns")
    publish_per_slot_ns: int = constant("ns")
    scan_ns: int = constant("ns")
    claim_ns: int = constant("ns")
    claim_per_slot_ns: int = constant("ns")
    pause_ns: int = constant("ns")
    relaunch_ns: int = constant("ns")
    launch_window_max: int = constant("launches", 1)
    host_launch_ns: int = constant("ns")
    host_loop_ns: int = constant("ns")

    # Power.
    power_idle_w: float = constant("W", 0)
    power_max_w: float = constant("W", 1)

    @classmethod
    def load(cls, name_or_path: str | Path) -> GpuProfile:
        """A shipped GPU by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("gpu", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))

    @property
    def loop_overhead_ns(self) -> int:
        """Step period minus the graph's own duration, inside the launch window, with nothing to publish per slot."""
        return self.launch_ns + self.completion_ns + self.publish_ns

    def peak_flops(self, dtype_bytes: int) -> float:
        """Dense tensor-core FLOP/s at a weight width of 2 or 1 bytes; InputError if this GPU has no such rate."""
        rates = {2: self.peak_flops_16bit, 1: self.peak_flops_8bit}
        allowed = [width for width, rate in rates.items() if rate > 0]
        if dtype_bytes not in allowed:
            raise InputError(
                f"gpu {self.name}: dtype_bytes: {dtype_bytes!r} is not allowed; allowed: {', '.join(map(str, allowed))}"
            )
        return rates[dtype_bytes]
