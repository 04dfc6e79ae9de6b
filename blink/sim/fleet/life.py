"""How replicas come and go: warm-up, failures and their repair, autoscaling with lag."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from blink.common.config.fleet import Autoscale, Failures, Fleet
from blink.common.request import Request
from blink.common.units import NS_PER_S, ns_from_s
from blink.sim.clock import Clock, at
from blink.sim.fleet.replica import Replica, State


class Life:
    """The replicas of a fleet, past and present. `make` makes one; `lost` and `ready` are told what concerns requests.

    `open_count` says how many requests are still to be served: when there are none, nothing more happens.
    """

    def __init__(
        self,
        env: Clock,
        fleet: Fleet,
        warm_up_ns: int,
        rng: np.random.Generator,
        make: Callable[[int], Replica],
        lost: Callable[[list[Request]], None],
        ready: Callable[[], None],
        open_count: Callable[[], int],
    ) -> None:
        self._env, self._fleet, self._warm_up_ns, self._rng = env, fleet, warm_up_ns, rng
        self._make, self._lost, self._ready, self._open = make, lost, ready, open_count
        self.replicas: list[Replica] = []
        self.failures = self.started = self.drained = 0
        self._ordered = 0  # replicas that were decided on and are not paid for yet
        self._fewer_since_ns: int | None = None

    def begin(self) -> None:
        """The replicas of the beginning, and everything that is known ahead."""
        for index in range(self._fleet.replicas):
            self._begin(index, 0 if not self._fleet.cold_start else self._warm_up_ns)
        failures, scale = self._fleet.failures, self._fleet.autoscale
        for outage in failures.outages if failures else ():
            at(self._env, ns_from_s(outage.at_s), lambda index=outage.replica: self._fail_index(index))  # type: ignore[misc]
        if scale is not None:
            at(self._env, ns_from_s(scale.interval_s), lambda: self._look(scale))

    def ready(self) -> list[Replica]:
        """Those that the router sends requests to, by their numbers."""
        return sorted((replica for replica in self.replicas if replica.takes), key=lambda replica: replica.index)

    def _begin(self, index: int, warm_up_ns: int) -> None:
        replica = self._make(index)
        self.replicas.append(replica)
        if warm_up_ns:
            at(self._env, self._env.now + warm_up_ns, lambda: self._warm(replica))
        else:
            self._warm(replica)

    def _warm(self, replica: Replica) -> None:
        if replica.state is not State.WARMING:
            return
        failures = self._fleet.failures
        if failures and failures.mtbf_s is not None:
            after_ns = round(self._rng.exponential(failures.mtbf_s) * NS_PER_S)
            at(self._env, self._env.now + after_ns, lambda: self._fail(replica, failures))
        replica.start()
        self._ready()

    # --- failures ---

    def _fail_index(self, index: int) -> None:
        alive = [one for one in self.replicas if one.index == index and one.state not in (State.LOST, State.GONE)]
        assert self._fleet.failures is not None
        for replica in alive:
            self._fail(replica, self._fleet.failures)

    def _fail(self, replica: Replica, failures: Failures) -> None:
        if not self._open() or replica.state in (State.LOST, State.GONE):
            return
        self.failures += 1
        replica.lose()
        at(self._env, self._env.now + ns_from_s(failures.detect_s), lambda: self._notice(replica, failures))

    def _notice(self, replica: Replica, failures: Failures) -> None:
        self._lost(replica.give_up())
        at(self._env, self._env.now + ns_from_s(failures.repair_s), lambda: self._replace(replica))

    def _replace(self, replica: Replica) -> None:
        replica.leave()
        if self._open():
            self._begin(replica.index, self._warm_up_ns)

    # --- autoscaling ---

    def _look(self, scale: Autoscale) -> None:
        if not self._open():
            return
        wanted = math.ceil(self.under_way() / scale.target)
        wanted = min(max(wanted, scale.replicas_min), scale.replicas_max)
        there = [one for one in self.replicas if one.state in (State.READY, State.WARMING)]
        have = len(there) + self._ordered
        if wanted > have:
            self._fewer_since_ns = None
            for _ in range(wanted - have):
                self._ordered += 1
                at(self._env, self._env.now + ns_from_s(scale.lag_s), self._arrive)
        elif wanted < have:
            self._fewer(there, have - wanted, scale)
        else:
            self._fewer_since_ns = None
        at(self._env, self._env.now + ns_from_s(scale.interval_s), lambda: self._look(scale))

    def _fewer(self, there: list[Replica], count: int, scale: Autoscale) -> None:
        """The newest go first, once fewer have been wanted for long enough."""
        now = self._env.now
        if self._fewer_since_ns is None:
            self._fewer_since_ns = now
        if now - self._fewer_since_ns < ns_from_s(scale.down_after_s):
            return
        self._fewer_since_ns = None
        for replica in sorted(there, key=lambda one: -one.index)[:count]:
            self.drained += 1
            replica.drain()

    def _arrive(self) -> None:
        self._ordered -= 1
        if not self._open():
            return
        used = {one.index for one in self.replicas if one.state is not State.GONE and one.until_ns < 0}
        index = next(place for place in range(len(self.replicas) + 1) if place not in used)
        self.started += 1
        self._begin(index, self._warm_up_ns)

    def under_way(self) -> int:
        """Requests at the replicas."""
        return sum(replica.under_way for replica in self.replicas)
