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
from blink.hw.native.instance import Instance  # noqa: E402
from blink.hw.native.library import load_library  # noqa: E402
from blink.hw.native.process import Stop  # noqa: E402
from blink.hw.native.run import MONOTONIC_CLOCK, serve_over  # noqa: E402
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
