"""What surrounds a graph: the scheduler's own time, on the GPU or, for `cpu-resident`, on a host thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from blink.common.units import NS_PER_S
from blink.perf.host.conditions import HostConditions
from blink.perf.host.cores import SLICES
from blink.perf.host.operation import HostOp
from blink.perf.host.turns import Turns
from blink.perf.host_engine import HostEngineProfile

_STEPS_AT_ONCE = 256
_STALLS_MAX = 4  # interruptions of one step that are told apart


class LoopCosts(Protocol):
    """What the scheduler's loop costs, in nanoseconds (blink.perf.gpu.GpuProfile)."""

    @property
    def scan_ns(self) -> int: ...
    @property
    def launch_ns(self) -> int: ...
    @property
    def completion_ns(self) -> int: ...
    @property
    def publish_ns(self) -> int: ...
    @property
    def publish_per_slot_ns(self) -> int: ...
    @property
    def claim_ns(self) -> int: ...
    @property
    def claim_per_slot_ns(self) -> int: ...
    @property
    def pause_ns(self) -> int: ...
    @property
    def relaunch_ns(self) -> int: ...


class StepOverheads(Protocol):
    """Times in ns. A step is named by its number, so that a plan that is made twice comes out the same."""

    @property
    def scan_ns(self) -> int: ...

    @property
    def relaunch_ns(self) -> int: ...

    def claim_ns(self, count: int, *, pausing: bool) -> int:
        """From the decision to claim `count` prompts, and to pause what decodes, until the graph can be launched."""

    def before_ns(self, step: int, rows: int) -> int:
        """From the boundary until the graph runs."""

    def after_ns(self, step: int, rows: int) -> int:
        """From the end of the graph until its tokens are stored: the next boundary."""

    def around(self, step: int, steps: int, rows: int) -> tuple[list[int], list[int]]:
        """`before_ns` and `after_ns` of consecutive steps."""

    @property
    def late_ns(self) -> Callable[[int], int] | None:
        """From a time until the scheduler runs; None if it always does."""


class DeviceOverheads:
    """The scheduler on the GPU: constants, whatever the host does."""

    def __init__(self, profile: LoopCosts) -> None:
        self._profile = profile
        self.scan_ns = profile.scan_ns
        self.late_ns: Callable[[int], int] | None = None

    @property
    def relaunch_ns(self) -> int:
        """The tail launch."""
        return self._profile.relaunch_ns

    def claim_ns(self, count: int, *, pausing: bool) -> int:
        """One pass over the block, and each prompt's own part."""
        profile = self._profile
        return (profile.pause_ns if pausing else 0) + profile.claim_ns + count * profile.claim_per_slot_ns

    def before_ns(self, step: int, rows: int) -> int:
        """The launch."""
        return self._profile.launch_ns

    def after_ns(self, step: int, rows: int) -> int:
        """Seen and published."""
        profile = self._profile
        return profile.completion_ns + profile.publish_ns + rows * profile.publish_per_slot_ns

    def around(self, step: int, steps: int, rows: int) -> tuple[list[int], list[int]]:
        """The same for every step."""
        return [self._profile.launch_ns] * steps, [self.after_ns(step, rows)] * steps


class HostOverheads:
    """The same scheduler in a host thread that launches, waits and copies; it spins, and is interrupted.

    Since it never sleeps, it takes turns with others on its core that do not either, whatever it does: what happens in
    their turns it sees in its own.
    """

    def __init__(self, profile: HostEngineProfile, host: HostConditions, rng: np.random.Generator) -> None:
        pace = host.inflation
        self._schedule = pace[HostOp.SCHEDULE] * profile.schedule_ns
        build, per_row = pace[HostOp.BUILD_INPUTS] * profile.prepare_ns, pace[HostOp.BUILD_INPUTS]
        self._before = self._schedule + build + pace[HostOp.LAUNCH] * profile.launch_ns
        self._before_row = (
            pace[HostOp.SCHEDULE] * profile.schedule_ns_per_sequence + per_row * profile.prepare_ns_per_sequence
        )
        self._after = pace[HostOp.SYNC_COPY] * profile.sync_ns + pace[HostOp.SCHEDULE] * profile.update_ns
        self._after_row = pace[HostOp.SCHEDULE] * profile.update_ns_per_sequence
        self._claim = pace[HostOp.SCHEDULE] * profile.admit_ns
        self._stall, self._rng = host.stall.without(SLICES), rng
        self._rate = self._stall.rate_per_s / NS_PER_S
        self._chances: list[float] = []  # by step
        self._lengths: list[list[float]] = []
        self._late: list[float] = []
        self.scan_ns = max(1, round(self._schedule))
        self.relaunch_ns = 0
        cores = host.cores
        self.late_ns = Turns.of(cores, rng.spawn(1)[0]).late_ns if cores.competitors > 0 else None

    def claim_ns(self, count: int, *, pausing: bool) -> int:
        """The thread takes each prompt in."""
        return round(count * self._claim)

    def before_ns(self, step: int, rows: int) -> int:
        """Scan, policy, inputs, launch."""
        return round(self._before + rows * self._before_row)

    def after_ns(self, step: int, rows: int) -> int:
        """Copy back and update the ring, with what interrupts the thread and hides the graph's end from it."""
        work = self._before + self._after + rows * (self._before_row + self._after_row)
        return round(self._after + rows * self._after_row + self._stalled(step, work))

    def around(self, step: int, steps: int, rows: int) -> tuple[list[int], list[int]]:
        """Step by step."""
        numbers = range(step, step + steps)
        return [self.before_ns(step, rows)] * steps, [self.after_ns(number, rows) for number in numbers]

    def _stalled(self, step: int, work_ns: float) -> float:
        """Interruptions of a step's work, by numbers that were drawn for this step whatever its work."""
        while step >= len(self._chances):
            self._draw()
        late, chance = self._late[step], self._chances[step]
        expected = self._rate * work_ns
        part = below = math.exp(-expected)
        count = 0
        while below < chance and count < _STALLS_MAX:
            late += self._lengths[step][count]
            count += 1
            part *= expected / count
            below += part
        return late

    def _draw(self) -> None:
        rng, stall = self._rng, self._stall
        self._chances += rng.random(_STEPS_AT_ONCE).tolist()
        self._late += [float(round(stall.overlap_ns(rng))) for _ in range(_STEPS_AT_ONCE)]
        rates = np.cumsum([source.rate_per_s for source in stall.sources])
        for _ in range(_STEPS_AT_ONCE):
            if not len(rates):
                self._lengths.append([])
                continue
            which = np.searchsorted(rates, rng.random(_STALLS_MAX) * rates[-1], side="right")
            self._lengths.append([stall.sources[index].length_ns(rng) for index in which.tolist()])
