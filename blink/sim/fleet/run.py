"""Runs a fleet: replicas on one clock, a router before them, one result of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path as FilePath

import numpy as np

from blink.common.config import Scenario
from blink.common.request import Request
from blink.common.results import Outcome, RunResult
from blink.perf.admission import bounded_rows, cut_note
from blink.perf.fabric import FabricProfile
from blink.perf.fleet import FleetProfile
from blink.perf.serving import DEFAULT_FABRIC
from blink.sim.client import Clients
from blink.sim.clock import Clock, at
from blink.sim.fleet.affinity import affinities
from blink.sim.fleet.engine import TRACED_MAX, Built, EngineMaker, Recording
from blink.sim.fleet.gather import gather
from blink.sim.fleet.handover import Handover
from blink.sim.fleet.life import Life
from blink.sim.fleet.replica import Replica
from blink.sim.fleet.router import make_router
from blink.sim.run_loop import Progress, drain
from blink.workload.build import cancel_after_ns, load_notes, output_tokens_asked
from blink.workload.requests import Requests, synthetic
from blink.workload.streams import Stream, generator


def simulate_fleet(
    scenario: Scenario,
    requests: Requests,
    *,
    trace_path: FilePath | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> RunResult:
    """As `blink.sim.run.simulate`, for a scenario with a fleet. Each replica leaves a trace beside `trace_path`."""
    fleet = FleetModel(scenario, requests, trace_path)
    try:
        partial = fleet.run(progress, stop)
        result = fleet.result(partial)
        fleet.close_traces(complete=not partial)
    except BaseException:
        fleet.abort_traces()
        raise
    count = len(fleet.life.replicas)
    if trace_path is not None and count > TRACED_MAX:
        result.notes.append(f"of {count} replicas the first {TRACED_MAX} leave a trace")
    return result


def warm_up_ns(scenario: Scenario) -> int:
    """From the start of a replica of a scenario with a fleet until it serves."""
    assert scenario.fleet is not None
    profile, nothing = FleetProfile.load(scenario.fleet.profile), synthetic(*(np.zeros(0, np.int64) for _ in range(3)))
    return EngineMaker(scenario, profile, nothing, Clock()).warm_up_ns


class FleetClients(Clients):
    """Clients of requests that may be served anew: who hangs up does so on what the request has become."""

    def _hang_up(self, request: Request) -> None:
        super()._hang_up(self._rows[request.request_id])


class FleetModel:
    """Router and replicas, wired together."""

    def __init__(self, scenario: Scenario, load: Requests, trace_path: FilePath | None = None) -> None:
        assert scenario.fleet is not None
        self._scenario, self._load, self._fleet = scenario, load, scenario.fleet
        self._env = env = Clock()
        self._traced = trace_path is not None
        self._profile = FleetProfile.load(self._fleet.profile)
        self._maker = maker = EngineMaker(scenario, self._profile, load, env, trace_path)
        bounds = maker.bounds
        self._rows, self._refusals, cut = bounded_rows(bounds, load, output_tokens_asked(scenario, load))
        self._notes = load_notes(scenario, load) + ([cut_note(bounds, cut)] if cut else [])
        self._affinity = affinities(load)
        routers = 2 if self._fleet.prefill_replicas else 1
        rng = generator(scenario.seed, Stream.ROUTER)
        self._choose = [make_router(self._fleet, rng) for _ in range(routers)]
        self._place: dict[int, tuple[Replica, Request]] = {}
        self._held: list[tuple[Request, int]] = []  # nobody is there for them: (request, leg)
        self._handover = None
        if self._fleet.prefill_replicas:
            self._handover = Handover(FabricProfile.load(scenario.gpu.fabric or DEFAULT_FABRIC), maker.step)
        self._retries = self._given_up = 0
        self._tries: dict[int, int] = {}
        arrivals = scenario.workload.arrivals
        concurrency = arrivals.concurrency if arrivals is not None and arrivals.kind == "closed-loop" else None
        patience = cancel_after_ns(scenario, load)
        self.clients = FleetClients(env, self._rows, load, patience, concurrency, self._send, self._cancel)
        outages = generator(scenario.seed, Stream.OUTAGES)
        self.life = Life(
            env,
            self._fleet,
            maker.warm_up_ns,
            outages,
            self._replica,
            self._lost,
            self._ready,
            lambda: self.clients.open,
        )
        self.life.begin()

    def _replica(self, index: int) -> Replica:
        number = len(self.life.replicas)  # a successor has random numbers of its own

        def make(replica: Replica) -> Built:
            received = self._handover is not None and not self._prefills(index)
            return self._maker.make(number, replica, place=index, received=received)

        return Replica(self._env, index, make, self._ended)

    def _prefills(self, index: int) -> bool:
        return index < (self._fleet.prefill_replicas or 0)

    # --- a request ---

    def _send(self, request: Request) -> None:
        if request.request_id in self._refusals:
            request.outcome = Outcome.REFUSED
            self.clients.ended(request, self._env.now)
            return
        if self._profile.router_ns:
            at(self._env, self._env.now + self._profile.router_ns, lambda: self._dispatch(request, 0))
        else:
            self._dispatch(request, 0)

    def _dispatch(self, request: Request, leg: int) -> None:
        """The router chooses now. With separate replicas: leg 0 is the prompt, leg 1 is what follows."""
        if request.cancelled_ns is not None:
            return
        ready = self.life.ready()
        if self._handover is not None:
            ready = [replica for replica in ready if self._prefills(replica.index) == (leg == 0)]
        if not ready:
            self._held.append((request, leg))
            return
        replica = ready[self._choose[leg](ready, int(self._affinity[request.request_id]))]
        handed = request
        if self._handover is not None:
            handed = self._handover.second_leg(request) if leg else self._handover.first_leg(request)
        self._place[request.request_id] = replica, handed
        replica.receive(handed)

    def _ready(self) -> None:
        """A replica is ready: those that wait for one are sent."""
        held, self._held = self._held, []
        for request, leg in held:
            self._dispatch(request, leg)

    def _cancel(self, request: Request) -> None:
        """The client hangs up, wherever the request is."""
        replica, handed = self._place.get(request.request_id, (None, request))
        if replica is not None and handed.request_id in replica.requests:
            replica.cancel(handed)
        if handed is not request or replica is None or request.outcome is Outcome.UNFINISHED:
            if handed is not request and self._handover is not None and handed.kv_ready_tokens:
                self._handover.join(request, handed)
            request.cancelled_ns, request.outcome = self._env.now, Outcome.CANCELLED

    def _ended(self, replica: Replica, handed: Request, at_ns: int) -> None:
        """A replica is through with what it was handed, now."""
        request = self._rows[handed.request_id]
        if handed is request:
            self.clients.ended(request, at_ns)
            return
        handover = self._handover
        assert handover is not None
        if handed.kv_ready_tokens:
            handover.join(request, handed)
        elif handover.goes_on(request, handed):
            arrived_ns = handover.send(replica.index, request, self._env.now)
            at(self._env, arrived_ns, lambda: self._dispatch(request, 1))
            return
        else:
            request.outcome, request.status = handed.outcome, handed.status
            request.output_tokens, request.last_token_ns = handed.output_tokens, handed.last_token_ns
        self.clients.ended(request, at_ns)

    def _lost(self, requests: list[Request]) -> None:
        """A replica was lost with these."""
        failures = self._fleet.failures
        assert failures is not None
        for handed in requests:
            old = self._rows[handed.request_id]
            if old.cancelled_ns is not None:
                continue
            new = Request(
                old.request_id, old.source_row, old.prompt_tokens, old.eos_at, old.output_tokens_max, old.sent_ns
            )
            self._rows[handed.request_id] = new
            self._place.pop(handed.request_id, None)
            tries = self._tries[handed.request_id] = self._tries.get(handed.request_id, 0) + 1
            if failures.lost == "retry" and tries <= failures.retries_max:
                self._retries += 1
                self._dispatch(new, 0)
            else:
                self._given_up += 1
                new.outcome = Outcome.FAILED
                self.clients.ended(new, self._env.now)

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
        between = self._flush_traces if self._traced else None
        return drain(self._env, self.clients, len(self._rows), progress, stop, between)

    def _flush_traces(self) -> None:
        for recording in self._recordings():
            recording.flush()

    def close_traces(self, *, complete: bool) -> None:
        """Write what is left of the replicas' traces, if they have any."""
        for recording in self._recordings():
            recording.close(complete)

    def abort_traces(self) -> None:
        """Leave no trace behind."""
        for recording in self._recordings():
            recording.abort()

    def _recordings(self) -> Iterator[Recording]:
        return (replica.recording for replica in self.life.replicas if replica.recording)

    def result(self, partial: bool) -> RunResult:
        """Columns and counters of all replicas together."""
        gaps = [self._handover.gaps.total()] if self._handover else []
        result = gather(self._scenario, self._maker.step, self._rows, self.life.replicas, partial, gaps)
        result.refusals = dict(sorted({**result.refusals, **self._refusals}.items()))
        result.notes = self._notes + result.notes
        result.fleet |= self._events()
        return result

    def _events(self) -> dict[str, int]:
        """What happened beside serving."""
        found: dict[str, int] = {}
        if self._fleet.failures is not None:
            found |= {"failures": self.life.failures, "retries": self._retries, "given_up": self._given_up}
        if self._fleet.autoscale is not None:
            found |= {"started": self.life.started, "drained": self.life.drained}
        if self._handover is not None:
            sent = self._handover
            found |= {"handovers": sent.count, "handover_bytes": sent.sent_bytes, "handover_ns": sent.sending_ns}
        return found
