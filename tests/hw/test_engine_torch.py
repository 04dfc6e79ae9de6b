"""The torch engine on small shapes, without a GPU: kernels against plain PyTorch, paging, batches, files of models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.policy import GraphShape
from blink.hw.engines.contract import captured_shapes
from blink.hw.engines.spec import DecoderSpec, RopeScaling, random_spec
from blink.perf.shape import ModelShape
from tests.hw.engine_help import need_torch

torch = need_torch()

from blink.hw.engines.host_batcher import HostBatcher, Job  # noqa: E402
from blink.hw.engines.plain import layer_output, rotated  # noqa: E402
from blink.hw.engines.torch_engine import EngineLimits, TorchEngine, load_model  # noqa: E402
from blink.hw.engines.weights import HF_NAMES, Weights, random_weights  # noqa: E402

TINY = ModelShape(
    name="tiny", layer_count=2, hidden_size=48, head_count=6, kv_head_count=2, head_size=16, ffn_size=80,
    vocab_size=150, context_tokens_max=512,
)  # fmt: skip
LIMITS = EngineLimits(
    context_tokens=200,
    batch_max=4,
    block_count=60,
    prefill_batch_max=2,
    prefill_sequences=(8, 32),
    decode_batches=(1, 4),
)


def model(*, interleaved: bool = False, normed: bool = False, tied: bool = False) -> tuple[DecoderSpec, Weights]:
    """A tiny decoder with weights large enough that every part of it moves the logits."""
    shape = dataclasses.replace(TINY, qk_norm=normed, tied_embeddings=tied)
    spec = dataclasses.replace(random_spec(shape), rope_interleaved=interleaved, rope_base=1e4)
    weights = random_weights(spec, "cpu", torch.float32, seed=1)
    generator = torch.Generator().manual_seed(2)
    for layer in weights.layers:
        for name in ("qkv", "output", "gate_up", "down"):
            getattr(layer, name).mul_(10)
        for name in ("attention_norm", "ffn_norm", *(("query_norm", "key_norm") if normed else ())):
            getattr(layer, name).uniform_(0.5, 1.5, generator=generator)
    weights.embedding.mul_(30)
    return spec, weights


def forward(spec: DecoderSpec, weights: Weights, tokens: list[int]) -> Any:
    """Logits of every position without a cache: causal attention over the whole text."""
    x = weights.embedding[torch.tensor([tokens])]
    angle = torch.arange(len(tokens))[:, None] * torch.tensor(spec.frequencies())

    def rotate(value: Any) -> Any:
        return rotated(value, angle.cos(), angle.sin(), interleaved=spec.rope_interleaved)

    def attend(q: Any, k: Any, v: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    for layer in weights.layers:
        x = layer_output(spec.shape, layer, x, rotate, attend, spec.norm_epsilon)
    x = torch.nn.functional.rms_norm(x, x.shape[-1:], weights.final_norm, spec.norm_epsilon)
    return (x @ weights.head.t())[0]


def greedy(spec: DecoderSpec, weights: Weights, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(forward(spec, weights, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, 150, (1 + 5 * i,), generator=generator).tolist() for i in range(count)]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("normed", [False, True])
def test_tokens_over_paged_kv_are_those_of_a_forward_pass(interleaved: bool, normed: bool) -> None:
    spec, weights = model(interleaved=interleaved, normed=normed, tied=normed)
    engine = TorchEngine(spec, weights, LIMITS)
    texts = prompts(6)
    jobs = [Job(text, 6 + i, arrives=2 * i) for i, text in enumerate(texts)]
    HostBatcher(engine).serve(jobs)
    assert [job.tokens for job in jobs] == [greedy(spec, weights, text, 6 + i) for i, text in enumerate(texts)]


def test_a_request_gets_the_same_tokens_alone_and_among_others() -> None:
    engine = TorchEngine(*model(), LIMITS)

    def requests() -> list[Job]:
        return [
            Job(text, 5 + i, temperature=0.9, top_p=0.9, top_k=30, seed=2**32 - i, arrives=3 * i)
            for i, text in enumerate(prompts(5), 1)
        ]

    together, alone = requests(), requests()
    HostBatcher(engine).serve(together)
    for job in alone:
        HostBatcher(engine, 1).serve([job])
    assert [job.tokens for job in together] == [job.tokens for job in alone]
    assert len({tuple(job.tokens) for job in alone}) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("interleaved", "normed"), [(False, True), (True, False)])
def test_the_kernels_compute_what_plain_pytorch_computes(interleaved: bool, normed: bool) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install 'blink-twin[torch]'")
    spec, weights = model(interleaved=interleaved, normed=normed)
    limits = dataclasses.replace(LIMITS, prefill_batches=(3,), prefill_sequences=(24,), decode_batches=(3,))
    engines = [TorchEngine(spec, weights, limits, kernels=kind, fixed=True) for kind in ("plain", "triton")]
    lengths = [24, 0, 9]  # the middle row is padding
    prefill, decode = GraphShape(GraphKind.PREFILL, 3, 24), GraphShape(GraphKind.DECODE, 3, 200)
    tokens = torch.randint(0, 150, (72,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    for shape, context, query in ((prefill, [0, 0, 0], lengths), (decode, lengths, [1, 0, 1])):
        logits = []
        for engine in engines:
            tensors = engine.tensors
            tensors.tokens[:72] = tokens
            tensors.context_tokens[:] = torch.tensor(context)
            tensors.query_tokens[:] = torch.tensor(query)
            tensors.block_tables[0] = torch.arange(12, -1, -1)
            tensors.block_tables[2] = torch.arange(20, 33)
            engine.run(shape)
            logits.append(engine._decoder.logits(shape)[[0, 2]])
        assert torch.allclose(*logits, atol=2e-5, rtol=1e-4)
        assert float(logits[0].std()) > 0.05
    plain, triton = (engine.cache.values[:, :, :-1] for engine in engines)
    assert torch.allclose(plain, triton, atol=1e-4)
    assert not triton[:, :, 50:].any(), "a KV block that no sequence has was written"


def test_padding_writes_into_no_block_but_the_scratch_block() -> None:
    engine = TorchEngine(*model(), LIMITS)
    engine.run(GraphShape(GraphKind.PREFILL, 2, 32))
    engine.run(GraphShape(GraphKind.DECODE, 4, 200))
    assert not engine.cache.values[:, :, : engine.scratch_block].any()


def test_buffers_have_the_capacity_that_the_shapes_need() -> None:
    engine = TorchEngine(*model(), LIMITS)
    assert engine.buffers.tokens_capacity == 64
    assert engine.buffers.batch_max == 4
    assert engine.buffers.blocks_per_sequence_max == 13
    assert engine.buffers.block_tables == engine.tensors.block_tables.data_ptr()
    assert [s for s in engine.shapes if s.kind is GraphKind.DECODE] == [
        GraphShape(GraphKind.DECODE, 1, 200),
        GraphShape(GraphKind.DECODE, 4, 200),
    ]
    for table in engine.tables.values():
        assert len(captured_shapes(table)) == table.count()


def hf_folder(folder: Path, spec: DecoderSpec, weights: Weights, **changes: Any) -> None:
    """Write a model as Hugging Face would."""
    save = pytest.importorskip("safetensors.torch", reason="safetensors is not installed").save_file
    shape = spec.shape
    config = {
        "model_type": "qwen3" if shape.qk_norm else "llama",
        "num_hidden_layers": shape.layer_count,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.head_count,
        "num_key_value_heads": shape.kv_head_count,
        "head_dim": shape.head_size,
        "intermediate_size": shape.ffn_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.context_tokens_max,
        "rms_norm_eps": spec.norm_epsilon,
        "rope_theta": spec.rope_base,
        "tie_word_embeddings": shape.tied_embeddings,
        "eos_token_id": [5, 6],
    }
    (folder / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    state = {HF_NAMES.embedding: weights.embedding, HF_NAMES.final_norm: weights.final_norm}
    if not shape.tied_embeddings:
        state[HF_NAMES.head] = weights.head
    for i, layer in enumerate(weights.layers):
        q, k, v = layer.qkv.split([shape.query_size, shape.kv_size, shape.kv_size])
        gate, up = layer.gate_up.chunk(2)
        parts = {
            "query": q, "key": k, "value": v, "gate": gate, "up": up, "output": layer.output, "down": layer.down,
            "attention_norm": layer.attention_norm, "ffn_norm": layer.ffn_norm,
        }  # fmt: skip
        if shape.qk_norm:
            parts |= {"query_norm": layer.query_norm, "key_norm": layer.key_norm}
        state |= {getattr(HF_NAMES, name).format(i): value.contiguous() for name, value in parts.items()}
    save(state, folder / "model.safetensors")


@pytest.mark.parametrize("normed", [False, True])
def test_a_folder_in_hugging_faces_layout_gives_the_same_model(tmp_path: Path, normed: bool) -> None:
    spec, weights = model(normed=normed, tied=normed)
    hf_folder(tmp_path, spec, weights)
    read_spec, read = load_model(str(tmp_path), "cpu", torch.float32)
    assert (read_spec.rope_base, read_spec.norm_epsilon, read_spec.eos_token) == (1e4, spec.norm_epsilon, 5)
    text = prompts(4)[3]
    assert torch.equal(forward(read_spec, read, text), forward(spec, weights, text))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
            "model_type: 'mixtral' is not served",
        ),
        ({"attention_bias": True}, "bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type: 'yarn'"),
        ({"rms_norm_eps": 0}, "rms_norm_eps: 0"),
        ({"hidden_size": 64}, "shape (150, 48) is not allowed"),
        ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight is missing"),
    ],
)
def test_what_is_not_served_is_said_in_a_sentence(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    hf_folder(tmp_path, *model(), **changes)
    with pytest.raises(InputError) as caught:
        load_model(str(tmp_path), "cpu", torch.float32)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_limits_are_checked_against_the_model() -> None:
    with pytest.raises(InputError, match="context_tokens: 513 is not allowed; allowed: 1 to 512"):
        TorchEngine(*model(), dataclasses.replace(LIMITS, context_tokens=513))
    with pytest.raises(InputError, match="dtype: 'int4'"):
        TorchEngine.of_model("llama-3-8b", LIMITS, dtype="int4")


def test_capturing_on_a_cpu_says_what_is_missing() -> None:
    engine = TorchEngine(*model(), LIMITS)
    with pytest.raises(InputError, match="needs an NVIDIA GPU"):
        engine.capture(engine.shapes[0], lambda _: None, lambda _: None)


def test_llama_3_1_slows_long_waves_and_keeps_short_ones() -> None:
    scaling = RopeScaling(factor=8, low_freq_factor=1, high_freq_factor=4, original_context_tokens=8192)
    spec = dataclasses.replace(random_spec(ModelShape.load("llama-3.1-8b")), rope_scaling=scaling)
    plain = random_spec(spec.shape).frequencies()
    scaled = spec.frequencies()
    assert scaled[0] == plain[0]
    assert scaled[-1] == pytest.approx(plain[-1] / 8)
    assert all(b / 8 <= a <= b for a, b in zip(scaled, plain, strict=True))
    assert scaled == sorted(scaled, reverse=True)
