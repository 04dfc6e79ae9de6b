"""SmolLM2 behind the scheduler on a GPU: its tokens are those of the engine alone, whoever shares the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.common.checker import check_trace
from blink.common.config import parse_scenario
from blink.common.model_files import SMOLLM2
from blink.common.results import Outcome
from blink.hw.cuda.engine_run import Answers, System, engine_settings, serve_engine
from blink.hw.cuda.lockstep import load_kernels
from blink.hw.cuda.ports import Ingress
from blink.hw.ring import eos_word
from blink.hw.texts import Sampling
from blink.workload.build import build_load
from tests.hw.cuda_help import GPU_MARKS
from tests.hw.engine_help import smollm2_prompts, smollm2_question

pytestmark = [*GPU_MARKS]
PROMPTS, LIMIT = 60, 48
SAMPLINGS = [Sampling(), Sampling(temperature=0.9, top_p=0.8)]


@pytest.fixture(scope="module")
def texts() -> list[list[int]]:
    pytest.importorskip("torch")
    return smollm2_prompts(PROMPTS)


@pytest.fixture(scope="module")
def engine(texts: list[list[int]]) -> Iterator[Any]:
    from blink.hw.engines.torch_engine import EngineLimits, TorchEngine

    limits = EngineLimits(
        context_tokens=640, batch_max=16, block_count=1024, prefill_batch_max=4,
        prefill_sequences=(32, 64, 128, 256, 512), decode_batches=(1, 4, 16),
    )  # fmt: skip
    load_kernels()  # the context is made before PyTorch loads anything
    made = TorchEngine.of_model(SMOLLM2, limits)
    yield made
    made.close()


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("on_gpu", [True, False])
def test_tokens_are_those_of_the_engine_alone(
    engine: Any, texts: list[list[int]], sampling: Sampling, on_gpu: bool, tmp_path: Path
) -> None:
    from blink.hw.engines.host_batcher import HostBatcher, Job

    batcher = HostBatcher(engine, 1)
    jobs = [
        Job(text, LIMIT, sampling.temperature, sampling.top_p, sampling.top_k, seed=index, ignore_eos=True)
        for index, text in enumerate(texts)
    ]
    for job in jobs:
        batcher.serve([job])

    document = {
        "name": "texts", "model": {"profile": SMOLLM2}, "gpu": {"profile": "h200"},
        "workload": {
            "requests": PROMPTS, "arrivals": {"kind": "poisson", "rate": 60.0},
            "lengths": {"kind": "fixed", "prompt_tokens": 5, "output_tokens": LIMIT},
        },
        "trace": {"format": "ndjson"},
    }  # fmt: skip
    scenario, load = build_load(parse_scenario(document, "texts"))
    load = replace(load, prompt_tokens=np.array([len(text) for text in texts], np.int64))
    settings = engine_settings(engine, window=7, output_tokens=LIMIT, ignore_eos=True)
    system = (System.on_gpu if on_gpu else System.on_host)(load_kernels(), settings, engine)
    answers, path = Answers(), tmp_path / "trace.ndjson"
    try:
        result = serve_engine(
            system, engine, scenario, load, trace_path=path, sampling=sampling, answers=answers,
            prompts=lambda request: np.array(texts[request.request_id], np.uint32),
        )  # fmt: skip
    finally:
        system.close()
    assert (result.requests["outcome"] == Outcome.COMPLETED).all()
    assert result.scheduler.batch_max > 1  # they shared batches
    assert [answers.tokens[index] for index in range(PROMPTS)] == [job.tokens for job in jobs]
    assert check_trace(path).code == 0


def minimum_of(slot: int) -> tuple[int, bool]:
    """What the next test asks for in a slot: min_tokens, and whether EOS is ignored. Neighbours share batches."""
    return (0, 1, 9, 20, LIMIT)[slot % 5], slot // 5 % 2 > 0


@pytest.mark.parametrize(
    ("place", "sampling"),
    [("gpu", SAMPLINGS[0]), ("gpu", SAMPLINGS[1]), ("gpu, mapped", SAMPLINGS[0]), ("host", SAMPLINGS[0])],
)
def test_eos_is_not_drawn_before_min_tokens(engine: Any, place: str, sampling: Sampling, tmp_path: Path) -> None:
    """After the question EOS would come from a decode, after the question and its answer from the prefill."""
    from blink.hw.engines.host_batcher import HostBatcher, Job

    question, batcher, eos = smollm2_question(), HostBatcher(engine, 1), engine.eos_token
    plain = Job(question, LIMIT)
    batcher.serve([plain])
    count = 20
    prompts = [[question, question + plain.tokens[:-1]][index // 10] for index in range(count)]
    document = {
        "name": "texts", "model": {"profile": SMOLLM2}, "gpu": {"profile": "h200"},
        "workload": {
            "requests": count, "arrivals": {"kind": "all-at-once"},
            "lengths": {"kind": "fixed", "prompt_tokens": 5, "output_tokens": LIMIT},
        },
        "trace": {"format": "ndjson"},
    }  # fmt: skip
    scenario, load = build_load(parse_scenario(document, "texts"))
    load = replace(load, prompt_tokens=np.array([len(prompt) for prompt in prompts], np.int64))
    settings = engine_settings(engine, window=7, output_tokens=LIMIT, ignore_eos=False)
    if place == "host":
        system = System.on_host(load_kernels(), settings, engine)
    else:
        system = System.on_gpu(load_kernels(), settings, engine, Ingress.MAPPED if "mapped" in place else Ingress.COPY)
    answers, path = Answers(), tmp_path / "trace.ndjson"
    for slot in range(settings.slot_count):
        min_tokens, ignored = minimum_of(slot)
        system.ring.set_eos(slot, eos_word(min_tokens, ignored=ignored))
    try:
        result = serve_engine(
            system, engine, scenario, load, trace_path=path, sampling=sampling, answers=answers,
            prompts=lambda request: np.array(prompts[request.request_id], np.uint32),
        )  # fmt: skip
    finally:
        system.close()
    assert (result.requests["outcome"] == Outcome.COMPLETED).all()
    assert check_trace(path).code == 0
    asked = [minimum_of(slot) for slot in result.requests["slot"].tolist()]
    assert len(set(asked)) == 10
    for index, (min_tokens, ignored) in enumerate(asked):
        job = Job(
            prompts[index], LIMIT, sampling.temperature, sampling.top_p, sampling.top_k, seed=index,
            ignore_eos=ignored, min_tokens=min_tokens,
        )  # fmt: skip
        batcher.serve([job])
        tokens = answers.tokens[index]
        assert tokens == job.tokens
        assert eos not in tokens[:min_tokens]
        assert len(tokens) == LIMIT if ignored else len(tokens) >= min_tokens and eos not in tokens[:-1]
    if sampling.temperature == 0:  # without a minimum EOS is what the model says, at once or after its answer
        free = [index for index, one in enumerate(asked) if one == (0, False)]
        assert {index // 10 for index in free} == {0, 1}
        assert all(answers.tokens[index] == ([eos] if index >= 10 else plain.tokens) for index in free)
