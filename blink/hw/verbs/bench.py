"""What verbs cost on a device: latency by size, message rate, the READ of all control words, the gain of a burst."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from blink.common.layout import DESCRIPTOR_STRIDE_BYTES, HEADER_BYTES, STATUS_ARRAY_BYTES
from blink.common.results import I64
from blink.hw.cuda.bench.samples import Row
from blink.hw.native.memory import SharedBlock
from blink.hw.verbs.areas import Area
from blink.hw.verbs.attach import Door
from blink.hw.verbs.channel import SIGNAL_EVERY, Channel
from blink.hw.verbs.device import Device
from blink.hw.verbs.hello import Identity
from blink.hw.verbs.host import RingHost
from blink.hw.verbs.memory import Registration, RemoteRegion, register

SIZES = (8, 64, 512, 4096, 16_384, STATUS_ARRAY_BYTES)
BURST = 64
"""Requests of one posting: the most that a frontend submits at once by default."""
_MEMORY_BYTES = 1 << 20
_BOOT, _SETTINGS = "bench", "blink bench rdma"
_WARM = 8
Say = Callable[[str], None]


class BenchBlock:
    """Memory for nothing but measuring."""

    backend = "bench"
    trace_capacity = 0
    record_offset_ns = 0

    def __init__(self) -> None:
        self._block = SharedBlock(HEADER_BYTES + _MEMORY_BYTES)
        self.areas = {
            "header": Area(0, HEADER_BYTES, True),
            "memory": Area(HEADER_BYTES, _MEMORY_BYTES, True),
        }
        self.structures: dict[str, np.dtype[np.void]] = {}

    def register(self, device: Device, area: Area) -> Registration:
        """See Exported."""
        return register(device, self._block.address + area.offset_bytes, area.size_bytes, writable=area.writable)

    def close(self) -> None:
        """Give the memory back."""
        self._block.close()


@contextmanager
def target(device: Device, address: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """The other side: memory to measure with, at an address, for a while."""
    block = BenchBlock()
    host = RingHost(device, block, Identity(_BOOT, _SETTINGS), address, lambda frame: {})
    try:
        yield host.address
    finally:
        host.close()
        block.close()


@dataclass(frozen=True, slots=True)
class Costs:
    """What the twin takes from it, in nanoseconds and bytes/s. `rows` are the table.

    `latency_ns` is one way for a message of no size, `post_ns` the processor's time for a work request, `completion_ns`
    that of taking one completion. `burst_gain`: how much sooner BURST descriptors are there as one WRITE than as many.
    """

    device: str
    rounds: int
    latency_ns: int
    bandwidth_bytes_per_s: int
    post_ns: int
    completion_ns: int
    write_rate_per_s: float
    read_rate_per_s: float
    burst_gain: float
    rows: list[Row]


def measure(device: Device, address: tuple[str, int], rounds: int, say: Say) -> Costs:
    """Everything, against a target at an address. Raises ConnectionFailedError, or InputError if it is no target."""
    attachment = Door(*address, Identity("", _SETTINGS)).open_patiently(device)
    try:
        return _Bench(device, attachment.channel, attachment.region("memory"), rounds, say).go()
    finally:
        attachment.close()


class _Bench:
    def __init__(self, device: Device, channel: Channel, region: RemoteRegion, rounds: int, say: Say) -> None:
        self._name, self._channel, self._region, self._rounds, self._say = device.name, channel, region, rounds, say
        self._rows: list[Row] = []

    def go(self) -> Costs:
        """In order."""
        reads = {size: self._timed(f"READ of {size} bytes", partial(self._read, size)) for size in SIZES}
        for size in SIZES:
            self._timed(f"WRITE of {size} bytes", partial(self._write, size))
        post_ns, completion_ns = self._processor_time()
        apart = self._timed(f"{BURST} descriptors, a WRITE each", lambda: self._burst(BURST, 1))
        together = self._timed(f"{BURST} descriptors in one WRITE", lambda: self._burst(1, BURST))
        latency_ns, bandwidth = line(reads, post_ns + completion_ns)
        return Costs(
            device=self._name,
            rounds=self._rounds,
            latency_ns=latency_ns,
            bandwidth_bytes_per_s=bandwidth,
            post_ns=post_ns,
            completion_ns=completion_ns,
            write_rate_per_s=self._rate("WRITEs", lambda at: self._channel.write(self._region, 8 * at, bytes(8))),
            read_rate_per_s=self._rate("READs", lambda at: self._channel.read(self._region, 8 * at, 8, 8 * at)),
            burst_gain=apart / together,
            rows=self._rows,
        )

    def _timed(self, what: str, action: Callable[[], object]) -> int:
        """The median time of an action that waits for its end."""
        self._say(what)
        for _ in range(_WARM):
            action()
        times = np.zeros(self._rounds, np.int64)
        for index in range(self._rounds):
            begun_ns = time.perf_counter_ns()
            action()
            times[index] = time.perf_counter_ns() - begun_ns
        return self._keep(what, times)

    def _keep(self, what: str, times: I64, **more: object) -> int:
        row = Row.of(what, self._name, 0, times, **more)
        self._rows.append(row)
        return row.p50_ns

    def _read(self, size: int) -> None:
        self._channel.wait(self._channel.read(self._region, 0, size, 0))

    def _write(self, size: int) -> None:
        self._channel.write(self._region, 0, bytes(size))
        self._channel.flush()

    def _burst(self, count: int, descriptors: int) -> None:
        data = bytes(DESCRIPTOR_STRIDE_BYTES * descriptors)
        for index in range(count):
            self._channel.write(self._region, index * len(data), data)
        self._channel.flush()

    def _processor_time(self) -> tuple[int, int]:
        """Of a posted WRITE, and of an empty look for completions: what this process spends, not the adapter."""
        self._say("processor time of a work request and of a completion")
        posts, looks = np.zeros(self._rounds, np.int64), np.zeros(self._rounds, np.int64)
        for index in range(self._rounds):
            begun_ns = time.perf_counter_ns()
            self._channel.write(self._region, 0, bytes(8))
            self._channel.post()
            posted_ns = time.perf_counter_ns()
            self._channel.flush()
            flushed_ns = time.perf_counter_ns()
            self._channel.reap()
            posts[index], looks[index] = posted_ns - begun_ns, time.perf_counter_ns() - flushed_ns
        return self._keep("to post a WRITE of 8 bytes", posts), self._keep("to look for completions", looks)

    def _rate(self, what: str, post: Callable[[int], object]) -> float:
        """Of 8 bytes each, in batches, as many under way as the queue holds."""
        self._say(f"rate of {what}")
        count = SIGNAL_EVERY * max(8, self._rounds // 4)
        begun_ns = time.perf_counter_ns()
        for index in range(count):
            post(index % 1024)
        self._channel.flush()
        took_ns = time.perf_counter_ns() - begun_ns
        self._keep(f"{what} of 8 bytes in batches, each", np.array([took_ns // count]), count_posted=count)
        return count * 1e9 / took_ns


def line(reads: dict[int, int], processor_ns: int) -> tuple[int, int]:
    """One-way latency in ns and bandwidth in bytes/s of the straight line through READ times by size.

    time(size) = processor + 2 * latency + size / bandwidth, by least squares over relative errors, so that small READs
    count as much as large ones.
    """
    sizes, times = np.array(list(reads), float), np.array(list(reads.values()), float)
    columns = np.stack((np.ones_like(sizes), sizes), axis=1) / times[:, None]
    (start, slope), *_ = np.linalg.lstsq(columns, np.ones_like(times), rcond=None)
    latency_ns = max(0, round((start - processor_ns) / 2))
    return latency_ns, max(1, round(1e9 / slope)) if slope > 0 else 1 << 50
