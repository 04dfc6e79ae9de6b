"""What the gpu scheduler decides, as pure functions on plain data.

The simulator calls them; the scheduler in `kernels/` follows the same rules and is compared with them step by step.
Nothing here knows of time, memory or SimPy.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from blink.common.events import GraphKind
from blink.common.states import SlotStatus

LAUNCHES_FOR_PAUSE = 2
"""A pause needs one launch for the prefill and one for the resumed decode."""


class Pending(NamedTuple):
    """A prompt that waits in the ring: what the guard of a claim needs of it."""

    request_id: int
    slot: int
    prompt_tokens: int
    output_tokens_max: int


def arrival_order(pending: Iterable[Pending]) -> list[Pending]:
    """First come, first served: by (request_id, slot).

    The frontend numbers requests in the order in which it submits them, so the order needs no memory of earlier scans
    and a relaunched scheduler rebuilds the same queue from the ring.
    """
    return sorted(pending, key=lambda prompt: (prompt.request_id, prompt.slot))


# --- graphs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GraphShape:
    """A captured graph: sequences in the batch and tokens a sequence (prompt for prefill, KV length for decode)."""

    kind: GraphKind
    batch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class GraphTable:
    """The captured shapes of one kind: a dense grid (batches x sequences) under a token limit, and one largest shape.

    `batches` and `sequences` ascend strictly. A shape exists if batch * sequence <= tokens_max or batch = 1.
    """

    kind: GraphKind
    batches: tuple[int, ...]
    sequences: tuple[int, ...]
    tokens_max: int
    fallback: GraphShape

    def dense(self, batch: int, sequence: int) -> GraphShape | None:
        """The smallest captured shape of the grid that holds `batch` sequences of `sequence` tokens, or None."""
        row, column = bisect_left(self.batches, batch), bisect_left(self.sequences, sequence)
        if row == len(self.batches) or column == len(self.sequences):
            return None
        shape_batch, shape_sequence = self.batches[row], self.sequences[column]
        if shape_batch > 1 and shape_batch * shape_sequence > self.tokens_max:
            return None
        return GraphShape(self.kind, shape_batch, shape_sequence)

    def choose(self, batch: int, sequence: int) -> GraphShape:
        """The graph to launch: the grid's, else the largest shape.

        Raises ValueError if not even the largest shape holds the batch: the frontend must have refused it before.
        """
        shape = self.dense(batch, sequence)
        if shape is not None:
            return shape
        if batch > self.fallback.batch or sequence > self.fallback.sequence:
            raise ValueError(
                f"no captured {self.kind.label} graph holds {batch} sequences of {sequence} tokens; "
                f"the largest is {self.fallback.batch} of {self.fallback.sequence}"
            )
        return self.fallback

    def count(self) -> int:
        """Captured graphs, the fallback included."""
        grid = {(b, s) for b in self.batches for s in self.sequences if b == 1 or b * s <= self.tokens_max}
        return len(grid | {(self.fallback.batch, self.fallback.sequence)})


PREFILL_TOKENS_MAX = 8192
"""Default bound of batch x sequence of a captured prefill of more than one prompt."""
PADDING_TOKENS_MAX = 256
"""Default bound of the padding of a prefill that prompts share, where no step model says what a graph costs.

About the tokens that a GPU computes in the time in which it reads a dense model's weights once (docs/models.md).
"""
RESUME_AFTER_TOKENS = 8192
"""Default prompt tokens computed in a row after which what decodes goes on: a step of other engines holds as many."""
_FINE_TO = 1024
_STEPS_A_DOUBLING = 8
_DECODE_SEQUENCES = 32


def default_decode_batches(batch_max: int) -> tuple[int, ...]:
    """1, 2, 4, then every multiple of 8, and `batch_max` itself."""
    return tuple(sorted({b for b in (1, 2, 4, *range(8, batch_max + 1, 8), batch_max) if b <= batch_max}))


def default_decode_sequences(context_tokens: int) -> tuple[int, ...]:
    """32 equal steps up to the context."""
    step = -(-context_tokens // _DECODE_SEQUENCES)
    return tuple(sorted({min(step * (i + 1), context_tokens) for i in range(_DECODE_SEQUENCES)}))


def default_prefill_sequences(context_tokens: int) -> tuple[int, ...]:
    """Multiples of 64 up to 1024, then eight steps a doubling: padding stays under an eighth."""
    sequences, top = list(range(64, _FINE_TO + 1, 64)), _FINE_TO
    while top < context_tokens:
        step = top // _STEPS_A_DOUBLING
        sequences += range(top + step, 2 * top + 1, step)
        top *= 2
    return tuple(sorted({min(s, context_tokens) for s in sequences}))


# --- KV blocks ------------------------------------------------------------------------------------------------------


def kv_blocks_needed(prompt_tokens: int, output_tokens_max: int, block_tokens: int) -> int:
    """Blocks that a claim reserves: for the whole prompt and every token it may still produce.

    With all of it reserved at the claim, a running request can never starve, and none is ever evicted.
    """
    return -(-(prompt_tokens + output_tokens_max) // block_tokens)


def take_blocks(free: list[int], count: int) -> list[int]:
    """Take `count` block numbers off the end of the free stack, in place. Raises ValueError if there are too few."""
    if count > len(free):
        raise ValueError(f"{count} KV blocks wanted, {len(free)} free")
    split = len(free) - count
    taken = free[split:]
    del free[split:]
    return taken


def return_blocks(free: list[int], blocks: Sequence[int]) -> None:
    """Put the blocks of an ended request back on the stack, in place: the last taken is the next to go."""
    free.extend(blocks)


# --- the step boundary ----------------------------------------------------------------------------------------------


class Action(Enum):
    """What the scheduler does after a step boundary."""

    IDLE = "idle"  # scan again
    PREFILL = "prefill"  # pause what decodes, claim, launch a prefill graph
    DECODE = "decode"
    RELAUNCH = "relaunch"  # the window is spent: tail launch a fresh instance, then decide again


class Blocked(Enum):
    """Why the head of the line still waits."""

    NOT = "nothing"  # nobody waits, or all who do are claimed now
    BATCH = "batch"
    KV = "kv"
    WINDOW = "window"
    TURN = "turn"  # one prefill takes no more, or the decode that pauses interrupted goes first


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds a decision. Tokens, blocks and sequences; `window` in launches.

    Prompts share a prefill while its padding stays within `prefill_padding_tokens_max`. Once `resume_after_tokens`
    prompt tokens have been computed in a row, what decodes goes on; 1 lets it go on after every prefill.
    """

    batch_max: int
    prefill_batch_max: int
    block_tokens: int
    window: int
    prefill_padding_tokens_max: int = PADDING_TOKENS_MAX
    resume_after_tokens: int = RESUME_AFTER_TOKENS


@dataclass(frozen=True, slots=True)
class Decision:
    """The action, how many prompts from the head of the line it claims, and why the next one waits."""

    action: Action
    claim_count: int = 0
    blocked: Blocked = Blocked.NOT


_DECODE = Decision(Action.DECODE)
_IDLE = Decision(Action.IDLE)
_RELAUNCH = Decision(Action.RELAUNCH)


def claimable(
    waiting: Sequence[Pending], places: int, free_blocks: int, limits: Limits, prefill: GraphTable
) -> tuple[int, Blocked]:
    """How many prompts one prefill may claim from the head of `waiting`, and what stops the first that it may not.

    In arrival order, never past one that does not fit (head of line waits). The first prompt may use the largest
    shape; more prompts join only while a captured shape of the grid holds them all, and no more than the allowed
    tokens of it are padding: beyond them, two graphs are computed sooner than one.
    """
    count = longest = tokens = 0
    for prompt in waiting:
        if count == places:
            return count, Blocked.BATCH
        if count == limits.prefill_batch_max:
            return count, Blocked.TURN
        need = kv_blocks_needed(prompt.prompt_tokens, prompt.output_tokens_max, limits.block_tokens)
        if need > free_blocks:
            return count, Blocked.KV
        longest = max(longest, prompt.prompt_tokens)
        tokens += prompt.prompt_tokens
        if count:
            shape = prefill.dense(count + 1, longest)
            if shape is None or shape.batch * shape.sequence - tokens > limits.prefill_padding_tokens_max:
                return count, Blocked.TURN
        free_blocks -= need
        count += 1
    return count, Blocked.NOT


def may_pause(claim_count: int, launches_left: int) -> bool:
    """The three conditions of a pause.

    (i) a prompt waits and (ii) there is room for it, counting what the step just freed: `claim_count` > 0;
    (iii) enough launches are left in the window for the prefill and the resumed decode.
    """
    return claim_count > 0 and launches_left >= LAUNCHES_FOR_PAUSE


def decide(
    running: int,
    waiting: Sequence[Pending],
    free_blocks: int,
    launches_left: int,
    prefilled_tokens: int,
    limits: Limits,
    prefill: GraphTable,
) -> Decision:
    """What to do at a step boundary.

    `running` sequences are in the batch after this step's completions; `waiting` is in arrival order;
    `prefilled_tokens` is `prefilled` of all launches since the last decode: enough of them, and that decode goes first.
    """
    if not waiting:
        if not running:
            return _IDLE
        return _DECODE if launches_left else _RELAUNCH
    if running and prefilled_tokens >= limits.resume_after_tokens:
        return Decision(Action.DECODE, 0, Blocked.TURN) if launches_left else _RELAUNCH
    count, blocked = claimable(waiting, limits.batch_max - running, free_blocks, limits, prefill)
    if may_pause(count, launches_left):
        return Decision(Action.PREFILL, count, blocked)
    if running and launches_left:
        return Decision(Action.DECODE, 0, Blocked.WINDOW if count else blocked)
    if running or count:
        return _RELAUNCH
    return Decision(Action.IDLE, 0, blocked)


def prefilled(before: int, prompt_tokens: int, limits: Limits) -> int:
    """Prompt tokens computed since the last decode, after `prompt_tokens` more; counted up to where it matters."""
    return min(before + prompt_tokens, limits.resume_after_tokens)


def end_status(token_count: int, eos_at: int, output_tokens_max: int, output_capacity: int) -> SlotStatus:
    """Why a request ends with its `token_count`-th token, NONE if it goes on.

    `eos_at` is the count at which the model (or a stop condition) ends the text; where it meets the limit, STOP wins.
    """
    if token_count >= eos_at:
        return SlotStatus.STOP
    if token_count >= min(output_tokens_max, output_capacity):
        return SlotStatus.LENGTH
    return SlotStatus.NONE


def end_count(eos_at: int, output_tokens_max: int, output_capacity: int) -> int:
    """The token count with which a request ends if nothing aborts it: the first for which `end_status` is not NONE."""
    return min(eos_at, output_tokens_max, output_capacity)
