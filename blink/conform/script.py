"""A script: a small scheduler and what happens to it at which step. Drawn at random, read by people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from blink.common.events import GraphKind
from blink.common.lockstep import NO_EOS, STEP_NS, Arrival, Cancel, Machine, Operation
from blink.common.policy import GraphShape, GraphTable, Limits, kv_blocks_needed

T = TypeVar("T")

PROMPT_CAPACITY_TOKENS = 64
_CONTEXT_TOKENS = 128
_OUTPUT_TOKENS_MAX = 14
# Mostly 0, in one draw each: a draw that decides whether there is another one makes scripts hard to shrink.
_GAPS = (*[0] * 10, 1, 2, 3, 4)
_EOS = (*[0] * 30, *range(1, _OUTPUT_TOKENS_MAX + 2))
_CANCELS = (*[0] * 36, *range(1, 13))


@dataclass(frozen=True, slots=True)
class Script:
    """What one lock-step run is made of. `str` of it is a few lines that can be read, and compared by eye."""

    machine: Machine
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    @property
    def request_count(self) -> int:
        """Arrivals."""
        return sum(isinstance(operation, Arrival) for operation in self.operations)

    def lines(self) -> Iterator[str]:
        """The machine, then one line for each operation."""
        yield from _machine_lines(self.machine)
        for operation in self.operations:
            yield f"step {operation.at_step}: {_words(operation)}"


def _machine_lines(machine: Machine) -> Iterator[str]:
    limits, prefill, decode = machine.limits, machine.prefill_table, machine.decode_table
    limit = machine.time_limit_ns
    yield (
        f"batch {limits.batch_max}, prefill {limits.prefill_batch_max}, window {limits.window}, "
        f"padding {limits.prefill_padding_tokens_max}, resume after {limits.resume_after_tokens} tokens, "
        f"{machine.kv_block_count} KV blocks of {limits.block_tokens} tokens, "
        f"output capacity {machine.output_capacity_tokens}" + (f", time limit {limit} ns" if limit else "")
    )
    yield (
        f"prefill graphs {_axis(prefill.batches)} x {_axis(prefill.sequences)} (together {prefill.tokens_max} tokens), "
        f"decode graphs {_axis(decode.batches)} x {_axis(decode.sequences)}"
    )


def _axis(values: Sequence[int]) -> str:
    shown = [str(value) for value in values]
    return " ".join(shown if len(shown) <= 6 else [*shown[:3], "...", shown[-1]])


def _words(operation: Operation) -> str:
    if isinstance(operation, Cancel):
        return f"cancel r{operation.request_id}"
    eos = f", eos {operation.eos_at}" if operation.eos_at < NO_EOS else ""
    return f"submit r{operation.request_id} (prompt {operation.prompt_tokens}, max {operation.output_tokens_max}{eos})"


# --- drawing ---


class Choices(Protocol):
    """Where a script's numbers come from: a seeded generator, or hypothesis, which makes them small again."""

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high`, both included; `low` is the simplest."""

    def pick(self, options: Sequence[T]) -> T:
        """One of them; the first is the simplest."""

    def several(self, make: Callable[[Choices], T], most: int) -> list[T]:
        """1 to `most` things."""


class SeededChoices:
    """Choices of a seeded generator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def integer(self, low: int, high: int) -> int:
        """Uniform."""
        return int(self._rng.integers(low, high + 1))

    def pick(self, options: Sequence[T]) -> T:
        """Uniform."""
        return options[self.integer(0, len(options) - 1)]

    def several(self, make: Callable[[Choices], T], most: int) -> list[T]:
        """A uniform number of them."""
        return [make(self) for _ in range(self.integer(1, most))]


@dataclass(frozen=True, slots=True)
class _Life:
    """A request of a script. `gap` steps after the one before; `eos_at` and `cancel_after` 0: never."""

    gap: int
    prompt_tokens: int
    output_tokens_max: int
    eos_at: int
    cancel_after: int


def _life(choices: Choices) -> _Life:
    return _Life(
        gap=choices.pick(_GAPS),
        prompt_tokens=choices.integer(1, PROMPT_CAPACITY_TOKENS),
        output_tokens_max=choices.integer(1, _OUTPUT_TOKENS_MAX),
        eos_at=choices.pick(_EOS),
        cancel_after=choices.pick(_CANCELS),
    )


def draw_script(choices: Choices, requests_most: int = 12) -> Script:
    """A script that reaches every branch: short windows, scarce KV blocks and places, cancels, time limits."""
    limits = Limits(
        batch_max=(batch := choices.integer(1, 6)),
        prefill_batch_max=min(batch, choices.integer(1, 4)),
        block_tokens=choices.pick((16, 4)),
        window=choices.pick((3, 4, 5, 8, 120)),
        prefill_padding_tokens_max=choices.pick((0, 8, 24, 256)),
        resume_after_tokens=choices.pick((1, 16, 48, 8192)),
    )
    capacity = choices.integer(1, _OUTPUT_TOKENS_MAX)
    time_limit_ns = choices.pick((0, 0, 0, 3, 6, 11)) * STEP_NS
    prefill, decode = _tables(choices, limits)
    lives = choices.several(_life, requests_most)
    spare = choices.integer(0, 8)
    needs = [kv_blocks_needed(x.prompt_tokens, x.output_tokens_max, limits.block_tokens) for x in lives]
    machine = Machine(limits, prefill, decode, max(needs) + spare, PROMPT_CAPACITY_TOKENS, capacity, time_limit_ns)
    # The line is in the order of request ids: where they fall, whoever comes last goes first.
    return Script(machine, tuple(_operations(lives, falling=choices.pick((False, False, False, True)))))


def _tables(choices: Choices, limits: Limits) -> tuple[GraphTable, GraphTable]:
    prefill_batches = tuple(range(1, limits.prefill_batch_max + 1))
    decode_batches = choices.pick(((limits.batch_max,), tuple(range(1, limits.batch_max + 1))))
    prefill = GraphTable(
        GraphKind.PREFILL,
        choices.pick((prefill_batches, (1,))),
        choices.pick(((16, 32, 64), (64,), (8, 24))),
        choices.pick((256, 64)),
        GraphShape(GraphKind.PREFILL, 1, _CONTEXT_TOKENS),
    )
    sequences = choices.pick(((32, 64, 128), (_CONTEXT_TOKENS,)))
    decode = GraphTable(
        GraphKind.DECODE,
        decode_batches,
        sequences,
        choices.pick((limits.batch_max * _CONTEXT_TOKENS, 128)),
        GraphShape(GraphKind.DECODE, limits.batch_max, _CONTEXT_TOKENS),
    )
    return prefill, decode


def _operations(lives: Sequence[_Life], *, falling: bool) -> Iterator[Operation]:
    """Of one step: the arrivals in their order, then the cancels."""
    arrivals: dict[int, list[Operation]] = defaultdict(list)
    cancels: dict[int, list[Operation]] = defaultdict(list)
    at_step = 0
    for index, life in enumerate(lives):
        at_step += life.gap
        request_id = len(lives) - 1 - index if falling else index
        eos_at = life.eos_at or NO_EOS
        arrivals[at_step].append(Arrival(at_step, request_id, life.prompt_tokens, life.output_tokens_max, eos_at))
        if life.cancel_after:
            cancelled = at_step + life.cancel_after - 1
            cancels[cancelled].append(Cancel(cancelled, request_id))
    for step in sorted({*arrivals, *cancels}):
        yield from arrivals[step]
        yield from cancels[step]
