"""Runs a fleet: replicas on one clock, a router before them, one result of all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path as FilePath

from blink.common.config import Scenario
from blink.common.request import Request
from blink.common.results import Outcome, RunResult
from blink.perf.admission import bounded_rows, cut_note
from blink.perf.fleet import FleetProfile
from blink.sim.client import Clients
from blink.sim.clock import Clock, at
from blink.sim.fleet.affinity import affinities
from blink.sim.fleet.engine import Built, EngineMaker
from blink.sim.fleet.gather import gather
from blink.sim.fleet.replica import Replica, State
from blink.sim.fleet.router import make_router
from blink.sim.run_loop import Progress, drain
from blink.workload.build import cancel_after_ns, load_notes, output_tokens_asked
from blink.workload.requests import Requests
from blink.workload.streams import Stream, generator

NO_TRACE = "a fleet leaves no trace: run one replica for it"


def simulate_fleet(
    scenario: Scenario,
    requests: Requests,
    *,
    trace_path: FilePath | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> RunResult:
    """As `blink.sim.run.simulate`, for a scenario with a fleet. It leaves no trace, and says so."""
    fleet = FleetModel(scenario, requests)
    partial = fleet.run(progress, stop)
    result = fleet.result(partial)
    if trace_path is not None:
        result.notes.append(NO_TRACE)
    return result


class FleetModel:
    """Router and replicas, wired together."""

    def __init__(self, scenario: Scenario, load: Requests) -> None:
        assert scenario.fleet is not None
        self._scenario, self._load, self._fleet = scenario, load, scenario.fleet
        self._env = env = Clock()
        self._profile = FleetProfile.load(self._fleet.profile)
        self._maker = EngineMaker(scenario, self._profile, load, env)
        bounds = self._maker.bounds
        rows, self._refusals, cut = bounded_rows(bounds, load, output_tokens_asked(scenario, load))
        self._rows = rows
        self._notes = load_notes(scenario, load) + ([cut_note(bounds, cut)] if cut else [])
        self._affinity = affinities(load)
        self._choose = make_router(self._fleet, generator(scenario.seed, Stream.ROUTER))
        self._place: dict[int, Replica] = {}
        arrivals = scenario.workload.arrivals
        concurrency = arrivals.concurrency if arrivals is not None and arrivals.kind == "closed-loop" else None
        patience = cancel_after_ns(scenario, load)
        self.clients = Clients(env, rows, load, patience, concurrency, self._send, self._cancel)
        self.replicas = [self._replica(index, State.READY) for index in range(self._fleet.replicas)]

    def _replica(self, index: int, state: State) -> Replica:
        def make(replica: Replica) -> Built:
            return self._maker.make(index, replica)

        return Replica(self._env, index, make, self._ended, state)

    # --- a request ---

    def _send(self, request: Request) -> None:
        if request.request_id in self._refusals:
            request.outcome = Outcome.REFUSED
            self.clients.ended(request, self._env.now)
            return
        if self._profile.router_ns:
            at(self._env, self._env.now + self._profile.router_ns, lambda: self._dispatch(request))
        else:
            self._dispatch(request)

    def _dispatch(self, request: Request) -> None:
        """The router chooses now."""
        if request.cancelled_ns is not None:
            return
        ready = [replica for replica in self.replicas if replica.state is State.READY]
        replica = ready[self._choose(ready, int(self._affinity[request.request_id]))]
        self._place[request.request_id] = replica
        replica.receive(request)

    def _cancel(self, request: Request) -> None:
        replica = self._place.get(request.request_id)
        if replica is None:  # it has not left the router
            request.cancelled_ns, request.outcome = self._env.now, Outcome.CANCELLED
            return
        replica.cancel(request)

    def _ended(self, request: Request, at_ns: int) -> None:
        self.clients.ended(request, at_ns)

    # --- the run ---

    @property
    def now_ns(self) -> int:
        """Virtual time."""
        return self._env.now

    @property
    def rows(self) -> list[Request]:
        """Every request, as it stands."""
        return self._rows

    def run(self, progress: Progress | None, stop: Callable[[], bool] | None) -> bool:
        """Let time pass until nothing is left to happen; True if it was stopped before."""
        self._env.process(self.clients.run())
        return drain(self._env, self.clients, len(self._rows), progress, stop)

    def result(self, partial: bool) -> RunResult:
        """Columns and counters of all replicas together."""
        result = gather(self._scenario, self._profile, self._maker.step, self._rows, self.replicas, partial)
        result.refusals = dict(sorted({**result.refusals, **self._refusals}.items()))
        result.notes = self._notes + result.notes
        return result
