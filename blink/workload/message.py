"""MessageProfile: how large the messages between clients and the frontend are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blink.common.profile import Constant, constant, load_profile, typed_values


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageProfile:
    """Sizes on the wire, in bytes."""

    name: str
    constants: Mapping[str, Constant] = field(repr=False)
    request_head_bytes: int = constant("bytes", 1)
    prompt_bytes_per_token: int = constant("bytes/token", 1)
    chunk_bytes: int = constant("bytes", 1)

    @classmethod
    def load(cls, name_or_path: str | Path = "http") -> MessageProfile:
        """A shipped profile by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("message", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))

    def request_bytes(self, prompt_tokens: int) -> int:
        """Size of a request whose prompt has that many tokens."""
        return self.request_head_bytes + self.prompt_bytes_per_token * prompt_tokens
