"""Which parts of a scheduler's block a frontend on another host may reach, and how."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from blink.common.layout import HEADER_BYTES
from blink.hw.cuda.ports import area_bytes
from blink.hw.native.instance import Config

STRUCTURES = ("state", "record")
"""Structures of the block whose layout the other side is told."""


@dataclass(frozen=True, slots=True)
class Area:
    """Some bytes of the block, by their offset. What is not `writable` may only be READ."""

    offset_bytes: int
    size_bytes: int
    writable: bool


def ring_areas(config: Config, dtypes: dict[str, np.dtype[np.void]]) -> dict[str, Area]:
    """The areas by name. A frontend writes what the protocol lets it write; of the rest it reads what it needs.

    Beside the ring: where the stub's texts end, and for whoever keeps the trace its records, the scheduler's state, and
    the one word that says up to where the records were taken.
    """
    state = dtypes["state"]
    assert state.fields is not None

    def ring(name: str, *, writable: bool) -> Area:
        return Area(int(config[f"{name}_offset"][0]), area_bytes(config, name), writable)

    return {
        "header": Area(int(config["ring_header_offset"][0]), HEADER_BYTES, True),
        "status": ring("status", writable=True),
        "descriptors": ring("descriptors", writable=True),
        "prompts": ring("prompts", writable=True),
        "outputs": ring("outputs", writable=False),
        "eos": ring("eos", writable=True),
        "state": Area(int(config["state_offset"][0]), state.itemsize, False),
        "trace": Area(
            int(config["trace_offset"][0]), int(config["trace_capacity"][0]) * dtypes["record"].itemsize, False
        ),
        "trace_tail": Area(int(config["state_offset"][0]) + int(state.fields["trace_tail"][1]), 8, True),
    }
