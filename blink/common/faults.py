"""Faults: what can go wrong in a run, when, and for how long. A backend carries a plan out; nothing here injects."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from blink.common.layout import CRC_COVERS_BYTES


class FaultKind(Enum):
    """What can be done to a run. The value is what a report calls it."""

    FRONTEND_CRASH = "frontend crash"
    SCHEDULER_CRASH = "scheduler crash"
    STALE_READS = "stale reads"
    REORDERED_READS = "reordered reads"
    SLOW_GRAPHS = "slow graphs"
    STUCK_GRAPH = "stuck graph"
    CANCEL_STORM = "cancel storm"
    BAD_DESCRIPTOR = "bad descriptor"
    TIME_LIMIT = "time limit"

    @property
    def ends_the_ring(self) -> bool:
        """Whether the ring is given up after it: the gpu side must be started anew."""
        return self in (FaultKind.SCHEDULER_CRASH, FaultKind.STUCK_GRAPH)


class Moment(Enum):
    """At which point of its work a frontend dies."""

    ANY = "at that time, whatever it does"
    WRITES = "at its next posting, with WRITEs under way"
    RECOVERY = "at that time, and once more while it recovers"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Times in nanoseconds of the run's clock.

    `duration_ns`: of a frontend crash, until it is started again; of reads and slow graphs, how long that goes on.
    `size`: of a frontend crash, per cent of that time in which WRITEs still land (the old connection is destroyed
    then); of stale and reordered reads, the longest delay of a READ in microseconds; of slow graphs, how many times as
    long they take; of a cancel storm, per cent of the clients that hang up; of a bad descriptor, the bit that flips; of
    a time limit, microseconds that a claimed request may live.
    """

    at_ns: int
    kind: FaultKind
    duration_ns: int = 0
    size: int = 0
    moment: Moment = Moment.ANY

    def text(self) -> str:
        """One line for a reader."""
        at, lasts = f"{self.at_ns / 1e6:9.3f} ms", f"{self.duration_ns / 1e6:.3f} ms"
        what = {
            FaultKind.FRONTEND_CRASH: (
                f"{self.moment.value}; back after {lasts}, its WRITEs land during {self.size} % of that"
            ),
            FaultKind.SCHEDULER_CRASH: "it does not come back",
            FaultKind.STALE_READS: f"for {lasts}, READs are up to {self.size} us old when they complete",
            FaultKind.REORDERED_READS: f"for {lasts}, the first of two READs completes last, up to {self.size} us late",
            FaultKind.SLOW_GRAPHS: f"for {lasts}, graphs take {self.size} times as long",
            FaultKind.STUCK_GRAPH: "the next graph never ends",
            FaultKind.CANCEL_STORM: f"{self.size} % of the clients hang up at once",
            FaultKind.BAD_DESCRIPTOR: f"bit {self.size} of the next descriptor flips on its way",
            FaultKind.TIME_LIMIT: f"for {lasts}, requests are ended {self.size} us after their claim",
        }
        return f"{at}  {self.kind.value:<16} {what[self.kind]}"


FaultPlan = tuple[Fault, ...]
"""In the order of time."""


DESCRIPTOR_BITS = 8 * (CRC_COVERS_BYTES + 4)
"""Of a descriptor, those that its checksum guards, and the checksum's own."""


def with_bit_flipped(data: bytes, bit: int) -> bytes:
    """The bytes with one bit that is another one; bit 0 is the lowest of the first byte."""
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


class FaultCounts:
    """How often each fault, and each thing that it leads to, really happened."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        """Count something by its name."""
        self.counts[name] = self.counts.get(name, 0) + count

    def happened(self, kind: FaultKind) -> None:
        """Count a fault that was carried out."""
        self.add(kind.value)
