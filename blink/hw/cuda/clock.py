"""The GPU's clock on the host's: numbers that a kernel answers with the time at which it saw them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from time import CLOCK_MONOTONIC, clock_gettime_ns

from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.structures import Control

ROUNDS = 2_000


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """What the GPU's clock (%globaltimer) shows more than the host's monotonic one, and the error at most."""

    offset_ns: int
    error_ns: int


def compare_clocks(kernels: Kernels, control: Control) -> ClockOffset:
    """From the quickest of many answers: the GPU saw the number between the host's two looks at its clock.

    No scheduler may run. The clocks drift apart by some millionths.
    """
    cuda = kernels.cuda
    stream = cuda.stream()
    control["ping"] = control["pong"] = 0
    kernels.launch("clock", 1, 1, stream, ctypes.c_uint64(control.address), ctypes.c_uint32(ROUNDS))
    best = ClockOffset(0, 1 << 62)
    for number in range(1, ROUNDS + 1):
        asked_ns = clock_gettime_ns(CLOCK_MONOTONIC)
        control["ping"] = number
        while control["pong"] != number:
            pass
        answered_ns = clock_gettime_ns(CLOCK_MONOTONIC)
        error_ns = (answered_ns - asked_ns + 1) // 2
        if error_ns < best.error_ns:
            best = ClockOffset(control["pong_ns"] - (asked_ns + answered_ns) // 2, error_ns)
    cuda.wait(stream)
    cuda.close_stream(stream)
    return best
