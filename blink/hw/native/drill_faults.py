"""The faults of a native drill: carried out on a ring when the plan says so, and taken back when they are over."""

from __future__ import annotations

import os
import signal
from typing import Protocol

import numpy as np

from blink.common.faults import Fault, FaultCounts, FaultKind, FaultPlan, Moment
from blink.common.request import Request
from blink.hw.native.drill_ring import DrillRing

_GRAPHS_AHEAD = 2
"""From the moment of the fault to the graph that hangs: a few, so that it cannot slip through meanwhile."""


class Host(Protocol):
    """What faults do to a drill beside its ring."""

    begun_ns: int  # 0 of the plan, on the clock of the traces

    def open_requests(self) -> list[Request]:
        """Those that were sent and have no answer."""

    def hang_up(self, request: Request) -> None:
        """Its client gives up."""

    def kill_scheduler(self, ring: DrillRing) -> None:
        """And keep what it had written."""


class DrillFaults:
    """What of the plan is still to come, and what is in force. Times are those of the plan."""

    def __init__(self, plan: FaultPlan, host: Host, counts: FaultCounts, rng: np.random.Generator) -> None:
        self._plan, self._host, self._counts, self._rng = list(plan), host, counts, rng
        self.crash: Fault | None = None  # of the frontend, on its way
        self.healed = False
        self._slow_until_ns = self._limited_until_ns = 0

    @property
    def crash_to_come(self) -> bool:
        """Whether a frontend will die."""
        return any(fault.kind is FaultKind.FRONTEND_CRASH for fault in self._plan)

    @property
    def crash_is_sure(self) -> bool:
        """Whether a frontend is to die over a WRITE and will WRITE, as requests are open: later, on a slow machine."""
        crash = self.crash
        return crash is not None and crash.moment is Moment.WRITES and bool(self._host.open_requests())

    def act(self, ring: DrillRing, now_ns: int) -> None:
        """What is due now begins, what is over ends."""
        while self._plan and self._plan[0].at_ns <= now_ns:
            self._inject(ring, self._plan.pop(0))
        if self._slow_until_ns and now_ns >= self._slow_until_ns:
            self._slow_until_ns = 0
            ring.slow_down(1)
        if self._limited_until_ns and now_ns >= self._limited_until_ns:
            self._limited_until_ns = 0
            ring.set_config("time_limit_ns", 0)

    def _inject(self, ring: DrillRing, fault: Fault) -> None:
        kind, frontend = fault.kind, ring.frontend
        if kind is FaultKind.FRONTEND_CRASH:
            self._crash_frontend(ring, fault)
        elif kind is FaultKind.SCHEDULER_CRASH and not ring.scheduler_dead:
            self._host.kill_scheduler(ring)
        elif kind is FaultKind.STUCK_GRAPH:
            ring.set_config("hang_at", ring.instance.state()["graph_sequence"] + _GRAPHS_AHEAD)
        elif kind is FaultKind.SLOW_GRAPHS:
            self._counts.happened(kind)
            self._slow_until_ns = fault.at_ns + fault.duration_ns
            ring.slow_down(fault.size)
        elif kind is FaultKind.CANCEL_STORM:
            self._counts.happened(kind)
            waiting = self._host.open_requests()
            for request in waiting[: -(-len(waiting) * fault.size // 100)]:
                self._counts.add("requests cancelled by a storm")
                self._host.hang_up(request)
        elif kind in (FaultKind.STALE_READS, FaultKind.REORDERED_READS) and frontend is not None:
            self._counts.happened(kind)
            name = "reordered" if kind is FaultKind.REORDERED_READS else "stale"
            frontend.send("trouble", name, self._host.begun_ns + fault.at_ns + fault.duration_ns, fault.size)
        elif kind is FaultKind.BAD_DESCRIPTOR and frontend is not None:
            frontend.send("damage", fault.size)  # it counts once a descriptor is damaged
        elif kind is FaultKind.TIME_LIMIT:
            self._counts.happened(kind)
            self._limited_until_ns = fault.at_ns + fault.duration_ns
            ring.set_config("time_limit_ns", 1_000 * fault.size)

    def _crash_frontend(self, ring: DrillRing, fault: Fault) -> None:
        if ring.frontend is None:
            self._counts.add("frontend crashes while it was down")
            return
        if self.crash is not None:
            return  # one that waits for its moment is on its way
        self.crash = fault
        if fault.moment is Moment.WRITES:
            ring.frontend.send("die", int(self._rng.integers(0, 12)))
        else:
            os.kill(ring.frontend.pid, signal.SIGKILL)

    def heal(self, ring: DrillRing | None) -> None:
        """The faults are over. What nobody has noticed, because nobody waited, is put right by whoever operates it."""
        self.healed = True
        self._plan.clear()
        self._slow_until_ns = self._limited_until_ns = 0
        if ring is None:
            return
        ring.set_config("hang_at", 0)
        ring.set_config("time_limit_ns", 0)
        ring.slow_down(1)
        if ring.frontend is None:
            return
        ring.frontend.send("damage", None)
        if self.crash is not None and self.crash.moment is Moment.WRITES:
            ring.frontend.send("die", None)
