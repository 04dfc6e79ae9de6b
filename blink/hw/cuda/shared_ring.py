"""A ring for a frontend in another process: its areas stand in shared memory that the GPU has mapped.

The shared block is laid out as the native backend's, so the classes that reach a native scheduler's ring from another
process reach this one unchanged. The scheduler's own memory is the device's: what the other process wants to know of it
is copied into the same places of the shared block (`mirror`, `append`).
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common.layout import U64
from blink.frontend.operations import Write
from blink.hw.cuda.driver import Cuda
from blink.hw.cuda.ports import HostAreas, Ingress
from blink.hw.cuda.ring import CudaRing
from blink.hw.native.instance import Instance
from blink.hw.native.library import Library, address_of
from blink.hw.native.settings import NativeSettings
from blink.hw.ring import Records, Tokens

_STRETCHES = (("ring_header", ("ring_header", "status", "descriptors", "prompts", "outputs"), "state"),
              ("eos", ("eos",), "local"))  # fmt: skip
"""First area, all areas, and what follows them: whole pages that are registered together."""
_FRESH = ("ring_header", "status", "descriptors")
_PAGE = 4096


class SharedPort:
    """READs and WRITEs of this process over the shared block; `offsets` as MappedPort's. The header is mapped, too."""

    def __init__(self, cuda: Cuda, instance: Instance, base: int) -> None:
        self._cuda, self._instance = cuda, instance
        self._registered: list[int] = []
        self.offsets: dict[str, int] = {}
        for first, areas, end in _STRETCHES:
            start = self._offset(first)
            address = instance.base + start
            size_bytes = -(-(self._offset(end) - start) // _PAGE) * _PAGE
            on_device = cuda.register(address, size_bytes)
            self._registered.append(address)
            for area in areas:
                self.offsets[f"{area}_offset"] = (on_device + self._offset(area) - start - base) % (1 << 64)

    def _offset(self, area: str) -> int:
        return int(self._instance.config[f"{area}_offset"][0])

    def reset(self, image: int) -> None:
        """Header, control words and descriptors of a created block at an address in host memory."""
        for area, end in zip(_FRESH, (*_FRESH[1:], "prompts"), strict=True):
            offset = self._offset(area)
            ctypes.memmove(self._instance.base + offset, image + offset, self._offset(end) - offset)

    def write(self, write: Write) -> None:
        """Carry out a WRITE."""
        self._instance.write(write)

    def read_status(self) -> U64:
        """A load with acquire order a slot."""
        return self._instance.read_status()

    def read_tokens(self, offset: NDArray[np.int64], count: NDArray[Any]) -> Tokens:
        """Copies within the host."""
        return self._instance.read_tokens(offset, count.astype(np.int64))

    def set_eos(self, slot: int, eos_at: int) -> None:
        """A store."""
        self._instance.set_eos(slot, eos_at)

    def close(self) -> None:
        """Unpin and unmap. No scheduler may run."""
        for address in self._registered:
            self._cuda.unregister(address)
        self._instance.close()


class SharedRing(CudaRing):
    """A CudaRing over an instance's shared block (`instance.shared`), for as long as it is not closed."""

    def __init__(self, cuda: Cuda, library: Library, settings: NativeSettings) -> None:
        self.instance = Instance(library, settings)
        super().__init__(cuda, library, settings, Ingress.MAPPED)

    def _host_areas(self) -> HostAreas:
        return SharedPort(self.cuda, self.instance, self.base)

    def mirror(self) -> None:
        """Copy the scheduler's state into the shared block, but for the head and the tail of its trace."""
        fields = self.library.dtypes["state"].fields
        assert fields is not None
        offset, size_bytes = int(self.config["state_offset"][0]), int(fields["trace_head"][1])
        ctypes.memmove(self.instance.base + offset, self.copier.get(self.base + offset, size_bytes), size_bytes)

    def append(self, records: Records) -> None:
        """Put records into the shared block's trace, whose reader drains it as the native one."""
        self.library.append(self.instance.base, address_of(records), records.size)
