"""MemoryBudget: where a GPU's memory goes, and how many KV blocks are left."""

from __future__ import annotations

from dataclasses import dataclass

from blink.common.errors import InputError
from blink.common.layout import DESCRIPTOR_ARRAY_BYTES, STATUS_ARRAY_BYTES
from blink.common.states import SLOT_COUNT
from blink.common.units import GIB
from blink.perf.step import StepModel

TOKEN_ID_BYTES = 4
LOGIT_BYTES = 4


class DoesNotFitError(InputError):
    """A GPU's memory is too small; `factor`: what is needed over what is usable."""

    def __init__(self, message: str, factor: float = 1.0) -> None:
        super().__init__(message)
        self.factor = factor


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Bytes on one GPU, by part; with tensor parallelism every GPU of the group has the same budget."""

    usable_bytes: int
    weights_bytes: int
    graphs_bytes: int
    workspace_bytes: int
    ring_bytes: int
    kv_block_bytes: int
    kv_block_tokens: int
    kv_block_count: int

    @classmethod
    def plan(
        cls,
        step: StepModel,
        *,
        graph_count: int,
        prefill_tokens_max: int,
        batch_max: int,
        prompt_tokens_max: int,
        output_tokens_max: int,
        kv_block_tokens: int = 16,
        utilisation: float = 0.9,
    ) -> MemoryBudget:
        """Subtract every fixed part from `utilisation` of the memory and fill the rest with KV blocks.

        `prefill_tokens_max` is batch x sequence of the largest captured prefill; `prompt_tokens_max` and
        `output_tokens_max` are the caps of one slot. Raises InputError that says by how many GiB the plan does not
        fit and which part is the largest, unless at least one request of the full caps has its blocks.
        """
        _check("utilisation", utilisation, 0.01, 1.0)
        for name, value in (("batch_max", batch_max), ("kv_block_tokens", kv_block_tokens)):
            _check(name, value, 1, 1 << 20)
        parts = {
            "weights": step.weights_bytes,
            "captured graphs": graph_count * step.engine.graph_bytes,
            "workspace": workspace_bytes(step, prefill_tokens_max, batch_max),
            "ring": ring_bytes(prompt_tokens_max, output_tokens_max),
        }
        usable = int(step.gpu.memory_bytes * utilisation)
        block_bytes = step.kv_bytes(kv_block_tokens)
        left = usable - sum(parts.values())
        needed = -(-(prompt_tokens_max + output_tokens_max) // kv_block_tokens) * block_bytes
        if left < needed:
            wanted = {**parts, "KV blocks of one request": needed}
            raise DoesNotFitError(_does_not_fit(step, utilisation, usable, wanted), sum(wanted.values()) / usable)
        weights, graphs, workspace, ring = parts.values()
        return cls(
            usable_bytes=usable,
            weights_bytes=weights,
            graphs_bytes=graphs,
            workspace_bytes=workspace,
            ring_bytes=ring,
            kv_block_bytes=block_bytes,
            kv_block_tokens=kv_block_tokens,
            kv_block_count=left // block_bytes,
        )

    @property
    def kv_bytes(self) -> int:
        """Bytes of all KV blocks."""
        return self.kv_block_count * self.kv_block_bytes

    @property
    def kv_token_count(self) -> int:
        """Tokens that all KV blocks hold."""
        return self.kv_block_count * self.kv_block_tokens


def ring_bytes(prompt_tokens_max: int, output_tokens_max: int) -> int:
    """Status and descriptor arrays, and a prompt and an output area of u32 token ids for every slot."""
    areas = SLOT_COUNT * (prompt_tokens_max + output_tokens_max) * TOKEN_ID_BYTES
    return STATUS_ARRAY_BYTES + DESCRIPTOR_ARRAY_BYTES + areas


def workspace_bytes(step: StepModel, tokens: int, rows: int) -> int:
    """Live activations at the widest point of the largest step, its logits, and the engine's own workspace.

    A layer holds the residual and its normed copy, and either queries, keys, values and the attention's output, or
    the gate, up and product vectors of the FFN (of every routed expert). Logits have 32 bits for sampling.
    """
    shape, ways = step.shape, step.tensor_parallel
    attention = 2 * shape.query_size + 2 * shape.kv_size
    ffn = 3 * (shape.experts_per_token * shape.expert_ffn_size if shape.expert_count else shape.ffn_size)
    live = 2 * shape.hidden_size + -(-max(attention, ffn) // ways)
    logits = rows * shape.vocab_size * LOGIT_BYTES
    return max(tokens, rows) * live * step.dtype_bytes + logits + step.engine.workspace_bytes


def _does_not_fit(step: StepModel, utilisation: float, usable: int, parts: dict[str, int]) -> str:
    short = sum(parts.values()) - usable
    largest = max(parts, key=lambda name: parts[name])
    listed = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items())
    return (
        f"memory: {step.shape.name} on {step.tensor_parallel} x {step.gpu.name} does not fit by "
        f"{short / GIB:.2f} GiB: {usable / GIB:.2f} GiB usable ({utilisation:g} of "
        f"{step.gpu.memory_bytes / GIB:.2f}), needed in GiB: {listed}; the largest part is {largest}"
    )


def _check(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise InputError(f"{field}: {value!r} is not allowed; allowed: {low:g} to {high:g}")
