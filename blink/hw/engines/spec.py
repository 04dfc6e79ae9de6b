"""DecoderSpec: what a decoder computes beyond its sizes, and where that stands in a model's files."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.perf.shape import ModelShape

HEAD_SIZES = (16, 32, 64, 128, 256)
"""Sizes of an attention head that the kernels' tiles fit."""
FAMILIES = ("llama", "qwen3")


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Stretched rotary frequencies, as Llama 3.1 has them: waves longer than the old context are slowed by `factor`."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int

    def frequency(self, frequency: float) -> float:
        """The scaled frequency, in radians a token."""
        turns = self.original_context_tokens * frequency / (2 * math.pi)
        if turns < self.low_freq_factor:
            return frequency / self.factor
        if turns > self.high_freq_factor:
            return frequency
        share = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return frequency * (share + (1 - share) / self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A dense decoder: RMSNorm, rotary embedding, grouped-query attention, SwiGLU, optional norm of queries and keys.

    `rope_interleaved`: the pairs that rotate together are elements (2i, 2i + 1) of a head, as in GGUF files, instead of
    (i, i + head_size / 2), as in Hugging Face files. `rope_base` and `norm_epsilon` have no unit.
    """

    shape: ModelShape
    rope_base: float
    norm_epsilon: float
    rope_interleaved: bool = False
    rope_scaling: RopeScaling | None = None
    eos_token: int | None = None

    def __post_init__(self) -> None:
        shape = self.shape
        if shape.expert_count or shape.qkv_bias:
            what = "a mixture of experts" if shape.expert_count else "a bias on queries, keys and values"
            raise InputError(f"model {shape.name}: {what} is not served; allowed: dense Llama and Qwen3 decoders")
        if shape.head_size not in HEAD_SIZES:
            allowed = ", ".join(str(size) for size in HEAD_SIZES)
            raise InputError(f"model {shape.name}: head_size: {shape.head_size} is not allowed; allowed: {allowed}")

    @classmethod
    def from_hf(cls, folder: Path) -> DecoderSpec:
        """Read config.json. InputError names the file, the field and what is allowed."""
        file = folder / "config.json" if folder.is_dir() else folder
        shape = ModelShape.from_hf_config(file)
        config: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if config.get("model_type") not in FAMILIES:
            raise InputError(
                f"{file}: model_type: {config.get('model_type')!r} is not served; allowed: {', '.join(FAMILIES)}"
            )
        if config.get("hidden_act", "silu") != "silu":
            raise InputError(f"{file}: hidden_act: {config['hidden_act']!r} is not allowed; allowed: silu")
        if config.get("use_sliding_window"):
            raise InputError(f"{file}: use_sliding_window: True is not served; allowed: false")
        # Newer files keep all of it in one table, rope_parameters; older ones keep base and scaling apart.
        rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        eos = config.get("eos_token_id")
        return cls(
            shape=shape,
            rope_base=_number(file, "rope_theta", rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
            norm_epsilon=_number(file, "rms_norm_eps", config.get("rms_norm_eps", 1e-6)),
            rope_scaling=_scaling(file, rope),
            eos_token=eos[0] if isinstance(eos, list) else eos,
        )

    def frequencies(self) -> list[float]:
        """Rotary frequency of each of head_size / 2 pairs, in radians a token."""
        size = self.shape.head_size
        plain = [self.rope_base ** (-2 * pair / size) for pair in range(size // 2)]
        return [self.rope_scaling.frequency(f) for f in plain] if self.rope_scaling else plain


def random_spec(shape: ModelShape) -> DecoderSpec:
    """A spec for random weights of a shape: base and epsilon are Llama 3's; they change no time and no size."""
    return DecoderSpec(shape=shape, rope_base=500_000.0, norm_epsilon=1e-5)


def _number(file: Path, field: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise InputError(f"{file}: {field}: {value!r} is not allowed; allowed: a number above 0")
    return float(value)


def _scaling(file: Path, rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise InputError(f"{file}: rope_type: {kind!r} is not served; allowed: default, llama3")
    return RopeScaling(
        factor=_number(file, "factor", rope.get("factor")),
        low_freq_factor=_number(file, "low_freq_factor", rope.get("low_freq_factor")),
        high_freq_factor=_number(file, "high_freq_factor", rope.get("high_freq_factor")),
        original_context_tokens=int(
            _number(file, "original_max_position_embeddings", rope.get("original_max_position_embeddings"))
        ),
    )
