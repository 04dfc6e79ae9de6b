"""What the frontend and the loop of a run ask of hardware: a ring that they reach, and a scheduler over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blink.common.layout import U64
from blink.frontend.operations import Write

if TYPE_CHECKING:
    from blink.hw.native.process import Stop
    from blink.hw.native.settings import NativeSettings

Records = NDArray[np.void]
Tokens = NDArray[np.uint32]
EOS_IGNORED = 1 << 31
"""In the word that a slot has beside the ring: EOS does not end the request. kEosIgnored of block.h."""


def eos_word(min_tokens: int, *, ignored: bool) -> int:
    """The word of a request that is to have `min_tokens` tokens before EOS may be drawn, for `Ring.set_eos`."""
    first = min(min_tokens, EOS_IGNORED - 2) + 1
    return first | EOS_IGNORED if ignored else first


def min_tokens_of(word: int) -> int:
    """Of an `eos_word`; 0 of a word that was never set."""
    return max((word & ~EOS_IGNORED) - 1, 0)


class Ring(Protocol):
    """The frontend's one-sided operations, and what a host reads of the scheduler beside them.

    WRITEs take effect in the order in which they are made. `set_eos` is in force before a WRITE that follows it.
    """

    @property
    def settings(self) -> NativeSettings:
        """What the scheduler was created with."""

    @property
    def backend(self) -> str:
        """Its name in traces and messages."""

    def write(self, write: Write) -> None:
        """Carry out a WRITE."""

    def read_status(self) -> U64:
        """A READ of the status array: (SLOT_COUNT,) control words, which the next READ overwrites."""

    def read_tokens(self, offset: NDArray[np.int64], count: NDArray[Any]) -> Tokens:
        """READs of ranges of the output area, in tokens, one after another."""

    def set_eos(self, slot: int, eos_at: int) -> None:
        """Before its submission: the token, from 1, that is the first of the slot's next request that may be EOS.

        The stub draws EOS there; a model does not draw it earlier. With EOS_IGNORED it ends nothing (see `eos_word`).
        """

    def drain(self) -> Records:
        """Trace records that are complete and were not drained before; empty if there are none now."""

    def state(self) -> dict[str, int]:
        """The scheduler's state by field, as it is now."""

    def close(self) -> None:
        """Give the memory back."""


class TakenRing(Ring, Protocol):
    """A ring that somebody else has made, and that a dead frontend may have had before: `settings` has its epoch."""

    settings: NativeSettings

    @property
    def header_epoch(self) -> int:
        """The frontend's epoch in the ring header."""

    def read_descriptors(self) -> bytes:
        """A READ of the descriptor array."""

    def heartbeat(self) -> int:
        """The scheduler's heartbeat in the ring header."""


class Running(Protocol):
    """A scheduler that runs over a ring by itself."""

    def wait_until_up(self) -> None:
        """Return once the heart beats. Raises RuntimeError if it does not begin to."""

    def fault(self) -> str | None:
        """Why the scheduler will not go on, None if it is well."""

    def stop(self, how: Stop, limit_s: float = 10.0) -> bool:
        """Set the stop word and wait for the end. True if it ended by itself."""

    def kill(self) -> None:
        """End it at once; nothing if it has ended."""

    def record_ns(self, host_ns: int) -> int:
        """A time of the host's monotonic clock on the clock of the scheduler's trace records."""
