"""LengthsProfile: a truncated log-normal for prompts and one for outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from blink.common.profile import Constant, constant, load_profile, typed_values
from blink.workload.lognormal import TruncatedLogNormal


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthsProfile:
    """Means hold after the truncation; sigmas are those of the logarithm before it; bounds are in tokens."""

    name: str
    constants: Mapping[str, Constant] = field(repr=False)
    prompt_tokens_mean: float = constant("tokens", 1)
    prompt_tokens_sigma: float = constant("ln(tokens)")
    prompt_tokens_minimum: int = constant("tokens", 1)
    prompt_tokens_maximum: int = constant("tokens", 1)
    output_tokens_mean: float = constant("tokens", 1)
    output_tokens_sigma: float = constant("ln(tokens)")
    output_tokens_minimum: int = constant("tokens", 1)
    output_tokens_maximum: int = constant("tokens", 1)

    @classmethod
    def load(cls, name_or_path: str | Path) -> LengthsProfile:
        """A shipped profile by name, or a user's profile TOML by path. InputError says what is wrong with it."""
        profile = load_profile("lengths", name_or_path)
        return cls(name=profile.name, constants=profile.constants, **typed_values(cls, profile))

    @property
    def prompt_tokens(self) -> TruncatedLogNormal:
        """The prompts' distribution."""
        return TruncatedLogNormal(
            mean=self.prompt_tokens_mean,
            sigma=self.prompt_tokens_sigma,
            minimum=self.prompt_tokens_minimum,
            maximum=self.prompt_tokens_maximum,
        )

    @property
    def output_tokens(self) -> TruncatedLogNormal:
        """The outputs' distribution."""
        return TruncatedLogNormal(
            mean=self.output_tokens_mean,
            sigma=self.output_tokens_sigma,
            minimum=self.output_tokens_minimum,
            maximum=self.output_tokens_maximum,
        )
