"""A model's steps on a CPU behind the scheduler that is compiled for the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.hw.engine_help import need_torch
from tests.hw.native_help import needs_compiler

torch = need_torch()

from blink.common.config import parse_scenario  # noqa: E402
from blink.common.request import Request  # noqa: E402
from blink.common.results import Outcome  # noqa: E402
from blink.hw.cuda.engine_run import Answers, admitted_by, drawn_prompts, engine_settings  # noqa: E402
from blink.hw.engines.host_batcher import HostBatcher, Job  # noqa: E402
from blink.hw.engines.on_host import HostModelScheduler  # noqa: E402
from blink.hw.engines.spec import random_spec  # noqa: E402
from blink.hw.engines.torch_engine import EngineLimits, TorchEngine  # noqa: E402
from blink.hw.engines.weights import random_weights  # noqa: E402
from blink.hw.native.build import kernels_folder  # noqa: E402
from blink.hw.native.instance import Instance  # noqa: E402
from blink.hw.native.library import load_library  # noqa: E402
from blink.hw.native.process import Stop  # noqa: E402
from blink.hw.native.run import MONOTONIC_CLOCK, serve_over  # noqa: E402
from blink.hw.ring import EOS_IGNORED, eos_word, min_tokens_of  # noqa: E402
from blink.hw.texts import Sampling, Texts  # noqa: E402
from blink.perf.shape import ModelShape  # noqa: E402
from blink.workload.build import build_load  # noqa: E402

pytestmark = needs_compiler
REQUESTS, OUTPUT = 12, 9
SHAPE = ModelShape(
    name="tiny", layer_count=2, hidden_size=64, head_count=4, kv_head_count=2, head_size=16, ffn_size=96, vocab_size=97,
    context_tokens_max=64, tied_embeddings=True,
)  # fmt: skip
LIMITS = EngineLimits(
    context_tokens=64, batch_max=4, block_tokens=4, block_count=48, prefill_batch_max=2, prefill_batches=(1, 2),
    prefill_sequences=(8, 32), decode_batches=(1, 2, 4),
)  # fmt: skip
SAMPLING = Sampling(temperature=0.8, top_p=0.9, top_k=20)
DOCUMENT = {
    "name": "tiny", "model": {"profile": "smollm2-135m"}, "gpu": {"profile": "h200"},
    "workload": {
        "requests": REQUESTS, "arrivals": {"kind": "all-at-once"},
        "lengths": {"kind": "uniform", "prompt_tokens": [1, 30], "output_tokens": [OUTPUT, OUTPUT]},
    },
}  # fmt: skip


@pytest.fixture
def engine() -> Iterator[TorchEngine]:
    spec = random_spec(SHAPE)
    made = TorchEngine(spec, random_weights(spec, "cpu", torch.float32, 3), LIMITS)
    yield made
    made.close()


@pytest.fixture
def ring(engine: TorchEngine) -> Iterator[Instance]:
    settings = engine_settings(engine, window=5, output_tokens=OUTPUT, ignore_eos=True)
    made = Instance(load_library(), replace(settings, graph_timeout_ns=300_000_000))
    yield made
    made.close()


def test_tokens_are_those_of_the_engine_alone(engine: TorchEngine, ring: Instance) -> None:
    scenario, load = build_load(parse_scenario(DOCUMENT, "tiny"))
    prompts, answers = drawn_prompts(engine.vocabulary_count), Answers()
    scheduler = HostModelScheduler(ring, engine, 10_000_000_000)
    result = serve_over(
        scenario, load, admitted_by(ring.settings, scenario, load), ring, scheduler, MONOTONIC_CLOCK, trace_path=None,
        progress=None, stop=None, time_scale=1.0, texts=Texts(prompts, answers.take, SAMPLING),
    )  # fmt: skip
    assert (result.requests["outcome"] == Outcome.COMPLETED).all()
    assert result.scheduler.batch_max > 1
    assert result.scheduler.relaunches > 0
    for index in range(REQUESTS):
        tokens = prompts(Request(index, -1, int(load.prompt_tokens[index]), 0, 0, 0)).tolist()
        job = Job(tokens, OUTPUT, SAMPLING.temperature, SAMPLING.top_p, SAMPLING.top_k, seed=index, ignore_eos=True)
        HostBatcher(engine, 1).serve([job])
        assert answers.tokens[index] == job.tokens


def eos_of_greedy(engine: TorchEngine, prompt: list[int], at: int) -> int:
    """The token that a greedy answer has as its number `at`, from 0, and not before."""
    job = Job(prompt, OUTPUT, ignore_eos=True)
    HostBatcher(engine, 1).serve([job])
    assert job.tokens[at] not in job.tokens[:at]
    return job.tokens[at]


def minimum_of(slot: int) -> tuple[int, bool]:
    """What the next test asks for in a slot: min_tokens, and whether EOS is ignored. Neighbours share batches."""
    return (0, 1, 4, OUTPUT)[slot % 4], slot // 4 % 2 > 0


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("sampling", [Sampling(), SAMPLING])
def test_eos_is_not_drawn_before_min_tokens(at: int, sampling: Sampling) -> None:
    """EOS is a token that a greedy answer begins with, or has third: it would come from a prefill, or from a decode."""
    spec, prompt = random_spec(replace(SHAPE, tied_embeddings=False)), [5, 6, 7]  # tied, it says one token for ever
    weights = random_weights(spec, "cpu", torch.float32, 9)
    eos = eos_of_greedy(TorchEngine(spec, weights, LIMITS), prompt, at)
    engine = TorchEngine(replace(spec, eos_token=eos), weights, LIMITS)
    settings = engine_settings(engine, window=5, output_tokens=OUTPUT, ignore_eos=False)
    ring, answers = Instance(load_library(), settings), Answers()
    for slot in range(settings.slot_count):
        min_tokens, ignored = minimum_of(slot)
        ring.set_eos(slot, eos_word(min_tokens, ignored=ignored))
    scenario, load = build_load(parse_scenario(DOCUMENT, "tiny"))
    load = replace(load, prompt_tokens=np.full(REQUESTS, len(prompt)))
    texts = Texts(lambda _: np.array(prompt, np.uint32), answers.take, sampling)
    try:
        result = serve_over(
            scenario, load, admitted_by(settings, scenario, load), ring, HostModelScheduler(ring, engine, 10**10),
            MONOTONIC_CLOCK, trace_path=None, progress=None, stop=None, time_scale=1.0, texts=texts,
        )  # fmt: skip
    finally:
        ring.close()
    assert (result.requests["outcome"] == Outcome.COMPLETED).all()
    asked = [minimum_of(slot) for slot in result.requests["slot"].tolist()]
    assert len(set(asked)) == 8
    for index, (min_tokens, ignored) in enumerate(asked):
        job = Job(
            prompt, OUTPUT, sampling.temperature, sampling.top_p, sampling.top_k, seed=index, ignore_eos=ignored,
            min_tokens=min_tokens,
        )  # fmt: skip
        HostBatcher(engine, 1).serve([job])
        tokens = answers.tokens[index]
        assert tokens == job.tokens
        assert eos not in tokens[:min_tokens]
        assert len(tokens) == OUTPUT if ignored else len(tokens) >= min_tokens and eos not in tokens[:-1]
        if sampling.temperature == 0 and min_tokens <= at:
            assert tokens[at] == eos  # the end, or if it is ignored a token like any other
            assert ignored or len(tokens) == at + 1


def test_the_word_of_a_slot_says_how_many_tokens_come_before_eos() -> None:
    for min_tokens in (0, 1, 7, 1 << 30, EOS_IGNORED - 2):
        for ignored in (False, True):
            word = eos_word(min_tokens, ignored=ignored)
            assert 0 < word < 1 << 32
            assert (min_tokens_of(word), word >= EOS_IGNORED) == (min_tokens, ignored)
    assert min_tokens_of(0) == 0
    header = (kernels_folder() / "include/blink/block.h").read_text(encoding="utf-8")
    assert f"kEosIgnored = 1u << {EOS_IGNORED.bit_length() - 1};" in header


def test_a_step_that_fails_is_a_fault_with_its_reason(
    engine: TorchEngine, ring: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(shape: Any) -> None:
        raise ValueError("no such shape")

    monkeypatch.setattr(engine, "run", fails)
    scenario, load = build_load(parse_scenario(DOCUMENT, "tiny"))
    scheduler = HostModelScheduler(ring, engine, 10_000_000_000)
    texts = Texts(drawn_prompts(engine.vocabulary_count), Answers().take)
    result = serve_over(
        scenario, load, admitted_by(ring.settings, scenario, load), ring, scheduler, MONOTONIC_CLOCK, trace_path=None,
        progress=None, stop=None, time_scale=1.0, texts=texts,
    )  # fmt: skip
    assert result.partial
    assert "a step failed: ValueError: no such shape" in result.notes
    assert not np.any(result.requests["outcome"] == Outcome.COMPLETED)
    assert scheduler.stop(Stop.ABORT)
