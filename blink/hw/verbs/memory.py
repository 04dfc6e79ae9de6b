"""Registered memory: what the adapter may read and write, and the keys to it."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from blink.common.errors import InputError
from blink.hw.verbs.device import Device
from blink.hw.verbs.queue_pair import remote_access


@dataclass(frozen=True, slots=True)
class RemoteRegion:
    """Memory of the other side: its address as the verbs take it (an offset, for a dma-buf), size and key."""

    address: int
    size_bytes: int
    key: int


class Registration:
    """Some memory that a peer may reach; `close` takes that back."""

    def __init__(self, raw: Any, address: int, size_bytes: int) -> None:
        self._raw = raw
        self.region = RemoteRegion(address, size_bytes, int(raw.rkey))

    def close(self) -> None:
        """From here on the key is wrong."""
        self._raw.close()


def register(device: Device, address: int, size_bytes: int, *, writable: bool) -> Registration:
    """Memory at an address of this process; with nvidia-peermem also an address of a GPU. Peers may only read it unless
    `writable`."""
    access = remote_access(device.enums, write=writable)
    raw = _registered(device, device.binding.MR, size_bytes, access, address=address)
    return Registration(raw, address, size_bytes)


def register_dma_buf(device: Device, fd: int, offset_bytes: int, size_bytes: int, *, writable: bool) -> Registration:
    """A part of a dma-buf. Its remote address is its offset in the buffer."""
    access = remote_access(device.enums, write=writable)
    raw = _registered(device, device.binding.DmaBufMR, size_bytes, access, dmabuf=fd, offset=offset_bytes)
    return Registration(raw, offset_bytes, size_bytes)


def _registered(device: Device, kind: Callable[..., Any], size_bytes: int, access: int, **where: int) -> Any:
    try:
        return kind(device.domain, size_bytes, access, **where)
    except Exception as error:
        raise InputError(
            f"--device {device.name}: it registers no {size_bytes} bytes of memory ({error}); a process must be "
            "allowed to lock so much (ulimit -l)"
        ) from None


class LocalMemory:
    """`size_bytes` of this process's memory that its own work requests carry from or to. `close` it."""

    def __init__(self, device: Device, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._map = mmap.mmap(-1, size_bytes)
        self._first = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._first)
        access = device.enums.IBV_ACCESS_LOCAL_WRITE
        self._raw = _registered(device, device.binding.MR, size_bytes, access, address=self.address)
        self.key = int(self._raw.lkey)

    @property
    def view(self) -> memoryview:
        """The bytes; writes go through. Release it before `close`."""
        return memoryview(self._map)

    def put(self, offset_bytes: int, data: bytes) -> None:
        """Store some bytes."""
        self._map[offset_bytes : offset_bytes + len(data)] = data

    def get(self, offset_bytes: int, size_bytes: int) -> bytes:
        """A copy of some bytes."""
        return self._map[offset_bytes : offset_bytes + size_bytes]

    def close(self) -> None:
        """Give it back; the memory itself goes with the last array that looks at it."""
        self._raw.close()
        del self._first
        try:
            self._map.close()
        except BufferError:
            return
