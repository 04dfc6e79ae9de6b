"""Candidates: what may carry the traffic, each a scenario that waits for its number of replicas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product
from typing import Any

from blink.common.config import Scenario, load_scenario, parse_scenario
from blink.common.config.scenario import Scenario as ScenarioModel
from blink.common.errors import InputError
from blink.perf.dpu import DpuProfile
from blink.perf.energy import (
    KINDS_WITH_DPU,
    PowerProfile,
    PriceProfile,
    usd_per_hour,
)
from blink.perf.gpu import GpuProfile
from blink.perf.host.profile import HostProfile
from blink.perf.placement import KINDS_WITHOUT_HOST, Placement
from blink.plan.axes import apply
from blink.plan.capacity.options import option_axes, with_options
from blink.plan.capacity.question import Question
from blink.plan.point import Key
from blink.workload.reader import read_trace

HOURS_A_MONTH = 730.0
CANDIDATES_MAX = 1000
KEY_NAMES = ("system", "model", "gpu", "tensor_parallel", "interference")


@dataclass(frozen=True)
class Candidate:
    """`key` says by KEY_NAMES what it is, and by option_axes what the question varies besides.

    `scenario` is one replica of it under the whole traffic.
    """

    index: int
    key: Key
    scenario: Scenario
    replicas_max: int

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.scenario.gpu.gpu_count

    def fleet(self, replicas: int, seed: int) -> Scenario:
        """So many replicas of it."""
        assert self.scenario.fleet is not None
        fleet = self.scenario.fleet.model_copy(update={"replicas": replicas})
        return self.scenario.model_copy(update={"fleet": fleet, "seed": seed})

    def usd_per_month(self, replicas: float, wall_kw: float) -> float:
        """What so many replicas (or so many on average) that draw so much cost; energy counts where it has a price."""
        prices = PriceProfile.load(self.scenario.prices.profile)
        return HOURS_A_MONTH * (replicas * usd_per_hour(self.scenario, prices) + wall_kw * prices.energy_usd_per_kwh)

    def hosts(self, replicas: int) -> int:
        """Hosts of so many replicas."""
        return Placement.of(self.scenario).hosts(replicas)

    def reserved_threads(self, replicas: int) -> int:
        """Hardware threads of the hosts that are kept for so many replicas."""
        if self.scenario.system.kind in KINDS_WITHOUT_HOST:
            return replicas * PriceProfile.load(self.scenario.prices.profile).attended_threads
        return replicas * self.scenario.host.reserved_cores

    def free_threads(self, replicas: int) -> int:
        """Hardware threads of its hosts that other work may have."""
        threads = HostProfile.load(self.scenario.host.profile).thread_count
        return max(0, self.hosts(replicas) * threads - self.reserved_threads(replicas))

    def idle_kw(self, replicas: int) -> float:
        """What a fleet draws at the wall that does nothing at all: less than this no fleet of that size draws."""
        power, gpu = PowerProfile.load(self.scenario.power.profile), GpuProfile.load(self.scenario.gpu.profile)
        hosts = self.hosts(replicas)
        inside = hosts * (power.server_w + power.cpu_w(0.0)) + replicas * self.gpus * gpu.power_idle_w
        with_dpu = self.scenario.system.kind in KINDS_WITH_DPU
        dpu = replicas * DpuProfile.load(self.scenario.dpu.profile).power_w if with_dpu else 0.0
        return (inside / power.supply_efficiency + dpu) / 1000.0


def candidates_of(question: Question) -> list[Candidate]:
    """Every combination. Raises InputError for what the scenario's own form refuses, such as an unknown profile."""
    base = _base(question)
    asked = question.candidates
    options = option_axes(asked)
    axes: list[tuple[str, tuple[Any, ...]]] = [
        ("model", asked.models or (None,)),
        ("gpu", asked.gpus or (None,)),
        ("gpu.tensor_parallel", asked.tensor_parallel or (None,)),
        ("system", asked.systems or (None,)),
        ("interference", asked.interference),
        *options,
    ]
    if math.prod(len(values) for _, values in axes) > CANDIDATES_MAX:
        raise InputError(f"{question.name}: candidates: more than {CANDIDATES_MAX} combinations; give fewer values")
    found: list[Candidate] = []
    for values in product(*(values for _, values in axes)):
        chosen = {name: value for (name, _), value in zip(axes, values, strict=True) if value is not None}
        varied = {name: chosen.pop(name) for name, _ in options}
        scenario = apply(with_options(base, varied, asked), tuple(chosen.items()))
        if price := asked.prices.get(scenario.gpu.profile):
            scenario = _changed(scenario, prices={"profile": price})
        PriceProfile.load(scenario.prices.profile)
        scenario = _changed(scenario, fleet={"replicas": 1, "router": asked.router, "profile": asked.fleet})
        replicas_max = question.limits.gpus_max // scenario.gpu.gpu_count
        if replicas_max:
            key = (*_key(scenario, chosen["interference"]), *varied.items())
            found.append(Candidate(len(found), key, scenario, replicas_max))
    if not found:
        raise InputError(f"{question.name}: limits.gpus_max = {question.limits.gpus_max}: not one replica fits")
    return found


def _base(question: Question) -> Scenario:
    """The scenario under the traffic of the question."""
    scenario = load_scenario(question.scenario, question.set)
    traffic = question.traffic
    workload = scenario.resolved()["workload"]
    if traffic.trace is not None:
        _check_trace(question)
        trace = {"file": traffic.trace, "rate_scale": traffic.growth}
        kept = {key: workload[key] for key in ("output_tokens_max", "cancel") if key in workload}
        return _changed(scenario, workload={**kept, "trace": trace})
    if "trace" in workload:
        raise InputError(f"{question.name}: the scenario has a trace: name it as traffic.trace, or leave it out there")
    kept = {key: value for key, value in workload.items() if key not in ("requests", "duration_s", "arrivals")}
    arrivals = {"kind": "poisson", "rate": traffic.peak_rate}
    return _changed(scenario, workload={**kept, "duration_s": traffic.window_s, "arrivals": arrivals})


def _check_trace(question: Question) -> None:
    """Raises InputError for a trace that cannot be read, or that does not say when its requests are sent."""
    file = question.traffic.trace
    assert file is not None
    requests = read_trace(file)
    if not requests.has_arrivals:
        raise InputError(f"{question.name}: traffic.trace = {file}: has no arrival times; allowed: a trace with them")
    if requests.arrival_ns[0] == requests.arrival_ns[-1]:
        raise InputError(
            f"{question.name}: traffic.trace = {file}: sends everything at one moment; allowed: a trace over some time"
        )


def _key(scenario: ScenarioModel, interference: str) -> Key:
    model = scenario.model.profile or scenario.model.hf_config
    values = (scenario.system.kind, model, scenario.gpu.profile, scenario.gpu.tensor_parallel, interference)
    return tuple(zip(KEY_NAMES, values, strict=True))


def _changed(scenario: Scenario, **sections: Any) -> Scenario:
    return parse_scenario({**scenario.resolved(), **sections}, scenario.name)
