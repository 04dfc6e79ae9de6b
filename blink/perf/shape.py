"""ModelShape: the sizes of a decoder-only transformer, from which bytes and FLOPs follow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.profile import constant, list_profiles, load_profile, typed_values

HF_MODEL_TYPES = ("llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of identical layers with grouped-query attention and a gated FFN, dense or mixture-of-experts.

    Sliding-window attention is treated as full attention. `ffn_size` is the inner width of the dense FFN (0 in a
    mixture-of-experts model), `expert_ffn_size` that of one expert.
    """

    name: str
    layer_count: int = constant("layers", 1)
    hidden_size: int = constant("elements", 1)
    head_count: int = constant("heads", 1)
    kv_head_count: int = constant("heads", 1)
    head_size: int = constant("elements", 1)
    ffn_size: int = constant("elements", 0, default=0)
    vocab_size: int = constant("tokens", 1)
    context_tokens_max: int = constant("tokens", 1)
    tied_embeddings: bool = constant("flag", 0, 1, default=False)
    qkv_bias: bool = constant("flag", 0, 1, default=False)
    qk_norm: bool = constant("flag", 0, 1, default=False)
    expert_count: int = constant("experts", 0, default=0)
    experts_per_token: int = constant("experts", 0, default=0)
    expert_ffn_size: int = constant("elements", 0, default=0)

    def __post_init__(self) -> None:
        if self.head_count % self.kv_head_count:
            raise InputError(
                f"model {self.name}: head_count: {self.head_count} is not allowed; allowed: a multiple of "
                f"kv_head_count {self.kv_head_count}"
            )
        if self.expert_count and not (1 <= self.experts_per_token <= self.expert_count and self.expert_ffn_size):
            raise InputError(
                f"model {self.name}: experts_per_token: {self.experts_per_token} is not allowed with "
                f"{self.expert_count} experts of inner width {self.expert_ffn_size}; "
                f"allowed: 1 to {self.expert_count}, width at least 1"
            )
        if not self.expert_count and not self.ffn_size:
            raise InputError(f"model {self.name}: ffn_size: 0 is not allowed in a dense model; allowed: at least 1")

    @classmethod
    def load(cls, name_or_path: str | Path) -> ModelShape:
        """A shipped shape by name, a profile TOML by path, or a Hugging Face config.json or its folder."""
        path = Path(name_or_path)
        # A shipped name wins over a folder that happens to be called the same.
        if path.suffix == ".json" or (str(name_or_path) not in list_profiles("model") and path.is_dir()):
            return cls.from_hf_config(path)
        profile = load_profile("model", name_or_path)
        return cls(name=profile.name, **typed_values(cls, profile))

    @classmethod
    def from_hf_config(cls, path: str | Path) -> ModelShape:
        """Read config.json of one of HF_MODEL_TYPES. InputError names the file, the field and what is allowed."""
        file = Path(path)
        file = file / "config.json" if file.is_dir() else file
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{file}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"{file}: not valid JSON: {error}") from error
        if not isinstance(config, dict):
            raise InputError(f"{file}: a {type(config).__name__} is not allowed; allowed: an object")
        return cls(name=file.resolve().parent.name or file.stem, **_hf_values(file, config))

    @property
    def query_size(self) -> int:
        """Width of all query heads together, in elements."""
        return self.head_count * self.head_size

    @property
    def kv_size(self) -> int:
        """Width of all key heads together (values have the same), in elements."""
        return self.kv_head_count * self.head_size

    @property
    def attention_params_per_layer(self) -> int:
        """Elements of the QKV and output projections of one layer."""
        return self.hidden_size * (2 * self.query_size + 2 * self.kv_size)

    @property
    def expert_params(self) -> int:
        """Elements of one expert: gate, up and down matrices."""
        return 3 * self.hidden_size * self.expert_ffn_size

    @property
    def router_params_per_layer(self) -> int:
        return self.hidden_size * self.expert_count

    @property
    def ffn_params_per_layer(self) -> int:
        """Elements of a layer's FFN: all experts and the router, or the dense gate, up and down."""
        if self.expert_count:
            return self.expert_count * self.expert_params + self.router_params_per_layer
        return 3 * self.hidden_size * self.ffn_size

    @property
    def embedding_params(self) -> int:
        """Elements of the input embedding, which also is the size of an untied output head."""
        return self.vocab_size * self.hidden_size

    @property
    def param_count(self) -> int:
        """All parameters, norms and biases included."""
        head_count = 1 if self.tied_embeddings else 2
        return self.layer_count * self._params_per_layer + head_count * self.embedding_params + self.hidden_size

    @property
    def active_param_count(self) -> int:
        """Parameters that one token touches: the experts it is not routed to are left out."""
        idle = (self.expert_count - self.experts_per_token) * self.expert_params
        return self.param_count - self.layer_count * idle

    @property
    def _params_per_layer(self) -> int:
        bias = self.query_size + 2 * self.kv_size if self.qkv_bias else 0
        norms = 2 * self.hidden_size + (2 * self.head_size if self.qk_norm else 0)
        return self.attention_params_per_layer + self.ffn_params_per_layer + bias + norms

    def kv_bytes_per_token(self, dtype_bytes: int = 2) -> int:
        """Key and value of one token in all layers: 2 x layers x kv_heads x head_size x dtype_bytes."""
        return 2 * self.layer_count * self.kv_size * dtype_bytes

    def experts_touched(self, tokens: int) -> float:
        """Expected distinct experts of a layer that `tokens` tokens reach, if routing is uniform and independent.

        One token reaches k of E, so an expert stays untouched with probability (1 - k/E) ** tokens.
        """
        if not self.expert_count:
            return 0.0
        untouched = (1.0 - self.experts_per_token / self.expert_count) ** tokens
        return self.expert_count * (1.0 - untouched)


def _hf_values(file: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    model_type = config.get("model_type")
    if model_type not in HF_MODEL_TYPES:
        raise InputError(f"{file}: model_type: {model_type!r} is not allowed; allowed: {', '.join(HF_MODEL_TYPES)}")

    def size(field: str, default: int | None = None) -> int:
        value = config.get(field)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise InputError(f"{file}: {field}: {value!r} is not allowed; allowed: an integer of at least 1")
        return value

    heads = size("num_attention_heads")
    hidden = size("hidden_size")
    values: dict[str, Any] = {
        "layer_count": size("num_hidden_layers"),
        "hidden_size": hidden,
        "head_count": heads,
        "kv_head_count": size("num_key_value_heads", heads),
        "head_size": size("head_dim", hidden // heads),
        "vocab_size": size("vocab_size"),
        "context_tokens_max": size("max_position_embeddings"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "qkv_bias": model_type == "qwen2" or bool(config.get("attention_bias", False)),
        "qk_norm": model_type in ("qwen3", "qwen3_moe"),
    }
    if model_type == "mixtral":
        experts = {"expert_count": size("num_local_experts"), "expert_ffn_size": size("intermediate_size")}
    elif model_type == "qwen3_moe":
        if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
            raise InputError(f"{file}: mlp_only_layers: dense layers among sparse ones are not allowed; allowed: none")
        experts = {"expert_count": size("num_experts"), "expert_ffn_size": size("moe_intermediate_size")}
    else:
        return {**values, "ffn_size": size("intermediate_size")}
    return {**values, **experts, "experts_per_token": size("num_experts_per_tok")}
