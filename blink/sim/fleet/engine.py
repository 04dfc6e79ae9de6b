"""What a replica is made of: the twin as it stands, of whatever serving stack, on the fleet's clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Protocol

import numpy as np

from blink.common.config import Scenario
from blink.common.config.system import HostDrivenSystem
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import RunResult
from blink.common.trace import replica_trace_path
from blink.common.units import ns_from_s
from blink.perf.admission import Bounds, bounds_of
from blink.perf.fleet import FleetProfile
from blink.perf.host.conditions import HostConditions
from blink.perf.host.scenario import host_conditions
from blink.perf.link import LinkProfile
from blink.perf.placement import Placement
from blink.perf.plant import Plant
from blink.perf.step import StepModel
from blink.sim.client import Ends
from blink.sim.clock import Clock
from blink.sim.engines.lifecycle import LifecycleRecorder
from blink.sim.engines.plant import EnginePlant
from blink.sim.engines.run import LAYOUTS, EngineModel
from blink.sim.engines.run import bounds_of as engine_bounds
from blink.sim.run import Model, recorder_of
from blink.sim.run_loop import TraceSettings, run_digest
from blink.workload.requests import Requests
from blink.workload.streams import Stream

_SEED_BITS = 63
TRACED_MAX = 64
"""Replicas that leave a trace: each has an open file, and rows in memory, for as long as the fleet runs."""
FLUSH_ROWS_ALL, FLUSH_ROWS_MIN = 1 << 20, 1 << 12
"""Trace rows that are held in memory before some are written: of the whole fleet, and of a replica at least."""


class Engine(Protocol):
    """A model without clients of its own."""

    def start(self) -> None: ...

    def receive(self, request: Request) -> None: ...

    def cancel(self, request: Request) -> None: ...

    def observed(self) -> dict[str, tuple[int, int]]: ...

    @property
    def running_count(self) -> int: ...


class Recording(Protocol):
    """The trace that a replica leaves."""

    def flush(self) -> None:
        """Write some of it if it is worth while."""

    def cut(self) -> None:
        """The replica is lost: what its engine does from now on stays out."""

    def close(self, complete: bool) -> None:
        """Write the rest and put the file in its place."""

    def abort(self) -> None:
        """Leave no file behind."""


@dataclass(frozen=True, slots=True)
class Built:
    """An engine, and what makes a result of it (of the requests that it was handed; True: the run was stopped)."""

    engine: Engine
    result: Callable[[bool], RunResult]
    recording: Recording | None = None


@dataclass(frozen=True, slots=True)
class RingRecording:
    """Of Blink: transitions of the slots."""

    model: Model
    recorder: Recorder

    def flush(self) -> None:
        self.model.flush_trace()

    def cut(self) -> None:
        self.model.cut_trace()

    def close(self, complete: bool) -> None:
        self.model.close_trace(complete=complete)

    def abort(self) -> None:
        self.recorder.abort()


@dataclass(frozen=True, slots=True)
class LifeRecording:
    """Of a host-driven engine: the lives of its requests and steps. It flushes itself."""

    env: Clock
    recorder: LifecycleRecorder

    def flush(self) -> None:
        pass

    def cut(self) -> None:
        self.recorder.cut(self.env.now)

    def close(self, complete: bool) -> None:
        self.recorder.close(complete=complete)

    def abort(self) -> None:
        self.recorder.abort()


class EngineMaker:
    """Makes the replicas of a scenario. What stays the same during a run is worked out once for all of them."""

    def __init__(
        self, scenario: Scenario, profile: FleetProfile, load: Requests, env: Clock, trace_path: FilePath | None = None
    ) -> None:
        """`trace_path`: where the trace of one replica would belong. Raises InputError for what one could not run."""
        self._load, self._env, self._trace_path = load, env, trace_path
        self._run = run_digest(scenario, load) if trace_path else ""
        replicas = scenario.fleet.replicas if scenario.fleet else 1
        self._flush_rows = max(FLUSH_ROWS_MIN, FLUSH_ROWS_ALL // replicas)
        self._profile, self._warm_up_s = profile, scenario.fleet.warm_up_s if scenario.fleet else None
        self._placement, self._replicas = Placement.of(scenario), _most(scenario)
        self._conditions: dict[int, HostConditions] = {}
        self._scenario = _behind_router(scenario, profile)
        system = scenario.system
        self._system = system if isinstance(system, HostDrivenSystem) else None
        self._plant = Plant.of(self._scenario) if self._system is None else None
        self._engine_plant = EnginePlant.of(self._scenario, self._system) if self._system else None

    @property
    def bounds(self) -> Bounds:
        """What a request must keep to."""
        if self._plant is not None:
            return bounds_of(self._plant, self._scenario.limits.output_capacity_tokens)
        assert self._engine_plant is not None
        return engine_bounds(self._engine_plant)

    @property
    def step(self) -> StepModel:
        """How long steps take."""
        plant = self._plant or self._engine_plant
        assert plant is not None
        return plant.step

    @property
    def graph_count(self) -> int:
        """Graphs that a replica captures before it serves. Of a host-driven engine: one for each batch size."""
        if self._plant is not None:
            return self._plant.prefill_table.count() + self._plant.decode_table.count()
        assert self._engine_plant is not None
        return self._engine_plant.captured_count

    @property
    def warm_up_ns(self) -> int:
        """From the start of a replica until it serves."""
        if self._warm_up_s is not None:
            return ns_from_s(self._warm_up_s)
        return self._profile.warm_up_ns(self.step.weights_bytes, self.graph_count)

    def make(self, index: int, ends: Ends, *, place: int = 0, received: bool = False) -> Built:
        """The engine of a replica: the first has the scenario's own random numbers, each other has its own.

        `place` in the fleet, by which it has a host and neighbours there: as many as there are when the fleet is
        largest. `received`: others send it keys and values of prompts.
        """
        engines = self._placement.engines(place, self._replicas)
        scenario = self._scenario.model_copy(update={"seed": replica_seed(self._scenario.seed, index)})
        path, settings = None, None
        if self._trace_path is not None and index < TRACED_MAX:
            path = replica_trace_path(self._trace_path, index)
            settings = TraceSettings(f"{self._run}-{index}", self._flush_rows)
        if self._plant is not None:
            recorder = recorder_of(scenario, self._load, path, settings)
            model = Model(
                scenario, self._plant, [], {}, self._load, recorder, env=self._env, ends=ends, received=received,
                engines=engines,
            )  # fmt: skip
            return Built(
                model, lambda partial: model.result([], partial), RingRecording(model, recorder) if recorder else None
            )
        assert self._system is not None
        engine = EngineModel(
            scenario, self._system, self._load, path, self._host(engines), env=self._env, ends=ends,
            plant=self._engine_plant, received=received, trace=settings,
        )  # fmt: skip
        found = engine.recorder
        return Built(engine, engine.result, LifeRecording(self._env, found) if found else None)

    def _host(self, engines: int) -> HostConditions:
        """The host of a host-driven engine with so many on it."""
        assert self._system is not None
        if engines not in self._conditions:
            threads = LAYOUTS[self._system.kind].busy_threads
            self._conditions[engines] = host_conditions(self._scenario, threads, engines)
        return self._conditions[engines]


def _most(scenario: Scenario) -> int:
    """Replicas when there are most of them."""
    assert scenario.fleet is not None
    scale = scenario.fleet.autoscale
    return scale.replicas_max if scale else scenario.fleet.replicas


def replica_seed(seed: int, index: int) -> int:
    """The scenario's seed for the first replica; for others one that depends on it and on their number."""
    if not index:
        return seed
    words = np.random.SeedSequence(seed, spawn_key=(int(Stream.REPLICAS), index)).generate_state(1, np.uint64)
    return int(words[0]) >> (64 - _SEED_BITS)


def _behind_router(scenario: Scenario, profile: FleetProfile) -> Scenario:
    """One replica's scenario: the first hop is longer by that between router and frontend, on the way back too."""
    links = scenario.links
    if profile.router_hop_ns:
        first = LinkProfile.load(links.profile).hops[0].name
        extra = {**links.extra_latency_ns, first: links.extra_latency_ns.get(first, 0) + profile.router_hop_ns}
        links = links.model_copy(update={"extra_latency_ns": extra})
    return scenario.model_copy(update={"fleet": None, "links": links})
