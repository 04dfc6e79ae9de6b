"""HostOp: the kinds of work that an engine does on the host's CPU, and OpCharacter: how each uses the memory system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from blink.common.profile import Constant, constant, load_profile, typed_values


class HostOp(Enum):
    """Kinds of host work; the value is the name of the operation's profile."""

    SCHEDULE = "schedule"  # admit, form the batch, manage KV blocks
    BUILD_INPUTS = "build-inputs"  # block tables, positions and metadata of a step; dispatch of one layer's attention
    ALLOCATE = "allocate"  # create a tensor without a kernel
    LAUNCH = "launch"  # one kernel or graph launch through the driver
    SYNC_COPY = "sync-copy"  # copy results back and synchronise: the CPU's part, not the wait for the GPU
    DETOKENIZE = "detokenize"
    STREAM_OUT = "stream-out"  # format and write one event of a stream
    TOKENIZE = "tokenize"
    HTTP = "http"  # receive and parse a request
    IPC = "ipc"  # one message between processes: serialise, system calls, deserialise; not the wake-up


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCharacter:
    """What one kind of host work asks of a core and of the memory behind its private caches.

    `core_cycles_per_instruction` holds all time that other jobs cannot touch, hits in L1 and L2 included.
    `working_set_bytes` are the pages that it touches, `reused_bytes` the lines of them that it finds again in a cache
    if nobody has taken their place. `busy_share` is the kind's share of the time of an engine's busy threads on an
    undisturbed host; for the rest they wait, mostly for the GPU.
    """

    name: str
    constants: Mapping[str, Constant] = field(repr=False)
    core_cycles_per_instruction: float = constant("cycles/instruction", 0.01)
    instructions_per_llc_access: float = constant("instructions", 1)
    instructions_per_walk: float = constant("instructions", 1)
    working_set_bytes: int = constant("bytes", 1)
    reused_bytes: int = constant("bytes", 1)
    busy_share: float = constant("ratio", 0, 1)

    @classmethod
    def load(cls, name_or_path: str | Path) -> OpCharacter:
        """A shipped operation by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("operation", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))


def load_operations() -> dict[HostOp, OpCharacter]:
    """The shipped character of every kind of host work."""
    return {kind: OpCharacter.load(kind.value) for kind in HostOp}
