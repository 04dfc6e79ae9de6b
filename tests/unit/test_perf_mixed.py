"""Mixed steps: consistent with decode and prefill in their limits, monotone between them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common.errors import InputError
from blink.perf.gpu import GpuProfile
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel

MODELS = [StepModel(ModelShape.load(shape), GpuProfile.load("h100-96gb")) for shape in ("llama-3-8b", "qwen3-30b-a3b")]
models = st.sampled_from(MODELS)


@given(models, st.integers(1, 256), st.integers(0, 300_000))
def test_without_chunks_it_is_a_decode_step(model: StepModel, rows: int, kv_tokens: int) -> None:
    assert model.mixed_ns(rows, kv_tokens, []) == model.decode_ns(rows, kv_tokens)


@given(models, st.integers(1, 8), st.integers(1, 8192))
def test_whole_prompts_alone_are_a_prefill(model: StepModel, batch: int, sequence: int) -> None:
    assert model.mixed_ns(0, 0, [(sequence, 0)] * batch) == model.prefill_ns(batch, sequence)


@given(models, st.integers(1, 128), st.integers(0, 100_000), st.integers(1, 4000), st.integers(0, 4000))
def test_a_chunk_costs_time_and_its_context_costs_more(
    model: StepModel, rows: int, kv_tokens: int, new: int, context: int
) -> None:
    alone = model.mixed_ns(rows, kv_tokens, [])
    mixed = model.mixed_ns(rows, kv_tokens, [(new, context)])
    assert mixed > alone
    assert mixed >= model.mixed_ns(rows, kv_tokens, [(new, 0)])
    assert model.mixed_ns(rows, kv_tokens, [(new + 1, context)]) >= mixed
    # Together they take no more than one after the other: weights are read once.
    assert mixed <= alone + model.mixed_ns(0, 0, [(new, context)]) + 1


@given(models, st.integers(2, 4000), st.data())
def test_a_prompt_in_two_chunks_takes_no_less_than_whole(model: StepModel, prompt: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, prompt - 1))
    halves = model.mixed_ns(0, 0, [(first, 0)]) + model.mixed_ns(0, 0, [(prompt - first, first)])
    assert halves >= model.mixed_ns(0, 0, [(prompt, 0)])


def test_an_empty_step_is_refused() -> None:
    with pytest.raises(InputError, match="decode_rows: 0 is not allowed; allowed: at least 1"):
        MODELS[0].mixed_ns(0, 0, [])
