"""The tensorrt engine as far as a CPU goes: a step's ONNX graph computes the step, and TensorRT makes a plan of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.policy import GraphShape
from tests.hw.engine_help import need_torch

pytestmark = pytest.mark.slow
torch = need_torch()
for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'blink-twin[tensorrt]' onnxruntime")

from blink.hw.engines import tensorrt_engine  # noqa: E402
from blink.hw.engines.onnx_step import OUTPUTS, export_step, input_names, step_inputs  # noqa: E402
from blink.hw.engines.tensorrt_engine import TensorRTEngine, build_plan, need_tensorrt  # noqa: E402
from blink.hw.engines.torch_engine import TorchEngine  # noqa: E402
from tests.hw.test_engine_torch import LIMITS, model  # noqa: E402

PREFILL, DECODE = GraphShape(GraphKind.PREFILL, 2, 32), GraphShape(GraphKind.DECODE, 4, 200)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[TorchEngine, dict[GraphShape, Path]]:
    """A plain engine and the ONNX files of its steps."""
    engine = TorchEngine(*model(interleaved=True, normed=True), LIMITS)
    folder, made = tmp_path_factory.mktemp("onnx"), {}
    for shape in (PREFILL, DECODE):
        made[shape] = folder / f"{shape.kind.label}.onnx"
        export_step(engine.spec, engine._decoder.weights, engine.cache, engine.tensors, shape, made[shape])
    return engine, made


def fill(engine: TorchEngine, context: list[int], query: list[int]) -> None:
    tensors, rows = engine.tensors, len(context)
    tensors.tokens[:] = torch.randint(0, 150, (64,), generator=torch.Generator().manual_seed(1))
    tensors.context_tokens[:rows] = torch.tensor(context)
    tensors.query_tokens[:rows] = torch.tensor(query)
    for row in range(rows):
        tensors.block_tables[row] = torch.arange(13) + 13 * row


def computed(engine: TorchEngine, shape: GraphShape, file: Path) -> list[Any]:
    """Outputs of the ONNX graph by ONNX Runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    inputs = step_inputs(shape, engine.tensors, engine.cache)
    feed = {name: tensor.numpy().copy() for name, tensor in zip(input_names(engine.spec, shape), inputs, strict=True)}
    return [torch.from_numpy(value) for value in session.run(list(OUTPUTS), feed)]


def test_the_graph_computes_what_the_plain_engine_computes(files: tuple[TorchEngine, dict[GraphShape, Path]]) -> None:
    engine, made = files
    for shape, context, query in ((PREFILL, [0, 0], [30, 9]), (DECODE, [30, 9, 0, 0], [1, 1, 0, 0])):
        fill(engine, context, query)
        logits, keys, values = computed(engine, shape, made[shape])
        live = [row for row, tokens in enumerate(query) if tokens]
        assert torch.allclose(logits[live], engine._decoder.logits(shape)[live], atol=1e-5)
        for row in live:
            at = torch.arange(query[row]) + context[row]
            block = engine.tensors.block_tables[row].long()[at // engine.block_tokens]
            stored = engine.cache.values[:, :, block, :, at % engine.block_tokens]  # (tokens, layers, 2, heads, size)
            for index, part in enumerate((keys, values)):
                assert torch.allclose(stored[:, :, index].transpose(0, 1), part[:, row, : query[row]], atol=1e-5)


def test_the_store_kernel_fills_the_blocks_as_the_plain_engine_does() -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install 'blink-twin[torch]'")
    from blink.hw.engines.kernels import store_kernel

    engine = TorchEngine(*model(), LIMITS)
    fill(engine, [0, 17], [20, 3])
    tensors, cache = engine.tensors, engine.cache
    keys, values = torch.randn(2, 2, 32, 2, 16, generator=torch.Generator().manual_seed(1))
    store_kernel[(64,)](
        keys, values, cache.values[1], tensors.block_tables, tensors.context_tokens, tensors.query_tokens,
        32, 13, cache.values.stride(1), KV_HEADS=2, KV_HEADS_PAD=2, SIZE=16, BLOCK_TOKENS=16,
    )  # fmt: skip
    expected = torch.zeros_like(cache.values)
    for row, (context, query) in enumerate([(0, 20), (17, 3)]):
        for token in range(query):
            block, at = 13 * row + (context + token) // 16, (context + token) % 16
            expected[1, 0, block, :, at], expected[1, 1, block, :, at] = keys[row, token], values[row, token]
    assert torch.equal(cache.values, expected)


def test_logits_of_a_plan_are_sampled_with_the_models_end_token() -> None:
    """A plan that a test makes up: what follows it in the graph holds EOS back for rows below their `min_tokens`."""
    pytest.importorskip("triton", reason="Triton is not installed: pip install 'blink-twin[torch]'")
    from blink.hw.engines import kernels
    from blink.hw.engines.triton_decoder import launch_sampling

    spec, weights = model()
    engine, eos = TorchEngine(spec, weights, LIMITS), 5
    logits = torch.zeros(DECODE.batch, spec.shape.vocab_size)
    logits[:, eos], logits[:, 9] = 2.0, 1.0
    decoder = object.__new__(tensorrt_engine.TensorRTDecoder)
    decoder.torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=0)))
    decoder.kernels, decoder._sample, decoder._store = kernels, launch_sampling, lambda *_: None
    decoder.spec, decoder.buffers = replace(spec, eos_token=eos), engine.tensors
    decoder._contexts = {DECODE: (None, SimpleNamespace(execute_async_v3=lambda _: True), (logits, None, None))}
    engine.tensors.sample_index[:4] = torch.tensor([0, 3, 3, 0])
    engine.tensors.min_tokens[:4] = torch.tensor([1, 4, 3, 0])
    decoder.step(DECODE)
    assert engine.tensors.sampled[:4].tolist() == [9, 9, eos, eos]


def test_tensorrt_for_rtx_builds_plans_without_a_gpu(files: tuple[TorchEngine, dict[GraphShape, Path]]) -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="TensorRT for RTX is not installed: pip install tensorrt-rtx")
    for file in files[1].values():
        plan = build_plan(trt, file, ["SM89"])
        assert len(plan) > 100_000
    with pytest.raises(InputError, match="compute capability SM90 is not allowed; allowed: "):
        build_plan(trt, file, ["SM90"])
    broken = file.with_name("broken.onnx")
    broken.write_bytes(b"no model")
    with pytest.raises(InputError, match=r"broken\.onnx: TensorRT cannot read the step"):
        build_plan(trt, broken)


def test_what_is_missing_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tensorrt_engine.MODULES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match="the tensorrt engine needs TensorRT: pip install tensorrt-rtx"):
        need_tensorrt()
    monkeypatch.setattr(tensorrt_engine, "need_tensorrt", lambda: None)
    with pytest.raises(InputError, match="the tensorrt engine needs an NVIDIA GPU"):
        TensorRTEngine(*model(), LIMITS)
