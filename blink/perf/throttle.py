"""Throttle: a GPU that computes much lowers its clock to stay within its power, and takes a while to raise it again.

The state is an exponential mean, over `throttle_time_ns`, of the share of its peak rate at which the GPU multiplied.
A step that is bound by computing is longer by `throttle_compute` times that mean to the power of
`throttle_exponent`, one that is bound by memory by `throttle_memory` times it: bandwidth depends on the clock, too, but
less. Above 1 the exponent says that a GPU has power to spare before its clock falls. Decode steps add nothing to the
mean.

Rows of padding are alike and have no attention, so a prefill with them takes less power and time: shorter by
`padding_saving` times the share of its rows that are padding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_ROUNDS = 4  # a step's own length decides how far the clock falls in it; each round brings the error down tenfold


class ThrottleConstants(Protocol):
    """What a GPU's profile says (blink.perf.gpu.GpuProfile)."""

    @property
    def throttle_time_ns(self) -> int: ...
    @property
    def throttle_compute(self) -> float: ...
    @property
    def throttle_memory(self) -> float: ...
    @property
    def throttle_exponent(self) -> float: ...
    @property
    def padding_saving(self) -> float: ...


@dataclass(slots=True)
class Throttle:
    """The state of one GPU. Ask for steps in their order; `decode_ns` changes nothing and may be asked again.

    `busy(batch, sequence)`: the share of its peak rate at which the GPU multiplies in a prefill.
    """

    time_ns: float
    compute: float
    memory: float
    busy: Callable[[int, int], float]
    exponent: float = 1.0
    padding_saving: float = 0.0
    level: float = 0.0  # the mean, as it was at `at_ns`
    at_ns: int = 0

    @classmethod
    def of(cls, gpu: ThrottleConstants, busy: Callable[[int, int], float]) -> Throttle | None:
        """A GPU that has idled; None for one whose profile says that its clock does not fall."""
        if not gpu.throttle_time_ns or not (gpu.throttle_compute or gpu.throttle_memory):
            return None
        return cls(
            float(gpu.throttle_time_ns), gpu.throttle_compute, gpu.throttle_memory, busy, gpu.throttle_exponent,
            gpu.padding_saving,
        )  # fmt: skip

    def level_at(self, now_ns: int) -> float:
        """The mean at a time at or after the last prefill."""
        return self.level * math.exp((self.at_ns - now_ns) / self.time_ns)

    def decode_ns(self, now_ns: int, duration_ns: int) -> int:
        """How long a decode step takes that starts now and takes `duration_ns` on a GPU that has idled."""
        mean = self.level_at(now_ns) * self._kept(duration_ns)
        return round(duration_ns * (1.0 + self.memory * math.pow(mean, self.exponent)))

    def prefill_ns(self, now_ns: int, duration_ns: int, batch: int, sequence: int, tokens: int) -> int:
        """The same for a prefill of that shape with `tokens` of prompts, which leaves the GPU throttled."""
        cold = duration_ns * (1.0 - self.padding_saving * (1.0 - tokens / (batch * sequence)))
        begun, longer, busy = self.level_at(now_ns), cold, self.busy(batch, sequence)
        for _ in range(_ROUNDS):
            mean = busy + (begun - busy) * self._kept(longer)
            longer = cold * (1.0 + self.compute * math.pow(mean, self.exponent))
        self.level = busy + (begun - busy) * math.exp(-longer / self.time_ns)
        self.at_ns = now_ns + round(longer)
        return round(longer)

    def _kept(self, duration_ns: float) -> float:
        """The mean over a stretch of something that fades from 1 with `time_ns`."""
        return (1.0 - math.exp(-duration_ns / self.time_ns)) * self.time_ns / duration_ns if duration_ns else 1.0
