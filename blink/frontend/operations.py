"""The one-sided operations that the frontend's logic returns; a transport (simulated or real) carries them out."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from blink.common.layout import DESCRIPTOR_STRIDE_BYTES


class Region(Enum):
    """The registered memory that an operation addresses."""

    STATUS = "status"
    DESCRIPTOR = "descriptor"
    PROMPT = "prompt"
    OUTPUT = "output"
    HEADER = "header"


class Write(NamedTuple):
    """A WRITE of `size_bytes` at `offset_bytes` of a region.

    `data` is None where only the size matters: the simulator moves no token ids.
    """

    region: Region
    offset_bytes: int
    size_bytes: int
    data: bytes | None = None

    @property
    def holds_descriptors(self) -> bool:
        """Whether whole descriptors are written, and not a cancel word alone."""
        return self.region is Region.DESCRIPTOR and self.size_bytes >= DESCRIPTOR_STRIDE_BYTES


TOKEN_BYTES = 4
"""Token ids are u32 in the prompt and output areas."""
