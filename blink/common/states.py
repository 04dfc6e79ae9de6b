"""The states of a slot, the statuses of a finished one, and the actors that may write it."""

from __future__ import annotations

from enum import IntEnum

SLOT_COUNT = 4096


class SlotState(IntEnum):
    """Six states; the value is what stands in the low four bits of the control word."""

    EMPTY = 0
    PREFILL_PENDING = 1
    PREFILL_PROCESSING = 2
    DECODE_PROCESSING = 3
    DECODE_PAUSED = 4
    DECODE_COMPLETED = 5

    @property
    def label(self) -> str:
        """The name used in traces, tables and messages."""
        return self.name.lower()


class SlotStatus(IntEnum):
    """Why a slot is `decode_completed`; `NONE` in every other state."""

    NONE = 0
    STOP = 1  # EOS or a stop condition
    LENGTH = 2  # output_tokens_max or output_capacity reached
    CANCELLED = 3  # the frontend's cancel word named this generation
    FENCED = 4  # submitted under an epoch that is gone
    BAD_DESCRIPTOR = 5  # CRC, generation or bounds of the descriptor are wrong
    TIME_LIMIT = 6  # the request outlived its time limit on the gpu
    ENGINE = 7  # the model's graph failed or is overdue

    @property
    def label(self) -> str:
        """The name used in traces, tables and messages."""
        return self.name.lower()


class Actor(IntEnum):
    """Who writes. Exactly one actor owns a slot at any moment."""

    FRONTEND = 0
    GPU = 1

    @property
    def label(self) -> str:
        """The name used in traces, tables and messages."""
        return self.name.lower()


OWNER: dict[SlotState, Actor] = {
    SlotState.EMPTY: Actor.FRONTEND,
    SlotState.PREFILL_PENDING: Actor.GPU,
    SlotState.PREFILL_PROCESSING: Actor.GPU,
    SlotState.DECODE_PROCESSING: Actor.GPU,
    SlotState.DECODE_PAUSED: Actor.GPU,
    SlotState.DECODE_COMPLETED: Actor.FRONTEND,
}
"""The owner of a slot by its state: only the owner writes the control word."""
