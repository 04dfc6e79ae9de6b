"""Weights of a decoder as PyTorch tensors: random ones of a shape, or read from a model's files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.optional import need
from blink.hw.engines.lazy_torch import need_torch
from blink.hw.engines.spec import DecoderSpec

RANDOM_STD = 0.02
"""Standard deviation of random weights: that of a trained model, so that products take the power they really take."""

Tensor = Any
Read = Callable[[str], Tensor]
"""A tensor by its name in the file, on the CPU."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer; a matrix is (outputs, inputs). `query_norm` and `key_norm` are None where the model has none.

    `qkv`: queries, then keys, then values, ((heads + 2 kv_heads) x head_size, hidden). `gate_up`: gate, then up.
    """

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor
    query_norm: Tensor = None
    key_norm: Tensor = None


@dataclass(frozen=True, slots=True)
class Weights:
    """A decoder's weights on one device in one dtype. `head` is `embedding` itself where the two are tied."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Tensor


def random_weights(spec: DecoderSpec, device: str, dtype: Any, seed: int = 0) -> Weights:
    """Seeded normal matrices and norms of one, made on the device."""
    torch, shape = need_torch(), spec.shape
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(*size: int) -> Tensor:
        return torch.empty(*size, device=device, dtype=dtype).normal_(0, RANDOM_STD, generator=generator)

    def ones(size: int) -> Tensor:
        return torch.ones(size, device=device, dtype=dtype)

    def layer() -> LayerWeights:
        return LayerWeights(
            attention_norm=ones(shape.hidden_size),
            qkv=matrix(shape.query_size + 2 * shape.kv_size, shape.hidden_size),
            output=matrix(shape.hidden_size, shape.query_size),
            ffn_norm=ones(shape.hidden_size),
            gate_up=matrix(2 * shape.ffn_size, shape.hidden_size),
            down=matrix(shape.hidden_size, shape.ffn_size),
            query_norm=ones(shape.head_size) if shape.qk_norm else None,
            key_norm=ones(shape.head_size) if shape.qk_norm else None,
        )

    layers = tuple(layer() for _ in range(shape.layer_count))
    embedding = matrix(shape.vocab_size, shape.hidden_size)
    head = embedding if shape.tied_embeddings else matrix(shape.vocab_size, shape.hidden_size)
    return Weights(embedding, layers, ones(shape.hidden_size), head)


@dataclass(frozen=True, slots=True)
class Names:
    """How a file format names the tensors; `{}` stands for the layer."""

    embedding: str
    final_norm: str
    head: str
    attention_norm: str
    query: str
    key: str
    value: str
    output: str
    ffn_norm: str
    gate: str
    up: str
    down: str
    query_norm: str
    key_norm: str


HF_NAMES = Names(
    embedding="model.embed_tokens.weight",
    final_norm="model.norm.weight",
    head="lm_head.weight",
    attention_norm="model.layers.{}.input_layernorm.weight",
    query="model.layers.{}.self_attn.q_proj.weight",
    key="model.layers.{}.self_attn.k_proj.weight",
    value="model.layers.{}.self_attn.v_proj.weight",
    output="model.layers.{}.self_attn.o_proj.weight",
    ffn_norm="model.layers.{}.post_attention_layernorm.weight",
    gate="model.layers.{}.mlp.gate_proj.weight",
    up="model.layers.{}.mlp.up_proj.weight",
    down="model.layers.{}.mlp.down_proj.weight",
    query_norm="model.layers.{}.self_attn.q_norm.weight",
    key_norm="model.layers.{}.self_attn.k_norm.weight",
)


def named_weights(spec: DecoderSpec, names: Names, read: Read, device: str, dtype: Any) -> Weights:
    """Weights by name, fused and moved to the device. InputError from `read` names what is missing."""
    torch, shape = need_torch(), spec.shape

    def get(name: str, *size: int) -> Tensor:
        tensor = read(name)
        if tuple(tensor.shape) != size:
            raise InputError(f"model {shape.name}: {name}: shape {tuple(tensor.shape)} is not allowed; allowed: {size}")
        return tensor.to(device=device, dtype=dtype)

    def fused(index: int, *parts: tuple[str, int]) -> Tensor:
        return torch.cat([get(name.format(index), rows, shape.hidden_size) for name, rows in parts])

    def layer(index: int) -> LayerWeights:
        return LayerWeights(
            attention_norm=get(names.attention_norm.format(index), shape.hidden_size),
            qkv=fused(index, (names.query, shape.query_size), (names.key, shape.kv_size), (names.value, shape.kv_size)),
            output=get(names.output.format(index), shape.hidden_size, shape.query_size),
            ffn_norm=get(names.ffn_norm.format(index), shape.hidden_size),
            gate_up=fused(index, (names.gate, shape.ffn_size), (names.up, shape.ffn_size)),
            down=get(names.down.format(index), shape.hidden_size, shape.ffn_size),
            query_norm=get(names.query_norm.format(index), shape.head_size) if shape.qk_norm else None,
            key_norm=get(names.key_norm.format(index), shape.head_size) if shape.qk_norm else None,
        )

    embedding = get(names.embedding, shape.vocab_size, shape.hidden_size)
    head = embedding if shape.tied_embeddings else get(names.head, shape.vocab_size, shape.hidden_size)
    layers = tuple(layer(index) for index in range(shape.layer_count))
    return Weights(embedding, layers, get(names.final_norm, shape.hidden_size), head)


def safetensors_weights(folder: Path, spec: DecoderSpec, device: str, dtype: Any) -> Weights:
    """Weights of a folder in Hugging Face's layout: config.json beside one or more *.safetensors."""
    safe_open = need("safetensors", "reading safetensors", "torch").safe_open
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder}: no *.safetensors there; allowed: a model folder in Hugging Face's layout")
    try:
        handles = [safe_open(str(file), framework="pt") for file in files]
    except Exception as error:  # the library raises a class of its own, and OSError
        raise InputError(f"{folder}: cannot be read as safetensors: {error}") from error
    where = {name: handle for handle in handles for name in handle.keys()}  # noqa: SIM118, the handle is no mapping

    def read(name: str) -> Tensor:
        if name not in where:
            raise InputError(f"{folder}: tensor {name} is missing")
        return where[name].get_tensor(name)

    return named_weights(spec, HF_NAMES, read, device, dtype)
