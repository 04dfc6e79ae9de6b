"""Memory by hand, and a plan that does not fit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blink.common.errors import InputError
from blink.common.units import GIB, KIB
from blink.perf.gpu import GpuProfile
from blink.perf.memory import MemoryBudget, ring_bytes, workspace_bytes
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel

LLAMA = ModelShape.load("llama-3-8b")
STEP = StepModel(LLAMA, GpuProfile.load("h200"))
PLAN: dict[str, Any] = {
    "graph_count": 800,
    "prefill_tokens_max": 8192,
    "batch_max": 64,
    "prompt_tokens_max": 4096,
    "output_tokens_max": 2048,
}


def test_ring_by_hand() -> None:
    assert ring_bytes(4096, 2048) == 64 * KIB + 256 * KIB + 4096 * (4096 + 2048) * 4


def test_workspace_by_hand() -> None:
    """Residual, its normed copy, gate, up and product of 8192 tokens; 64 rows of logits; 32 MiB of the engine."""
    assert workspace_bytes(STEP, 8192, 64) == 8192 * (2 * 4096 + 3 * 14336) * 2 + 64 * 128256 * 4 + (32 << 20)


def test_budget_by_hand() -> None:
    budget = MemoryBudget.plan(STEP, **PLAN)
    assert budget.usable_bytes == int(139 * GIB * 0.9)
    assert budget.weights_bytes == 8_030_261_248 * 2
    assert budget.graphs_bytes == 800 * 2_500_000
    assert budget.kv_block_bytes == 16 * 131_072
    fixed = budget.weights_bytes + budget.graphs_bytes + budget.workspace_bytes + budget.ring_bytes
    assert budget.kv_block_count == (budget.usable_bytes - fixed) // (16 * 131_072)
    assert budget.kv_bytes == budget.kv_block_count * 2_097_152
    assert budget.kv_token_count == budget.kv_block_count * 16


@given(
    graphs=st.integers(0, 1000),
    tokens=st.integers(1, 16384),
    block=st.sampled_from([8, 16, 32, 64]),
    utilisation=st.floats(0.3, 1.0),
)
def test_parts_never_exceed_what_is_usable(graphs: int, tokens: int, block: int, utilisation: float) -> None:
    changes = {"graph_count": graphs, "prefill_tokens_max": tokens, "kv_block_tokens": block}
    budget = MemoryBudget.plan(STEP, **{**PLAN, **changes, "utilisation": utilisation})
    fixed = budget.weights_bytes + budget.graphs_bytes + budget.workspace_bytes + budget.ring_bytes
    left = budget.usable_bytes - fixed - budget.kv_bytes
    assert 0 <= left < budget.kv_block_bytes
    assert budget.kv_token_count >= 4096 + 2048


def test_tensor_parallel_divides() -> None:
    one = MemoryBudget.plan(STEP, **PLAN)
    four = MemoryBudget.plan(StepModel(LLAMA, STEP.gpu, tensor_parallel=4), **PLAN)
    assert four.weights_bytes == one.weights_bytes // 4
    assert four.kv_block_bytes == one.kv_block_bytes // 4
    assert four.workspace_bytes < one.workspace_bytes
    assert four.ring_bytes == one.ring_bytes
    assert four.kv_block_count > 4 * one.kv_block_count


def test_the_published_testbed_fits_its_models() -> None:
    """The publication served all four on one 96 GB H100 in fp16."""
    gpu = GpuProfile.load("h100-96gb")
    for name in ("llama-3-8b", "phi-4", "qwen3-32b", "qwen3-30b-a3b"):
        assert MemoryBudget.plan(StepModel(ModelShape.load(name), gpu), **PLAN).kv_token_count > 6144


def test_too_large_a_model_says_by_how_much() -> None:
    step = StepModel(ModelShape.load("llama-3-70b"), STEP.gpu)
    with pytest.raises(InputError) as caught:
        MemoryBudget.plan(step, **PLAN)
    message = str(caught.value)
    fixed = step.shape.param_count * 2 + 800 * 2_500_000 + workspace_bytes(step, 8192, 64) + ring_bytes(4096, 2048)
    short = fixed + 6144 * step.shape.kv_bytes_per_token(2) - int(139 * GIB * 0.9)
    assert f"llama-3-70b on 1 x h200 does not fit by {short / GIB:.2f} GiB" in message
    assert "the largest part is weights" in message
    assert "weights 131.42" in message
    assert "\n" not in message


def test_it_fits_to_the_byte() -> None:
    """With memory for exactly one request there is a plan; with one byte less there is none."""
    budget = MemoryBudget.plan(STEP, **{**PLAN, "utilisation": 1.0})
    blocks = 6144 // 16
    fixed = budget.usable_bytes - (budget.usable_bytes - budget.weights_bytes - budget.graphs_bytes)
    needed = fixed + budget.workspace_bytes + budget.ring_bytes + blocks * budget.kv_block_bytes
    exact = StepModel(LLAMA, dataclasses.replace(STEP.gpu, memory_bytes=needed))
    assert MemoryBudget.plan(exact, **{**PLAN, "utilisation": 1.0}).kv_block_count == blocks
    short = StepModel(LLAMA, dataclasses.replace(STEP.gpu, memory_bytes=needed - 1))
    with pytest.raises(InputError, match=r"does not fit by 0\.00 GiB"):
        MemoryBudget.plan(short, **{**PLAN, "utilisation": 1.0})


@pytest.mark.parametrize(
    ("field", "value"), [("utilisation", 0.0), ("utilisation", 1.1), ("kv_block_tokens", 0), ("batch_max", 0)]
)
def test_refusals(field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field}: {value} is not allowed"):
        MemoryBudget.plan(STEP, **{**PLAN, field: value})
