"""Races of two scheduler instances for one slot on a GPU, each a thread block: see blink.hw.native.races."""

from __future__ import annotations

import ctypes

import numpy as np

from blink.hw.cuda.copier import Copier
from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.structures import CudaHost
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.races import pending_slot, race_settings

_WORDS = 4
_DOUBLES = 3


def double_claims(kernels: Kernels, rounds: int) -> int:
    """How often two thread blocks both believed that they had claimed the same pending slot, in that many races: 0."""
    slot, images = _two_blocks()
    cuda = kernels.cuda
    copier, memory, words = Copier(cuda), cuda.allocate(len(images)), cuda.allocate(8 * _WORDS)
    try:
        copier.put(memory, images)
        kernels.launch(
            "race", 2, 1, copier.stream,
            ctypes.c_uint64(memory), CudaHost(0, 0, 0), ctypes.c_uint32(slot), ctypes.c_uint32(rounds),
            ctypes.c_uint64(words),
        )  # fmt: skip
        return int(np.frombuffer(copier.get(words, 8 * _WORDS), np.uint64)[_DOUBLES])
    finally:
        copier.close()
        cuda.free(memory)
        cuda.free(words)


def _two_blocks() -> tuple[int, bytes]:
    """The slot of a prompt that waits in the first block, and both blocks as they stand in memory."""
    instances = [Instance(load_library(), race_settings()) for _ in range(2)]
    try:
        slot = pending_slot(instances[0])
        blocks = [bytes(each.block.view(0, int(each.config["total_bytes"][0]))) for each in instances]
    finally:
        for each in instances:
            each.close()
    return slot, b"".join(blocks)
