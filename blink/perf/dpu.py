"""DpuProfile: what the frontend's work costs on one core of a SmartNIC."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blink.common.profile import Constant, constant, load_profile, typed_values


@dataclass(frozen=True, slots=True, kw_only=True)
class DpuProfile:
    """Costs of one core. Every `*_ns` is processor time that occupies a core, not a wait."""

    name: str
    constants: Mapping[str, Constant] = field(repr=False)
    core_count: int = constant("cores", 1)
    memory_bytes: int = constant("bytes", 1)
    power_w: float = constant("W", 0)
    http_parse_ns: int = constant("ns")
    tokenize_reference_ns_per_token: float = constant("ns/token")
    tokenizer_speedup: float = constant("ratio", 0.001)
    detokenize_ns_per_token: float = constant("ns/token")
    sse_chunk_ns: int = constant("ns")
    verb_post_ns: int = constant("ns")
    write_post_ns: int = constant("ns", default=0)  # of a WRITE, where it takes longer than to post a READ
    completion_ns: int = constant("ns")
    status_scan_ns: int = constant("ns")
    token_read_ns_per_slot: int = constant("ns")

    @classmethod
    def load(cls, name_or_path: str | Path) -> DpuProfile:
        """A shipped DPU by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("dpu", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))

    @property
    def tokenize_ns_per_token(self) -> float:
        """Time of one prompt token on one core: the reference tokenizer's over the published speed-up."""
        return self.tokenize_reference_ns_per_token / self.tokenizer_speedup

    @property
    def write_ns(self) -> int:
        """To post one WRITE."""
        return self.write_post_ns or self.verb_post_ns

    def tokenize_ns(self, tokens: int) -> int:
        """Time to tokenize a prompt of `tokens` tokens on one core."""
        return round(tokens * self.tokenize_ns_per_token)

    def detokenize_ns(self, tokens: int) -> int:
        """Time to turn `tokens` output tokens into text on one core."""
        return round(tokens * self.detokenize_ns_per_token)
