"""A scheduler's block in device memory, seen from the host."""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common.layout import U64
from blink.frontend.operations import Write
from blink.hw.cuda.copier import Copier
from blink.hw.cuda.driver import Cuda
from blink.hw.cuda.ports import CopyPort, HostAreas, Ingress, MappedPort, Port
from blink.hw.native.instance import create, planned
from blink.hw.native.library import Library, address_of
from blink.hw.native.room import planned_within
from blink.hw.native.settings import NativeSettings
from blink.hw.ring import Records, Tokens

DRAIN_GAP_NS = 1_000_000
"""Between two looks for trace records while a scheduler runs: each is a copy, and the ring holds far more."""
_RECORDS_A_DRAIN = 1 << 16


class CudaRing:
    """The block of kernels/include/blink/block.h with a fresh ring and a fresh scheduler. `close` it.

    The layout and the first contents are the native library's, made in host memory and copied. With `Ingress.MAPPED`
    the areas of the frontend stand in mapped pinned memory; everything else is in device memory in any case.
    """

    backend = "cuda"

    def __init__(self, cuda: Cuda, library: Library, settings: NativeSettings, ingress: Ingress) -> None:
        self.cuda, self.library, self.settings, self.ingress = cuda, library, settings, ingress
        self.room = settings
        self.config = planned(library, settings)
        self.base = cuda.allocate(int(self.config["total_bytes"][0]))
        self.copier = Copier(cuda)
        self.drain_gap_ns = 0
        self._drained_ns = 0
        self._tail = 0
        self._image = np.zeros(int(self.config["total_bytes"][0]), np.uint8)
        create(library, settings, self.config, address_of(self._image))
        self._port, self._mapped = self._open_port(self._image)
        self.reset()

    def reset(self) -> None:
        """A fresh ring and a fresh scheduler in the same memory. No scheduler may run."""
        self._tail = 0
        for piece in self._fresh():
            self.copier.put(self.base + piece.start, self._image[piece].tobytes())
        if self._mapped:
            self._mapped.reset(address_of(self._image))
        self.cuda.synchronize()

    def _fresh(self) -> Iterator[slice]:
        """The pieces of the block that must be fresh: nobody reads the rest before it is written."""
        for first, end in (("", "prompts"), ("state", "trace")):
            yield slice(int(self.config[f"{first}_offset"][0]) if first else 0, int(self.config[f"{end}_offset"][0]))

    def renew(self, settings: NativeSettings) -> None:
        """`reset` with other settings, whose areas are no larger than those of `room`. The graphs stay as they are.

        Only over `Ingress.COPY`. Raises ValueError if there is no room.
        """
        assert self._mapped is None, "a mapped ring keeps its areas elsewhere"
        self.config, self.settings = planned_within(self.library, self.room, settings), settings
        for piece in self._fresh():
            self._image[piece] = 0
        create(self.library, settings, self.config, address_of(self._image))
        self.reset()

    def _open_port(self, image: NDArray[np.uint8]) -> tuple[Port, HostAreas | None]:
        if self.ingress is Ingress.COPY:
            return CopyPort(self.copier, self.config, self.base), None
        port = self._host_areas()
        config = self.config.copy()
        for name, offset in port.offsets.items():
            config[name] = offset
        image[: config.nbytes] = np.frombuffer(config.tobytes(), np.uint8)
        return port, port

    def _host_areas(self) -> HostAreas:
        return MappedPort(self.cuda, self.library, self.config, self.copier, self.base)

    def close(self) -> None:
        """Give the memory back. No scheduler may run."""
        self.copier.close()
        if self._mapped:
            self._mapped.close()
        self.cuda.free(self.base)

    # --- the frontend's operations ---

    def write(self, write: Write) -> None:
        """Carry out a WRITE."""
        self._port.write(write)

    def read_status(self) -> U64:
        """A READ of the status array."""
        return self._port.read_status()

    def read_tokens(self, offset: NDArray[np.int64], count: NDArray[Any]) -> Tokens:
        """READs of ranges of the output area, in tokens."""
        return self._port.read_tokens(offset, count)

    def set_eos(self, slot: int, eos_at: int) -> None:
        """See Ring."""
        self._port.set_eos(slot, eos_at)

    # --- structures ---

    def read(self, name: str, structure: str, count: int = 1) -> Records:
        """A copy of `count` structures that stand at an offset of the configuration."""
        dtype = self.library.dtypes[structure]
        return np.frombuffer(self._bytes(name, 0, count * dtype.itemsize), dtype)

    def words(self, name: str, offset_bytes: int, count: int) -> Tokens:
        """A copy of `count` u32 words, so far behind an offset of the configuration."""
        return np.frombuffer(self._bytes(name, offset_bytes, 4 * count), np.uint32)

    def _bytes(self, name: str, offset_bytes: int, size_bytes: int) -> bytes:
        return self.copier.get(self._at(name) + offset_bytes, size_bytes)

    def _at(self, name: str) -> int:
        return self.base + int(self.config[name][0])

    def _field_offset(self, field: str) -> int:
        """Of a field of the state, in bytes."""
        fields = self.library.dtypes["state"].fields
        assert fields is not None
        return int(fields[field][1])

    @property
    def device_config(self) -> bytes:
        """The configuration as it stands on the device."""
        return self._image[: self.config.nbytes].tobytes()

    @property
    def report_bytes(self) -> int:
        """Size of the report in front of its lists."""
        return self.library.dtypes["report"].itemsize

    def state(self) -> dict[str, int]:
        """The scheduler's state by field, as it is now."""
        found = self.read("state_offset", "state")[0]
        return {name: int(found[name]) for name in found.dtype.names or ()}

    def put_state(self, field: str, value: int) -> None:
        """Change an 8-byte field of the state; in order with the other operations."""
        self.copier.put(self._at("state_offset") + self._field_offset(field), value.to_bytes(8, "little"))

    def drain(self) -> Records:
        """Trace records that are complete and were not drained before; none within `drain_gap_ns` of the last look."""
        now = monotonic_ns()
        dtype = self.library.dtypes["record"]
        if now - self._drained_ns < self.drain_gap_ns:
            return np.zeros(0, dtype)
        self._drained_ns = now
        head = int.from_bytes(self._bytes("state_offset", self._field_offset("trace_head"), 8), "little")  # A4, R4
        count = min(head - self._tail, _RECORDS_A_DRAIN)
        if not count:
            return np.zeros(0, dtype)
        capacity, start = self.settings.trace_capacity, self._at("trace_offset")
        first = self._tail % capacity
        whole = min(count, capacity - first)
        pieces = [(start + first * dtype.itemsize, whole * dtype.itemsize), (start, (count - whole) * dtype.itemsize)]
        records = np.frombuffer(self.copier.gather(pieces), dtype)
        self._tail += count
        self.put_state("trace_tail", self._tail)  # R5 pairs with A5
        return records
