"""Shapes: parameter counts against the public totals, Hugging Face configurations, and the expectation of experts."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common.errors import InputError
from blink.common.profile import list_profiles
from blink.perf.shape import HF_MODEL_TYPES, ModelShape

PUBLIC_TOTALS = {
    "bloom-176b": 176.25e9,
    "llama-2-70b": 68.98e9,
    "llama-3-8b": 8.03e9,
    "llama-3.1-8b": 8.03e9,
    "llama-3-70b": 70.6e9,
    "phi-4": 14.7e9,
    "qwen3-32b": 32.8e9,
    "qwen3-30b-a3b": 30.5e9,
    "smollm2-135m": 134.5e6,
}


def test_every_shipped_model_has_a_public_total() -> None:
    assert sorted(PUBLIC_TOTALS) == list_profiles("model")


@pytest.mark.parametrize("name", sorted(PUBLIC_TOTALS))
def test_parameter_count_is_the_public_total(name: str) -> None:
    assert ModelShape.load(name).param_count == pytest.approx(PUBLIC_TOTALS[name], rel=0.005)


def test_llama_3_8b_to_the_parameter() -> None:
    assert ModelShape.load("llama-3-8b").param_count == 8_030_261_248


def test_active_parameters() -> None:
    moe = ModelShape.load("qwen3-30b-a3b")
    assert moe.active_param_count == pytest.approx(3.3e9, rel=0.02)
    dense = ModelShape.load("qwen3-32b")
    assert dense.active_param_count == dense.param_count


def test_kv_bytes_by_hand() -> None:
    assert ModelShape.load("llama-3-8b").kv_bytes_per_token(2) == 131_072
    assert ModelShape.load("phi-4").kv_bytes_per_token(2) == 2 * 40 * 10 * 128 * 2
    assert ModelShape.load("qwen3-30b-a3b").kv_bytes_per_token(1) == 2 * 48 * 4 * 128


CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256},
    "mistral": {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 32000},
    "phi3": {"num_hidden_layers": 40, "hidden_size": 5120, "intermediate_size": 17920, "vocab_size": 100352},
    "qwen2": {"num_hidden_layers": 28, "hidden_size": 3584, "intermediate_size": 18944, "vocab_size": 152064},
    "qwen3": {"num_hidden_layers": 64, "hidden_size": 5120, "intermediate_size": 25600, "vocab_size": 151936},
    "mixtral": {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "qwen3_moe": {
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
    },
}
HEADS = {
    "llama": (32, 8, None),
    "mistral": (32, 8, None),
    "phi3": (40, 10, None),
    "qwen2": (28, 4, None),
    "qwen3": (64, 8, 128),
    "mixtral": (32, 8, None),
    "qwen3_moe": (32, 4, 128),
}
HF_TOTALS = {
    "llama": 8.03e9,
    "mistral": 7.24e9,
    "phi3": 14.66e9,
    "qwen2": 7.616e9,
    "qwen3": 32.76e9,
    "mixtral": 46.70e9,
    "qwen3_moe": 30.53e9,
}


def write_config(folder: Path, family: str, **changes: Any) -> Path:
    heads, kv_heads, head_dim = HEADS[family]
    config = {
        **CONFIGS[family],
        "model_type": family,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 8192,
        **({"head_dim": head_dim} if head_dim else {}),
        **changes,
    }
    path = folder / "config.json"
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))
    return path


@pytest.mark.parametrize("model_type", HF_MODEL_TYPES)
def test_hf_config_gives_the_public_total(tmp_path: Path, model_type: str) -> None:
    shape = ModelShape.from_hf_config(write_config(tmp_path, model_type))
    assert shape.param_count == pytest.approx(HF_TOTALS[model_type], rel=0.002)
    assert shape.name == tmp_path.name
    assert ModelShape.load(tmp_path) == shape
    assert ModelShape.load(tmp_path / "config.json") == shape


@pytest.mark.parametrize(("name", "model_type"), [("qwen3-32b", "qwen3"), ("qwen3-30b-a3b", "qwen3_moe")])
def test_hf_config_equals_the_shipped_profile(tmp_path: Path, name: str, model_type: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    assert ModelShape.load(write_config(folder, model_type, max_position_embeddings=40960)) == ModelShape.load(name)


def test_hf_defaults(tmp_path: Path) -> None:
    shape = ModelShape.from_hf_config(write_config(tmp_path, "llama", num_key_value_heads=None, head_dim=None))
    assert (shape.kv_head_count, shape.head_size, shape.tied_embeddings) == (32, 128, False)


@pytest.mark.parametrize(
    ("model_type", "changes", "says"),
    [
        ("llama", {"model_type": "mamba"}, "model_type: 'mamba' is not allowed; allowed: llama, mistral, mixtral"),
        ("llama", {"model_type": "absent"}, "model_type: None is not allowed"),
        ("llama", {"hidden_size": "absent"}, "hidden_size: None is not allowed"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers: 0 is not allowed"),
        ("llama", {"vocab_size": "many"}, "vocab_size: 'many' is not allowed"),
        ("llama", {"num_key_value_heads": 5}, "head_count: 32 is not allowed; allowed: a multiple of kv_head_count 5"),
        ("mixtral", {"num_experts_per_tok": 9}, "experts_per_token: 9 is not allowed"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "mlp_only_layers"),
    ],
)
def test_hf_refusals(tmp_path: Path, model_type: str, changes: dict[str, Any], says: str) -> None:
    path = write_config(tmp_path, model_type, **changes)
    with pytest.raises(InputError, match=says):
        ModelShape.from_hf_config(path)


@pytest.mark.parametrize(("text", "says"), [("{", "not valid JSON"), ("[]", "a list is not allowed")])
def test_hf_file_refusals(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        ModelShape.from_hf_config(path)
    with pytest.raises(InputError, match="cannot be read"):
        ModelShape.from_hf_config(tmp_path / "none.json")


def test_a_dense_model_needs_an_ffn() -> None:
    with pytest.raises(InputError, match="ffn_size: 0 is not allowed in a dense model"):
        dataclasses.replace(ModelShape.load("llama-3-8b"), ffn_size=0)


def test_experts_touched_limits() -> None:
    moe = ModelShape.load("qwen3-30b-a3b")
    assert moe.experts_touched(0) == 0
    assert moe.experts_touched(1) == pytest.approx(8)
    assert moe.experts_touched(100_000) == pytest.approx(128)
    assert ModelShape.load("llama-3-8b").experts_touched(7) == 0


@given(st.integers(0, 4096))
def test_experts_touched_is_bounded_and_grows(tokens: int) -> None:
    moe = ModelShape.load("qwen3-30b-a3b")
    now, later = moe.experts_touched(tokens), moe.experts_touched(tokens + 1)
    assert 0 <= now <= later <= 128
    assert now <= 8 * tokens + 1e-9


def test_experts_touched_agrees_with_random_routing() -> None:
    draw = random.Random(7)
    trials = 300
    total = sum(len({expert for _ in range(16) for expert in draw.sample(range(128), 8)}) for _ in range(trials))
    assert total / trials == pytest.approx(ModelShape.load("qwen3-30b-a3b").experts_touched(16), rel=0.02)
