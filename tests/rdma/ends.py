"""Two ends of a connection on one device, for tests of the verbs themselves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from blink.hw.native.memory import SharedBlock
from blink.hw.verbs.channel import Channel
from blink.hw.verbs.device import Device, DeviceChoice
from blink.hw.verbs.memory import Registration, RemoteRegion, register


def choice() -> DeviceChoice:
    """The device that the environment names, else the first."""
    index = os.environ.get("RDMA_GID_INDEX")
    return DeviceChoice(os.environ.get("RDMA_DEVICE"), int(index) if index else None)


class Ends:
    """A channel, and at its other end memory that it reaches."""

    def __init__(self, device: Device, size_bytes: int, *, writable: bool = True, **options: object) -> None:
        self.block = SharedBlock(size_bytes)
        self._registration: Registration = register(device, self.block.address, size_bytes, writable=writable)
        self.channel, self.other = Channel(device, **options), Channel(device)  # type: ignore[arg-type]
        self.channel.connect(self.other.address)
        self.other.connect(self.channel.address)

    @property
    def region(self) -> RemoteRegion:
        """The memory, as the channel addresses it."""
        return self._registration.region

    def close(self) -> None:
        """Give everything back."""
        self.channel.close()
        self.other.close()
        self._registration.close()
        self.block.close()


@contextmanager
def connected(size_bytes: int = 1 << 20, **options: object) -> Iterator[Ends]:
    """Both ends, for a while."""
    device = Device(choice())
    ends = Ends(device, size_bytes, **options)  # type: ignore[arg-type]
    try:
        yield ends
    finally:
        ends.close()
        device.close()
