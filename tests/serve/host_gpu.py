"""A GPU that is memory of the host: what a keeper does with a real one, as far as it can be done without."""

from __future__ import annotations

import ctypes
import threading
import time
from typing import cast

import numpy as np

from blink.hw.cuda.driver import Cuda
from blink.hw.cuda.shared_ring import SharedRing
from blink.hw.native.library import address_of
from blink.hw.native.process import Stop

_PAGE = 4096
CLOCK_AHEAD_NS = 1_000_000_000_000
"""What this GPU's clock shows more than the host's."""


class HostGpu:
    """The calls of Cuda that memory and copies need. Registered memory has another address on the device: none here."""

    def __init__(self) -> None:
        self._held: dict[int, np.ndarray[tuple[int], np.dtype[np.uint8]]] = {}
        self.registered: dict[int, int] = {}

    def as_cuda(self) -> Cuda:
        return cast(Cuda, self)

    def allocate(self, size_bytes: int) -> int:
        memory = np.zeros(size_bytes + _PAGE, np.uint8)
        address = -(-address_of(memory) // _PAGE) * _PAGE
        self._held[address] = memory
        return address

    def free(self, address: int) -> None:
        del self._held[address]

    allocate_pinned, free_pinned = allocate, free

    def register(self, address: int, size_bytes: int) -> int:
        assert address % _PAGE == 0 and size_bytes % _PAGE == 0
        self.registered[address] = size_bytes
        return address

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def stream(self) -> int:
        return 1

    def close_stream(self, stream: int) -> None: ...

    def wait(self, stream: int) -> None: ...

    def synchronize(self) -> None: ...

    def copy_in(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        ctypes.memmove(target, source, size_bytes)

    copy_out = copy_in

    @property
    def held_count(self) -> int:
        return len(self._held)


class HostGpuScheduler:
    """The scheduler compiled for the host, over the "device's" memory; its records are given the device's clock."""

    def __init__(self, ring: SharedRing) -> None:
        self._ring = ring
        self._library, self._base = ring.library, ring.base
        self._thread = threading.Thread(target=self._library.run, args=(self._base, 1, 0), daemon=True)
        plain = ring.drain
        self._ring.drain = lambda: _shifted(plain())  # type: ignore[method-assign]

    def wait_until_up(self) -> None:
        self._thread.start()
        while not self._library.heartbeat_ns(self._base):
            time.sleep(0.001)

    def fault(self) -> str | None:
        return None if self._thread.is_alive() else "it ended"

    def stop(self, how: Stop, limit_s: float = 10.0) -> bool:
        self._library.set_stop(self._base, int(how))
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def kill(self) -> None:
        assert self.stop(Stop.ABORT)

    close = kill

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def record_ns(self, host_ns: int) -> int:
        return host_ns + CLOCK_AHEAD_NS


def _shifted(records: np.ndarray[tuple[int], np.dtype[np.void]]) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    found = records.copy()
    found["t_ns"] += CLOCK_AHEAD_NS
    return found
