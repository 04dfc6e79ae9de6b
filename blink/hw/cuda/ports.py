"""The frontend's operations over two paths: the copy engine into device memory, and mapped pinned memory."""

from __future__ import annotations

import ctypes
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blink.common.layout import FRONTEND_EPOCH_OFFSET_BYTES, STATUS_ARRAY_BYTES, U64
from blink.common.states import SLOT_COUNT
from blink.frontend.operations import Region, Write
from blink.hw.cuda.copier import Copier
from blink.hw.cuda.driver import Cuda
from blink.hw.native.instance import Config, carry_out
from blink.hw.native.library import Library, address_of
from blink.hw.ring import Tokens

RING_AREAS = ("status", "descriptors", "prompts", "outputs", "eos")
"""What the frontend writes and reads, by the names of their offsets in the configuration."""
_REGIONS = {Region.STATUS: "status", Region.DESCRIPTOR: "descriptors", Region.PROMPT: "prompts"}
_TOKEN_BYTES = 4


class Ingress(StrEnum):
    """How this process reaches the ring."""

    COPY = "copy"  # the ring stands in device memory; the copy engine carries READs and WRITEs
    MAPPED = "mapped"  # the ring stands in pinned host memory, which the scheduler reaches over PCIe


class Port(Protocol):
    """The part of blink.hw.ring.Ring that depends on the path."""

    def write(self, write: Write) -> None: ...

    def read_status(self) -> U64: ...

    def read_tokens(self, offset: NDArray[np.int64], count: NDArray[Any]) -> Tokens: ...

    def set_eos(self, slot: int, eos_at: int) -> None: ...


def area_bytes(config: Config, area: str) -> int:
    """Size of one of RING_AREAS."""
    fixed = {"status": STATUS_ARRAY_BYTES, "descriptors": 64 * SLOT_COUNT, "eos": _TOKEN_BYTES * SLOT_COUNT}
    return fixed.get(area) or _TOKEN_BYTES * int(config[f"{area.removesuffix('s')}_area_tokens"][0])


class CopyPort:
    """READs and WRITEs by the copy engine, over a ring in device memory that starts at `base`."""

    def __init__(self, copier: Copier, config: Config, base: int) -> None:
        self._copier = copier
        self._at = {area: base + int(config[f"{area}_offset"][0]) for area in RING_AREAS}
        self._header = base + int(config["ring_header_offset"][0])
        self._eos = np.zeros(SLOT_COUNT, np.uint32)
        self._eos_first, self._eos_end = SLOT_COUNT, 0  # changed and not yet written

    def write(self, write: Write) -> None:
        """Carry out a WRITE. The texts' ends go first: a control word makes a slot visible."""
        if write.data is None:
            raise ValueError("a real ring needs the bytes of every WRITE")
        if self._eos_end:
            first, end = self._eos_first, self._eos_end
            self._copier.put(self._at["eos"] + _TOKEN_BYTES * first, self._eos[first:end].tobytes())
            self._eos_first, self._eos_end = SLOT_COUNT, 0
        if write.region is Region.HEADER:
            self._copier.put(self._header + FRONTEND_EPOCH_OFFSET_BYTES, bytes(write.data).ljust(8, b"\0"))
        else:
            self._copier.put(self._at[_REGIONS[write.region]] + write.offset_bytes, bytes(write.data))

    def read_status(self) -> U64:
        """The whole array in one copy; every second word is a control word."""
        words = np.frombuffer(self._copier.get(self._at["status"], STATUS_ARRAY_BYTES), np.uint64)
        return np.ascontiguousarray(words[::2])

    def read_tokens(self, offset: NDArray[np.int64], count: NDArray[Any]) -> Tokens:
        """One copy a range."""
        start = self._at["outputs"]
        ranges = zip(offset.tolist(), count.tolist(), strict=True)
        pieces = ((start + _TOKEN_BYTES * first, _TOKEN_BYTES * many) for first, many in ranges)
        return np.frombuffer(self._copier.gather(pieces), np.uint32)

    def set_eos(self, slot: int, eos_at: int) -> None:
        """In force with the next WRITE."""
        self._eos[slot] = min(eos_at, (1 << 32) - 1)
        self._eos_first, self._eos_end = min(self._eos_first, slot), max(self._eos_end, slot + 1)


class HostAreas(Port, Protocol):
    """A Port whose areas stand in memory of the host. `offsets`: see MappedPort."""

    offsets: dict[str, int]

    def reset(self, image: int) -> None: ...

    def close(self) -> None: ...


class MappedPort:
    """READs and WRITEs as loads and stores, over a ring in pinned host memory that the scheduler has mapped."""

    def __init__(self, cuda: Cuda, library: Library, config: Config, copier: Copier, base: int) -> None:
        self._cuda, self._library, self._copier = cuda, library, copier
        self._header = base + int(config["ring_header_offset"][0])
        sizes = {area: -(-area_bytes(config, area) // 4096) * 4096 for area in RING_AREAS}
        self._pinned = cuda.allocate_pinned(sum(sizes.values()))
        self._mirror = config.copy()  # the library finds the areas by it
        self.offsets: dict[str, int] = {}
        """By the names of the configuration: where the device finds the areas, from the start of its block."""
        self._areas: dict[str, int] = {}
        address = self._pinned
        for area, size in sizes.items():
            name = f"{area}_offset"
            self._areas[area] = address
            self.offsets[name] = (address - base) % (1 << 64)
            self._mirror[name] = (address - address_of(self._mirror)) % (1 << 64)
            address += size
        self._config, self._words = config, np.zeros(SLOT_COUNT, np.uint64)

    def reset(self, image: int) -> None:
        """Control words and descriptors of a created block at an address in host memory."""
        for area in ("status", "descriptors"):
            start = image + int(self._config[f"{area}_offset"][0])
            ctypes.memmove(self._areas[area], start, area_bytes(self._config, area))

    def write(self, write: Write) -> None:
        """Carry out a WRITE; the epoch alone stands in device memory, since the scheduler looks at it often."""
        if write.region is Region.HEADER and write.data is not None:
            self._copier.put(self._header + FRONTEND_EPOCH_OFFSET_BYTES, bytes(write.data).ljust(8, b"\0"))
        else:
            carry_out(self._library, address_of(self._mirror), write)

    def read_status(self) -> U64:
        """A load with acquire order a slot."""
        self._library.read_status(address_of(self._mirror), address_of(self._words))
        return self._words

    def read_tokens(self, offset: NDArray[np.int64], count: NDArray[Any]) -> Tokens:
        """Copies within the host."""
        out, many = np.empty(int(count.sum()), np.uint32), count.astype(np.int64)
        self._library.read_tokens(
            address_of(self._mirror), offset.size, address_of(offset), address_of(many), address_of(out)
        )
        return out

    def set_eos(self, slot: int, eos_at: int) -> None:
        """A store."""
        self._library.set_eos(address_of(self._mirror), slot, min(eos_at, (1 << 32) - 1))

    def close(self) -> None:
        """Give the pinned memory back."""
        self._cuda.free_pinned(self._pinned)
