"""HostEngineProfile: what a host-driven serving engine's processes spend on a CPU core, on an idle machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blink.common.profile import Constant, constant, load_profile, typed_values


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEngineProfile:
    """Processor time of each operation: fixed, per sequence of the step, per token. Hops are waits, not work.

    An engine that lacks an operation has 0 there.
    """

    name: str
    constants: Mapping[str, Constant] = field(repr=False)

    # A request on its way in.
    http_parse_ns: int = constant("ns")
    request_ns: int = constant("ns")  # the engine's own request object and its message to the core
    tokenize_ns: int = constant("ns")
    tokenize_ns_per_token: float = constant("ns/token")
    ipc_hop_ns: int = constant("ns")  # from one process to another, one way
    admit_ns: int = constant("ns")  # the core takes one request out of its inbox

    # A step in the engine core and its worker.
    schedule_ns: int = constant("ns")
    schedule_ns_per_sequence: int = constant("ns")
    prepare_ns: int = constant("ns")
    prepare_ns_per_sequence: int = constant("ns")
    prepare_ns_per_token: float = constant("ns/token")  # prompt tokens of the step
    launch_ns: int = constant("ns")  # forward, sampling and one graph launch of a captured decode batch
    kernel_launch_ns: int = constant("ns")  # one kernel that is launched on its own
    sync_ns: int = constant("ns")
    update_ns: int = constant("ns")
    update_ns_per_sequence: int = constant("ns")
    output_ns: int = constant("ns")
    output_ns_per_sequence: int = constant("ns")

    # Tokens on their way out.
    detokenize_ns: int = constant("ns")
    detokenize_ns_per_sequence: int = constant("ns")
    stream_ns: int = constant("ns")
    stream_ns_per_sequence: int = constant("ns")

    # Behaviour of this version.
    merges_chunks: bool = constant("flag", 0, 1)  # a server that is behind writes several tokens of a client together
    overlap: bool = constant("flag", 0, 1)  # async_scheduling, unless the scenario says otherwise
    captured_batch_max: int = constant("sequences", 1)
    captured_tokens_max: int = constant("tokens", 0)  # steps with prompts up to here are captured in pieces
    captured_kernel_share: float = constant("ratio", 0, 1)  # kernels of such a step that the CPU still launches
    reserve_prompt: bool = constant("flag", 0, 1)  # admit only if the whole prompt fits, not merely its first chunk
    watermark_share: float = constant("ratio", 0, 1)  # KV blocks kept free when a request is admitted
    reserved_bytes: int = constant("bytes", 0)  # GPU memory beside weights, activations and KV blocks
    ratio_initial: float = constant("ratio", 0, 1, default=1.0)  # of the output that admission still reserves
    ratio_minimum: float = constant("ratio", 0, 1, default=1.0)
    ratio_decay_steps: int = constant("steps", 1, default=1)

    @classmethod
    def load(cls, name_or_path: str | Path) -> HostEngineProfile:
        """A shipped profile by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("host-engine", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))
