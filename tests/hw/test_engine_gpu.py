"""The torch engine on a GPU: tokens against a plain forward pass, alone and in mixed batches; sampling statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from blink.common.model_files import SMOLLM2
from tests.hw.engine_help import (
    chi_square_bound,
    kept_distribution,
    need_gpu,
    prompts_of,
    smollm2_prompts,
    smollm2_question,
)

pytestmark = pytest.mark.gpu
torch = need_gpu()

from blink.hw.engines.host_batcher import HostBatcher, Job  # noqa: E402
from blink.hw.engines.spec import random_spec  # noqa: E402
from blink.hw.engines.torch_engine import EngineLimits, TorchEngine, load_model  # noqa: E402
from blink.hw.engines.weights import random_weights  # noqa: E402
from blink.perf.shape import ModelShape  # noqa: E402

PROMPTS, LIMIT = 60, 48


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    return smollm2_prompts(PROMPTS)


@pytest.fixture(scope="module")
def engine(texts: list[list[int]]) -> Iterator[TorchEngine]:
    limits = EngineLimits(
        context_tokens=640,
        batch_max=16,
        block_count=1024,
        prefill_batch_max=4,
        prefill_sequences=(32, 64, 128, 256, 512),
        decode_batches=(1, 4, 16),
    )
    made = TorchEngine.of_model(SMOLLM2, limits)
    yield made
    made.close()


def alone(engine: TorchEngine, texts: list[list[int]], **options: Any) -> list[list[int]]:
    batcher, jobs = HostBatcher(engine, 1), [Job(text, LIMIT, ignore_eos=True, **options) for text in texts]
    for job in jobs:
        batcher.serve([job])
    return [job.tokens for job in jobs]


def mixed(engine: TorchEngine, texts: list[list[int]], **options: Any) -> list[list[int]]:
    """The same requests in a batch of up to 16 that others join and leave: arrivals 3 steps apart, various limits."""
    jobs = [Job(text, LIMIT, ignore_eos=True, arrives=3 * i, **options) for i, text in enumerate(texts)]
    others = [
        Job(text[::-1], 5 + 7 * i % 40, ignore_eos=True, temperature=0.9, seed=i, arrives=11 * i)
        for i, text in enumerate(texts[:20])
    ]
    HostBatcher(engine).serve([*jobs, *others])
    return [job.tokens for job in jobs]


def reference_logits(texts: list[list[int]]) -> Iterator[Any]:
    """Logits of whole texts without a cache, by Hugging Face's Llama on the same weights, in float32."""
    transformers = pytest.importorskip("transformers")
    spec, weights = load_model(SMOLLM2, "cuda", torch.float32)
    shape = spec.shape
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_size,
        num_hidden_layers=shape.layer_count,
        num_attention_heads=shape.head_count,
        num_key_value_heads=shape.kv_head_count,
        head_dim=shape.head_size,
        max_position_embeddings=shape.context_tokens_max,
        rms_norm_eps=spec.norm_epsilon,
        tie_word_embeddings=True,
    )
    # Where it stands depends on the package's version.
    config.rope_theta = spec.rope_base
    if getattr(config, "rope_parameters", None) is not None:
        config.rope_parameters = {**config.rope_parameters, "rope_type": "default", "rope_theta": spec.rope_base}
    model = transformers.LlamaForCausalLM(config).to("cuda", torch.float32).eval()

    def halves(matrix: Any, heads: int) -> Any:
        """Interleaved pairs to Hugging Face's two halves of a head."""
        return matrix.view(heads, shape.head_size // 2, 2, -1).transpose(1, 2).reshape(matrix.shape)

    state = {"model.embed_tokens.weight": weights.embedding, "model.norm.weight": weights.final_norm}
    for i, layer in enumerate(weights.layers):
        q, k, v = layer.qkv.split([shape.query_size, shape.kv_size, shape.kv_size])
        gate, up = layer.gate_up.chunk(2)
        names = {
            "input_layernorm": layer.attention_norm,
            "self_attn.q_proj": halves(q, shape.head_count),
            "self_attn.k_proj": halves(k, shape.kv_head_count),
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.output,
            "post_attention_layernorm": layer.ffn_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down,
        }
        state |= {f"model.layers.{i}.{name}.weight": value for name, value in names.items()}
    missing = model.load_state_dict(state, strict=False).missing_keys
    assert set(missing) <= {"lm_head.weight"}
    with torch.no_grad():
        for text in texts:
            yield model(torch.tensor([text], device="cuda")).logits[0].float()


def test_greedy_tokens_are_those_of_a_plain_forward_pass(engine: TorchEngine, texts: list[list[int]]) -> None:
    answers = alone(engine, texts)
    wrong, nearest = [], 1.0
    whole = [text + answer for text, answer in zip(texts, answers, strict=True)]
    for text, answer, logits in zip(texts, answers, reference_logits(whole), strict=True):
        rows = logits[len(text) - 1 : -1]
        best, runner_up = rows.topk(2, -1).values.T
        nearest = min(nearest, float((best - runner_up).min()))
        wrong += [i for i, (a, b) in enumerate(zip(rows.argmax(-1).tolist(), answer, strict=True)) if a != b]
    print(f"{len(texts)} prompts of {len(texts[0])} to {len(texts[-1])} tokens, {sum(map(len, answers))} compared")
    print(f"{len(wrong)} differ; smallest distance of the two highest logits {nearest:.2e}")
    assert not wrong


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8, "top_p": 0.9, "seed": 7}], ids=["greedy", "sampled"])
def test_tokens_do_not_depend_on_the_batch(
    engine: TorchEngine, texts: list[list[int]], options: dict[str, Any]
) -> None:
    assert mixed(engine, texts, **options) == alone(engine, texts, **options)


def test_eos_is_not_drawn_before_min_tokens(engine: TorchEngine) -> None:
    """After the question EOS would come from a decode, after the question and its answer from the prefill."""
    eos, question = engine.eos_token, smollm2_question()
    plain = Job(question, LIMIT)
    HostBatcher(engine, 1).serve([plain])
    answer = plain.tokens[:-1]
    assert (plain.tokens[-1], len(answer) < 20) == (eos, True)
    jobs = [
        Job(prompt, LIMIT, min_tokens=at + more, arrives=index)
        for prompt, at in ((question, len(answer)), (question + answer, 0))
        for index, more in enumerate((0, 1, 2, 12, LIMIT - len(answer)))
    ]
    HostBatcher(engine).serve(jobs)
    for job in jobs:
        assert eos not in job.tokens[: job.min_tokens]
        assert len(job.tokens) >= job.min_tokens
        assert job.tokens[-1] == eos or len(job.tokens) == LIMIT
    assert jobs[0].tokens == plain.tokens
    assert jobs[5].tokens == [eos]
    assert all(job.tokens[: len(answer)] == answer for job in jobs[:5])
    print("answers with a minimum of", [(job.min_tokens, len(job.tokens)) for job in jobs])

    sampled = {"temperature": 1.0, "top_p": 0.95}
    free, kept = (
        [Job(question + answer, LIMIT, **sampled, seed=seed, min_tokens=least) for seed in range(32)]
        for least in (0, 9)
    )
    HostBatcher(engine).serve([*free, *kept])
    ended = sum(job.tokens == [eos] for job in free)
    print(f"{ended} of {len(free)} sampled answers end at once without a minimum")
    assert ended > len(free) / 2
    assert all(eos not in job.tokens[:9] and len(job.tokens) >= 9 for job in kept)


def test_the_kernel_bars_eos_as_the_reference_does_in_a_real_vocabulary() -> None:
    from blink.hw.engines import kernels
    from blink.hw.engines.buffers import StepTensors
    from blink.hw.engines.sampling import sample
    from blink.hw.engines.triton_decoder import launch_sampling

    rows, eos = 64, 2
    logits = zipf_logits(49152).expand(rows, -1).clone()
    logits[:, eos] = 40.0
    steps = StepTensors.allocate("cuda", rows, rows, 1, 0)
    at = torch.arange(rows, device="cuda", dtype=torch.int32)
    for name, value in {
        "temperature": at % 4 * 0.5, "top_p": 1 - at % 3 * 0.2, "top_k": at % 5 * 20, "seed": at,
        "sample_index": at % 8, "min_tokens": at % 7,
    }.items():  # fmt: skip
        getattr(steps, name).copy_(value)
    launch_sampling(kernels, logits, steps, rows, eos)
    found = steps.sampled.tolist()
    sample(logits, steps, rows, eos)
    assert found == steps.sampled.tolist()
    assert [token == eos for token in found] == [index % 8 >= index % 7 for index in range(rows)]


@pytest.mark.parametrize("fixed", [True, False], ids=["fixed", "cublas"])
def test_bf16_tokens_do_not_depend_on_the_batch_with_fixed_tiles(fixed: bool) -> None:
    """Random weights: next tokens are close to each other, so that a different rounding soon shows."""
    spec = random_spec(dataclasses.replace(ModelShape.load("llama-3-8b"), layer_count=8))
    limits = EngineLimits(
        context_tokens=640,
        batch_max=16,
        block_count=1024,
        prefill_batch_max=4,
        prefill_sequences=(64, 512),
        decode_batches=(1, 4, 16),
    )
    engine = TorchEngine(spec, random_weights(spec, "cuda", torch.bfloat16), limits, fixed=fixed)
    generator = torch.Generator().manual_seed(3)
    texts = prompts_of(torch.randint(0, spec.shape.vocab_size, (4000,), generator=generator).tolist(), 24)
    first, second = alone(engine, texts), mixed(engine, texts)
    engine.close()
    different = sum(a != b for a, b in zip(first, second, strict=True))
    print(f"bfloat16, {'fixed tiles' if fixed else 'cuBLAS'}: {different} of {len(texts)} requests differ in a batch")
    if fixed:
        assert not different


def zipf_logits(size: int) -> Any:
    """Logits of tokens whose probabilities fall with their rank, as those of words do, in a mixed order."""
    generator = torch.Generator("cuda").manual_seed(1)
    rank = torch.randperm(size, generator=generator, device="cuda").float()
    return -1.3 * (rank + 3).log()


def open_logits(engine: TorchEngine, texts: list[list[int]]) -> Any:
    """Logits of the prompt, of the first twenty, after which the model is least certain what follows."""
    rows = []
    for text in texts[:20]:
        HostBatcher(engine, 1).serve([Job(text, 1)])
        rows.append(engine._decoder.logit_values[0].clone())
    return max(rows, key=lambda row: float(torch.distributions.Categorical(logits=row).entropy()))


@pytest.mark.parametrize("source", ["zipf", "model"])
@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.8, 0.9, 0), (1.3, 0.95, 40), (1.0, 1.0, 20)]
)
def test_sampled_tokens_have_the_models_distribution(
    request: pytest.FixtureRequest, source: str, temperature: float, top_p: float, top_k: int
) -> None:
    from blink.hw.engines.kernels import sample_kernel
    from blink.hw.engines.triton_decoder import NO_TOKEN, SAMPLE_BLOCK

    if source == "model":
        logits = open_logits(request.getfixturevalue("engine"), request.getfixturevalue("texts"))
    else:
        logits = zipf_logits(49152)
    count, size = 20_000, len(logits)
    seeds = torch.arange(count, device="cuda", dtype=torch.int32)
    index, out = torch.full_like(seeds, 5), torch.empty_like(seeds)
    row = torch.ones(count, device="cuda")
    many = logits.expand(count, size).contiguous()
    top_ks = torch.full_like(seeds, top_k)
    sample_kernel[(count,)](
        many, row * temperature, row * top_p, top_ks, seeds, index, torch.zeros_like(seeds), out, size, NO_TOKEN,
        BLOCK=SAMPLE_BLOCK, num_warps=8,
    )  # fmt: skip
    expected = kept_distribution(logits.double().cpu().numpy(), temperature, top_p, top_k) * count
    found = np.bincount(out.cpu().numpy(), minlength=size)
    assert not found[expected == 0].sum()
    statistic, bound = chi_square_bound(found, expected)
    print(f"{source} temperature {temperature} top_p {top_p} top_k {top_k}: {(expected > 0).sum()} tokens kept")
    print(f"chi-square {statistic:.1f}, bound {bound:.1f}")
    assert statistic < bound
