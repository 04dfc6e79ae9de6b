"""A request inside an engine: how far its prompt is computed, which tokens it has, which blocks it holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from blink.common.request import Request
from blink.common.states import SlotStatus


class Place(IntEnum):
    """Where a sequence is."""

    WAITING = 0
    PREFILLING = 1  # admitted, part of its tokens is still to be computed
    DECODING = 2
    LEAVING = 3  # its last token is scheduled, its result not yet known
    GONE = 4


@dataclass(slots=True, eq=False)
class Sequence:
    """`base` is constant while it decodes: its KV length before decode step s is base + s."""

    request: Request
    end_count: int
    end_known: bool  # it ends by length: the scheduler knows its last step beforehand
    status: SlotStatus
    blocks_most: int  # for its prompt and its longest output
    place: Place = Place.WAITING
    order: int = 0  # of admission
    tokens: int = 0  # produced by the steps before it began to decode, this time
    computed: int = 0  # tokens whose keys and values are in the cache, or will be by the steps that are scheduled
    blocks: int = 0
    base: int = 0
    joined_at: int = 0  # decode step at which it began to decode
    preemptions: int = 0
    load_ns: int = 0  # until the tokens that it found elsewhere are there

    @property
    def total(self) -> int:
        """Tokens that a prefill has to compute."""
        return self.request.prompt_tokens + self.tokens

    @property
    def leaves_at(self) -> int:
        """Number of decode steps after which it has its last token."""
        return self.joined_at + self.end_count - self.tokens


@dataclass(frozen=True, slots=True)
class Chunk:
    """Prompt tokens of one sequence in one step: `tokens` new ones behind `context` that are in the cache already."""

    sequence: Sequence
    tokens: int
    context: int
    last: bool  # the step yields the sequence's next token
    ends: bool  # ... which is its last one
    load_ns: int = 0  # what has to be loaded first
