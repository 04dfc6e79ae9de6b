"""What one scheduler instance is created with: limits, captured shapes, memory, durations."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np

from blink.common.policy import GraphTable, Limits
from blink.common.results import I64
from blink.hw.native.tokens import EOS_TOKEN

NO_TOKEN = (1 << 32) - 1
TRACE_CAPACITY = 1 << 20
"""Records between two drains: at 32 bytes each, more than a second of the fastest scheduler on a host."""


class StepTimes(Protocol):
    """How long a captured graph runs on its own, in nanoseconds (blink.perf.step.StepModel)."""

    def decode_ns(self, batch: int, kv_tokens: int) -> int: ...

    def prefill_ns(self, batch: int, sequence: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Durations:
    """Of the stub's graphs, in nanoseconds by graph index (row-major grid, the largest shape last), and for KV tokens.

    A decode graph takes `decode_ns[index] + kv_tokens * kv_token_q32_ns / 2**32`.
    """

    prefill_ns: I64
    decode_ns: I64
    kv_token_q32_ns: int

    @classmethod
    def none(cls, prefill: GraphTable, decode: GraphTable) -> Durations:
        """Graphs that take no time."""
        return cls(np.zeros(len(_shapes(prefill)), np.int64), np.zeros(len(_shapes(decode)), np.int64), 0)

    @classmethod
    def of(cls, times: StepTimes, prefill: GraphTable, decode: GraphTable, time_scale: float) -> Durations:
        """Those of a step model, every one multiplied by `time_scale`; none at all where it is 0."""
        if not time_scale:
            return cls.none(prefill, decode)
        prefill_ns = [round(times.prefill_ns(*shape) * time_scale) for shape in _shapes(prefill)]
        decode_ns = [round(times.decode_ns(batch, 0) * time_scale) for batch, _ in _shapes(decode)]
        per_token = times.decode_ns(1, 1 << 32) - times.decode_ns(1, 0)
        return cls(np.array(prefill_ns, np.int64), np.array(decode_ns, np.int64), round(per_token * time_scale))


def _shapes(table: GraphTable) -> list[tuple[int, int]]:
    return [*product(table.batches, table.sequences), (table.fallback.batch, table.fallback.sequence)]


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """Everything that stays the same while an instance lives. Areas and capacities in tokens, times in nanoseconds.

    `graph_timeout_ns` 0: a graph may take for ever. `virtual_clock`: time is what each `step` says, and nothing sleeps.
    `report`: keep the last decision where the host can read it. `engine_thread`: graphs run on a thread of their own.
    `hang_at`: the number of a graph that never ends, counted from 1; 0 for none. `eos_token`: NO_TOKEN for a model
    whose texts end by their length alone.
    """

    limits: Limits
    prefill_table: GraphTable
    decode_table: GraphTable
    kv_block_count: int
    prompt_area_tokens: int
    output_capacity_tokens: int
    slot_count: int
    durations: Durations
    time_limit_ns: int = 0
    graph_timeout_ns: int = 0
    boot_id: int = 1
    frontend_epoch: int = 0
    trace_capacity: int = TRACE_CAPACITY
    virtual_clock: bool = False
    report: bool = False
    engine_thread: bool = False
    hang_at: int = 0
    eos_token: int = EOS_TOKEN

    def fields(self) -> dict[str, int]:
        """Values of the scheduler's Config (kernels/include/blink/block.h) by name, but for its offsets."""
        prefill, decode, limits = self.prefill_table, self.decode_table, self.limits
        longest = prefill.fallback.sequence + self.output_capacity_tokens
        fields = {
            "prompt_area_tokens": self.prompt_area_tokens,
            "output_area_tokens": self.slot_count * self.output_capacity_tokens,
            "time_limit_ns": self.time_limit_ns,
            "graph_timeout_ns": self.graph_timeout_ns,
            "boot_id": self.boot_id,
            "kv_token_q32_ns": self.durations.kv_token_q32_ns,
            "hang_at": self.hang_at,
            "batch_max": limits.batch_max,
            "prefill_batch_max": limits.prefill_batch_max,
            "block_tokens": limits.block_tokens,
            "window": limits.window,
            "prefill_padding_tokens_max": limits.prefill_padding_tokens_max,
            "resume_after_tokens": limits.resume_after_tokens,
            "kv_block_count": self.kv_block_count,
            "blocks_per_place": min(self.kv_block_count, -(-longest // limits.block_tokens)),
            "eos_token": self.eos_token,
            "trace_capacity": self.trace_capacity,
            "frontend_epoch": self.frontend_epoch,
            "virtual_clock": int(self.virtual_clock),
            "report": int(self.report),
            "engine_thread": int(self.engine_thread),
        }
        for name, table in (("prefill", prefill), ("decode", decode)):
            fields |= {
                f"{name}_tokens_max": table.tokens_max,
                f"{name}_batch_count": len(table.batches),
                f"{name}_sequence_count": len(table.sequences),
                f"{name}_fallback_batch": table.fallback.batch,
                f"{name}_fallback_sequence": table.fallback.sequence,
            }
        return fields

    def shapes(self) -> list[int]:
        """The captured batches and sequences, as they stand in the block."""
        prefill, decode = self.prefill_table, self.decode_table
        return [*prefill.batches, *prefill.sequences, *decode.batches, *decode.sequences]
