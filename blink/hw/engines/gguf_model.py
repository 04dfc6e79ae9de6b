"""A decoder from a GGUF file: its spec from the metadata, its weights dequantized by the package `gguf`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.optional import need
from blink.hw.engines.lazy_torch import need_torch
from blink.hw.engines.spec import DecoderSpec
from blink.hw.engines.weights import Names, Tensor, Weights, named_weights
from blink.perf.shape import ModelShape

GGUF_NAMES = Names(
    embedding="token_embd.weight",
    final_norm="output_norm.weight",
    head="output.weight",
    attention_norm="blk.{}.attn_norm.weight",
    query="blk.{}.attn_q.weight",
    key="blk.{}.attn_k.weight",
    value="blk.{}.attn_v.weight",
    output="blk.{}.attn_output.weight",
    ffn_norm="blk.{}.ffn_norm.weight",
    gate="blk.{}.ffn_gate.weight",
    up="blk.{}.ffn_up.weight",
    down="blk.{}.ffn_down.weight",
    query_norm="blk.{}.attn_q_norm.weight",
    key_norm="blk.{}.attn_k_norm.weight",
)
ARCHITECTURES = {"llama": True, "qwen3": False}
"""Architecture -> whether its rotary pairs are interleaved. Converters reorder Llama's rows, not Qwen3's."""


class GgufModel:
    """A GGUF file that is open for reading."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._gguf = need("gguf", "reading a GGUF file", "torch")
        try:
            self._reader = self._gguf.GGUFReader(file)
        except (OSError, ValueError, IndexError) as error:
            raise InputError(f"{file}: cannot be read as GGUF: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value; InputError if it is missing and there is no default."""
        field = self._reader.fields.get(key)
        if field is None and default is None:
            raise InputError(f"{self.file}: the key {key} is missing")
        return default if field is None else field.contents()

    def spec(self) -> DecoderSpec:
        """What the file's model computes."""
        kind = self.get("general.architecture")
        if kind not in ARCHITECTURES:
            allowed = ", ".join(ARCHITECTURES)
            raise InputError(f"{self.file}: general.architecture: {kind!r} is not served; allowed: {allowed}")
        if self.get(f"{kind}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in self._tensors:
            raise InputError(f"{self.file}: scaled rotary frequencies of a GGUF file are not served")
        hidden, heads = self.get(f"{kind}.embedding_length"), self.get(f"{kind}.attention.head_count")
        shape = ModelShape(
            name=self.file.stem,
            layer_count=self.get(f"{kind}.block_count"),
            hidden_size=hidden,
            head_count=heads,
            kv_head_count=self.get(f"{kind}.attention.head_count_kv", heads),
            head_size=self.get(f"{kind}.attention.key_length", hidden // heads),
            ffn_size=self.get(f"{kind}.feed_forward_length"),
            vocab_size=len(self.get("tokenizer.ggml.tokens")),
            context_tokens_max=self.get(f"{kind}.context_length"),
            tied_embeddings=GGUF_NAMES.head not in self._tensors,
            qk_norm=GGUF_NAMES.query_norm.format(0) in self._tensors,
        )
        return DecoderSpec(
            shape=shape,
            rope_base=float(self.get(f"{kind}.rope.freq_base", 10_000.0)),
            norm_epsilon=float(self.get(f"{kind}.attention.layer_norm_rms_epsilon")),
            rope_interleaved=ARCHITECTURES[kind],
            eos_token=self.get("tokenizer.ggml.eos_token_id"),
        )

    def weights(self, spec: DecoderSpec, device: str, dtype: Any) -> Weights:
        """All weights, dequantized to float32 and then rounded to `dtype`."""
        torch = need_torch()

        def read(name: str) -> Tensor:
            if name not in self._tensors:
                raise InputError(f"{self.file}: tensor {name} is missing")
            tensor = self._tensors[name]
            # A copy: the reader maps the file read-only, which PyTorch would warn of.
            return torch.from_numpy(self._gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())

        return named_weights(spec, GGUF_NAMES, read, device, dtype)
