"""RealTime: what a server's machine takes of wall time, for a model whose tokens are to be at their clients in time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from blink.common.profile import constant, load_profile, typed_values

DEFAULT = "loopback"


@dataclass(frozen=True, slots=True, kw_only=True)
class RealTime:
    """Times of wall time. The end of a prefill is known when it begins: `early_ns` before it, or `early_share` of its
    duration if that is less, it is computed. Only a request that arrives in between could have been seen at that
    boundary, and is seen at the next.
    """

    noticed_ns: int = constant("ns")  # from a client's sending to the arrival that the server counts
    told_ns: int = constant("ns")  # from the alarm to a chunk at the client
    early_ns: int = constant("ns")
    early_share: float = constant("ratio", 0, 1)

    @classmethod
    def load(cls, name_or_path: str | Path = DEFAULT) -> RealTime:
        """From a shipped profile by name, or a file by path. Raises InputError."""
        return cls(**typed_values(cls, load_profile("server", name_or_path)))
