"""The torch engine: a decoder's prefill and decode steps, captured as CUDA graphs over fixed buffers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.model_files import SMOLLM2, smollm2_file
from blink.common.policy import (
    PREFILL_TOKENS_MAX,
    GraphShape,
    GraphTable,
    default_decode_batches,
    default_prefill_sequences,
)
from blink.common.profile import list_profiles
from blink.hw.engines.buffers import PagedCache, StepTensors
from blink.hw.engines.contract import Capture, StepBuffers, captured_shapes
from blink.hw.engines.gguf_model import GgufModel
from blink.hw.engines.lazy_torch import need_torch
from blink.hw.engines.plain import PlainDecoder
from blink.hw.engines.spec import DecoderSpec, random_spec
from blink.hw.engines.weights import Weights, random_weights, safetensors_weights
from blink.perf.shape import ModelShape

DTYPES = ("bfloat16", "float32")
WARM = 2
"""Runs of a step before its capture: the first compiles and loads the kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes that an engine is built for. `context_tokens`: prompt and output of one sequence together."""

    context_tokens: int = 2048
    batch_max: int = 64
    block_tokens: int = 16
    block_count: int = 8192
    prefill_batch_max: int = 1
    prefill_tokens_max: int = PREFILL_TOKENS_MAX
    prefill_batches: tuple[int, ...] | None = None
    prefill_sequences: tuple[int, ...] | None = None
    decode_batches: tuple[int, ...] | None = None

    def tables(self) -> dict[GraphKind, GraphTable]:
        """The shapes to capture: the policy's defaults unless the limits name their own."""
        batches = self.prefill_batches or default_decode_batches(self.prefill_batch_max)
        sequences = self.prefill_sequences or default_prefill_sequences(self.context_tokens)
        rows = self.decode_batches or default_decode_batches(self.batch_max)
        largest = max(b for b in batches if b == 1 or b * sequences[-1] <= self.prefill_tokens_max)
        return {
            GraphKind.PREFILL: GraphTable(
                GraphKind.PREFILL,
                batches,
                sequences,
                self.prefill_tokens_max,
                GraphShape(GraphKind.PREFILL, largest, sequences[-1]),
            ),
            GraphKind.DECODE: GraphTable(
                GraphKind.DECODE,
                rows,
                (self.context_tokens,),
                rows[-1] * self.context_tokens,
                GraphShape(GraphKind.DECODE, rows[-1], self.context_tokens),
            ),
        }


class TorchEngine:
    """An Engine (contract.py) of PyTorch and Triton on a GPU; eager and plain on a CPU.

    `kernels`: `triton` or `plain`; by default Triton where there is a GPU. `fixed`: products in tiles of a fixed
    size, so that a sequence's tokens do not depend on its batch (see TritonDecoder).
    """

    name = "torch"

    def __init__(
        self,
        spec: DecoderSpec,
        weights: Weights,
        limits: EngineLimits,
        *,
        kernels: str | None = None,
        fixed: bool = True,
    ) -> None:
        self.torch = need_torch()
        shape, embedding = spec.shape, weights.embedding
        _check(limits, shape)
        self.spec, self.limits, self.device = spec, limits, embedding.device
        self.vocabulary_count, self.eos_token = shape.vocab_size, spec.eos_token
        self.block_tokens, self.block_count, self.scratch_block = (
            limits.block_tokens,
            limits.block_count,
            limits.block_count,
        )
        self.tables: Mapping[GraphKind, GraphTable] = limits.tables()
        self.shapes = tuple(s for table in self.tables.values() for s in captured_shapes(table))
        prefill_tokens = max(s.batch * s.sequence for s in self.shapes if s.kind is GraphKind.PREFILL)
        rows_max = max(s.batch for s in self.shapes)
        device = str(self.device)
        self.tensors = StepTensors.allocate(
            device,
            rows_max,
            max(prefill_tokens, rows_max),
            -(-limits.context_tokens // limits.block_tokens),
            self.scratch_block,
        )
        self.buffers: StepBuffers = self.tensors.addresses()
        self.cache = PagedCache.allocate(
            spec,
            device,
            embedding.dtype,
            block_count=limits.block_count,
            block_tokens=limits.block_tokens,
            context_tokens=limits.context_tokens,
        )
        self._decoder = self._decoder_of(weights, max(prefill_tokens, rows_max), kernels=kernels, fixed=fixed)
        self._graphs: list[Any] = []
        self._pool: Any = None

    @classmethod
    def of_model(
        cls,
        model: str,
        limits: EngineLimits,
        *,
        dtype: str | None = None,
        device: str | None = None,
        seed: int = 0,
        fixed: bool | None = None,
        kernels: str | None = None,
    ) -> TorchEngine:
        """An engine for `model`: `smollm2-135m` with its real weights, a folder in Hugging Face's layout, a GGUF
        file, or the name of a model profile, which gets random weights. By default bfloat16 on the first GPU;
        smollm2-135m in float32.
        """
        torch = need_torch()
        dtype = dtype or ("float32" if model == SMOLLM2 else "bfloat16")
        if dtype not in DTYPES:
            raise InputError(f"dtype: {dtype!r} is not allowed; allowed: {', '.join(DTYPES)}")
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        # Tokens of random weights mean nothing: cuBLAS is faster, and that they repeat helps nobody.
        fixed = not is_random(model) if fixed is None else fixed
        spec, weights = load_model(model, device, getattr(torch, dtype), seed)
        return cls(spec, weights, limits, kernels=kernels, fixed=fixed)

    def _decoder_of(self, weights: Weights, rows_max: int, *, kernels: str | None, fixed: bool) -> Any:
        """What runs the steps: an object with `step(shape)`."""
        on_gpu = self.device.type == "cuda"
        if (kernels or ("triton" if on_gpu else "plain")) == "plain":
            return PlainDecoder(self.spec, weights, self.cache, self.tensors)
        from blink.hw.engines.triton_decoder import TritonDecoder

        return TritonDecoder(self.spec, weights, self.cache, self.tensors, rows_max=rows_max, fixed=fixed)

    def run(self, shape: GraphShape) -> None:
        """One step over the buffers without a graph, on the current stream."""
        with self.torch.no_grad():
            self._decoder.step(shape)

    def capture(self, shape: GraphShape, prologue: Capture, epilogue: Capture) -> int:
        """See Engine.capture."""
        return int(self.captured(shape, prologue, epilogue).raw_cuda_graph())

    def captured(self, shape: GraphShape, prologue: Capture, epilogue: Capture) -> Any:
        """The torch.cuda.CUDAGraph behind `capture`: instantiate it to replay it from the host."""
        torch = self.torch
        if self.device.type != "cuda":
            raise InputError("capturing a step needs an NVIDIA GPU; this engine runs on a CPU")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(WARM):
                self.run(shape)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool, stream=stream):
            prologue(stream.cuda_stream)
            self.run(shape)
            epilogue(stream.cuda_stream)
        self._graphs.append(graph)
        return graph

    def close(self) -> None:
        """Give the graphs and the memory back."""
        self._graphs.clear()
        self._decoder = None
        del self.cache, self.tensors
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()


def load_spec(model: str) -> DecoderSpec:
    """What the model computes that TorchEngine.of_model names, without its weights and without PyTorch."""
    path = Path(model)
    if model == SMOLLM2 or path.suffix == ".gguf":
        return GgufModel(smollm2_file() if model == SMOLLM2 else path).spec()
    if not is_random(model):
        return DecoderSpec.from_hf(path)
    return random_spec(ModelShape.load(model))


def load_model(model: str, device: str, dtype: Any, seed: int = 0) -> tuple[DecoderSpec, Weights]:
    """Spec and weights of what TorchEngine.of_model names. InputError says what is allowed."""
    path = Path(model)
    if model == SMOLLM2 or path.suffix == ".gguf":
        file = GgufModel(smollm2_file() if model == SMOLLM2 else path)
        spec = file.spec()
        return spec, file.weights(spec, device, dtype)
    spec = load_spec(model)
    if not is_random(model):
        return spec, safetensors_weights(path, spec, device, dtype)
    return spec, random_weights(spec, device, dtype, seed)


def is_random(model: str) -> bool:
    """Whether a model gets random weights: it is the name of a profile, or a profile's file."""
    path = Path(model)
    if model == SMOLLM2 or path.suffix == ".gguf":
        return False
    return model in list_profiles("model") or not path.is_dir()


def _check(limits: EngineLimits, shape: ModelShape) -> None:
    if not 1 <= limits.context_tokens <= shape.context_tokens_max:
        raise InputError(
            f"context_tokens: {limits.context_tokens} is not allowed; allowed: 1 to {shape.context_tokens_max}, "
            f"the context of {shape.name}"
        )
    if limits.block_tokens < 1 or limits.block_count < 1 or limits.batch_max < 1:
        raise InputError("block_tokens, block_count and batch_max must be at least 1")
