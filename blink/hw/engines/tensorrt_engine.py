"""The tensorrt engine: the torch engine's buffers, KV blocks and sampling around plans that TensorRT builds.

A plan is built from the ONNX graph of a step (onnx_step.py), by TensorRT or by TensorRT for RTX, whichever is
installed. It computes logits and the step's keys and values; kernels of this package store those and sample, in the
same captured graph.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.policy import GraphShape
from blink.hw.engines.buffers import PagedCache, StepTensors
from blink.hw.engines.lazy_torch import need_torch
from blink.hw.engines.onnx_step import export_step, input_names, step_inputs
from blink.hw.engines.spec import DecoderSpec
from blink.hw.engines.torch_engine import TorchEngine
from blink.hw.engines.weights import Weights

MODULES = ("tensorrt", "tensorrt_rtx")
Tensor = Any


def need_tensorrt() -> Any:
    """TensorRT's module, or TensorRT for RTX's; one sentence where neither is installed."""
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError):  # the wheels load libraries of the driver
            continue
    raise InputError("the tensorrt engine needs TensorRT: pip install tensorrt-rtx (GeForce and RTX GPUs) or tensorrt")


def build_plan(trt: Any, file: Path, capabilities: Sequence[str] = ()) -> bytes:
    """A serialized plan of an ONNX file.

    `capabilities` (TensorRT for RTX alone): the GPUs to build for, such as "SM89", which needs no GPU; without any, the
    GPU of this machine. InputError says what the parser or the builder refused.
    """
    messages: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        """Keeps what goes wrong for the error's sentence."""

        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                messages.append(message.strip().splitlines()[-1])

    logger = Logger()
    builder = trt.Builder(logger)
    flags = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if flags is None else 1 << int(flags))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(file)):
        raise InputError(f"{file.name}: TensorRT cannot read the step: {parser.get_error(0).desc()}")
    config = builder.create_builder_config()
    if capabilities:
        known = getattr(trt, "ComputeCapability", None)
        if known is None or not set(capabilities) <= set(known.__members__):
            allowed = ", ".join(known.__members__) if known else "none, this TensorRT builds for its own GPU"
            raise InputError(f"compute capability {', '.join(capabilities)} is not allowed; allowed: {allowed}")
        config.num_compute_capabilities = len(capabilities)
        for index, name in enumerate(capabilities):
            config.set_compute_capability(known.__members__[name], index)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise InputError(f"{file.name}: TensorRT built no plan: {messages[-1] if messages else 'it gave no reason'}")
    return bytes(plan)


class TensorRTDecoder:
    """Steps of a decoder by TensorRT's plans, each built when its shape first runs."""

    def __init__(self, spec: DecoderSpec, weights: Weights, cache: PagedCache, buffers: StepTensors) -> None:
        self.torch, self.trt = need_torch(), need_tensorrt()
        from blink.hw.engines import kernels
        from blink.hw.engines.triton_decoder import launch_sampling

        self.kernels, self._sample = kernels, launch_sampling
        self.spec, self.weights, self.cache, self.buffers = spec, weights, cache, buffers
        self._runtime = self.trt.Runtime(self.trt.Logger(self.trt.Logger.ERROR))
        self._contexts: dict[GraphShape, tuple[Any, Any, tuple[Tensor, Tensor, Tensor]]] = {}

    def step(self, shape: GraphShape) -> None:
        """Run one step of the shape over the buffers; the last kernel writes `sampled`."""
        if shape not in self._contexts:
            self._contexts[shape] = self._prepared(shape)
        _, context, (logits, keys, values) = self._contexts[shape]
        if not context.execute_async_v3(self.torch.cuda.current_stream().cuda_stream):
            raise RuntimeError(f"TensorRT refused to run a step of {shape}")
        self._store(shape, keys, values)
        self._sample(self.kernels, logits, self.buffers, shape.batch, self.spec.eos_token)

    def _prepared(self, shape: GraphShape) -> tuple[Any, Any, tuple[Tensor, Tensor, Tensor]]:
        """(engine, execution context, outputs) of a shape, its addresses set."""
        with tempfile.TemporaryDirectory(prefix="blink-plan-") as folder:
            file = Path(folder) / "step.onnx"
            export_step(self.spec, self.weights, self.cache, self.buffers, shape, file)
            engine = self._runtime.deserialize_cuda_engine(build_plan(self.trt, file))
        if engine is None:
            raise InputError("TensorRT cannot load the plan on this GPU; its log above says why")
        context = engine.create_execution_context()
        outputs = self._outputs(shape)
        inputs = dict(zip(input_names(self.spec, shape), step_inputs(shape, self.buffers, self.cache), strict=True))
        for name, tensor in {**inputs, "logits": outputs[0], "keys": outputs[1], "values": outputs[2]}.items():
            context.set_tensor_address(name, tensor.data_ptr())
        return engine, context, outputs

    def _outputs(self, shape: GraphShape) -> tuple[Tensor, Tensor, Tensor]:
        sizes, like = self.spec.shape, self.cache.values
        tokens = shape.sequence if shape.kind is GraphKind.PREFILL else 1
        kv = (sizes.layer_count, shape.batch, tokens, sizes.kv_head_count, sizes.head_size)
        logits = self.torch.empty(shape.batch, sizes.vocab_size, device=like.device)
        return logits, like.new_empty(kv), like.new_empty(kv)

    def _store(self, shape: GraphShape, keys: Tensor, values: Tensor) -> None:
        sizes, buffers, cache = self.spec.shape, self.buffers, self.cache
        for layer in range(sizes.layer_count):
            self.kernels.store_kernel[(keys.shape[1] * keys.shape[2],)](
                keys[layer], values[layer], cache.values[layer], buffers.block_tables, buffers.context_tokens,
                buffers.query_tokens, keys.shape[2], buffers.block_tables.shape[1], cache.values.stride(1),
                KV_HEADS=sizes.kv_head_count, KV_HEADS_PAD=1 << (sizes.kv_head_count - 1).bit_length(),
                SIZE=sizes.head_size, BLOCK_TOKENS=cache.block_tokens,
            )  # fmt: skip


class TensorRTEngine(TorchEngine):
    """An Engine (contract.py) whose steps TensorRT computes, on a GPU that the installed TensorRT supports."""

    name = "tensorrt"

    def _decoder_of(self, weights: Weights, rows_max: int, *, kernels: str | None, fixed: bool) -> Any:
        if self.device.type != "cuda":
            need_tensorrt()
            raise InputError("the tensorrt engine needs an NVIDIA GPU; PyTorch sees none")
        return TensorRTDecoder(self.spec, weights, self.cache, self.tensors)
