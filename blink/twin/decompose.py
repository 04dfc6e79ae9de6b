"""Which part of the twin errs: the policy, the step model, or the frontend.

Policy: the recorded run is replayed (level 4 of conformance) under the prediction's limits, with the times that were
measured; the decisions must be the same. Step model: every recorded graph beside what the model says of that shape at
that moment. Frontend: its own times, and what the arrivals at the ring that it makes change.

The means add up. The twin is run again with requests that reach the ring when they really did: what its own arrivals
change beyond that is the frontend's. If its limits are not those of the measured run, it is run once more under those:
what that changes is the policy's. The rest is the step model's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from blink.common.config import Scenario, load_scenario
from blink.common.config.hardware import Dpu, Links
from blink.common.config.serving import Frontend, Limits
from blink.common.events import GraphKind
from blink.common.lockstep import Machine
from blink.common.results import I64, Outcome
from blink.common.steps import StepTable
from blink.common.trace import Trace
from blink.conform.replay import compare_rows, first_difference, record, replay
from blink.perf.plant import Plant
from blink.perf.throttle import Throttle
from blink.sim.run import overheads_of, simulate
from blink.twin.observed import ObservedRun
from blink.workload.requests import NO_PARENT, Requests

BEFORE = ("ingress_ns", "tokenize_ns", "slot_wait_ns", "link_ns")
RING = ("ring_wait_ns", "prefill_ns", "publish_ns")
AFTER = ("read_ns", "detokenize_ns", "delivery_ns")
PARTS = ("policy", "step model", "frontend")
_KV_BLOCKS_MAX = 1 << 22


@dataclass(frozen=True, slots=True)
class Policy:
    """Rows of the scheduler that are equal up to the first that differs, of how many, and what differs there."""

    equal: int
    total: int
    difference: str | None
    context: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Steps:
    """Time of all steps of a kind: measured, and by the model for the same steps. `kind` loop: around the graphs."""

    kind: str
    count: int
    real_ns: int
    sim_ns: int

    @property
    def error(self) -> float:
        """Relative to the measurement."""
        return self.sim_ns / self.real_ns - 1.0 if self.real_ns else 0.0


@dataclass(frozen=True, slots=True)
class FrontendPart:
    """A part of TTFT that the frontend makes: mean, measured and predicted."""

    part: str
    real_ns: float
    sim_ns: float


@dataclass(frozen=True, slots=True)
class Contribution:
    """By how much each of PARTS makes the mean of a latency longer than measured; the sum is the whole error."""

    latency: str
    real_ns: float
    by_part_ns: tuple[float, float, float]

    @property
    def error_ns(self) -> float:
        """The whole error."""
        return sum(self.by_part_ns)


@dataclass(frozen=True, slots=True)
class Decomposition:
    """All of it, of one pair of runs."""

    policy: Policy
    steps: tuple[Steps, ...]
    frontend: tuple[FrontendPart, ...]
    contributions: tuple[Contribution, ...]


def decompose(real: ObservedRun, sim: ObservedRun, mine: I64, theirs: I64, trace: Trace) -> Decomposition:
    """`trace` is the measured run's, of slots; `mine` and `theirs` are rows of the same requests (observed.matched)."""
    assert sim.scenario_path is not None
    scenario = load_scenario(sim.scenario_path)
    recorded = load_scenario(real.scenario_path).limits if real.scenario_path else scenario.limits
    plant = Plant.of(scenario)

    def mean(part: str) -> FrontendPart:
        values = float(real.parts[part][mine].mean()), float(sim.parts[part][theirs].mean())
        return FrontendPart(part.removesuffix("_ns"), *values)

    policy = _policy(trace, scenario, plant)
    if policy.difference is None:
        recorded = scenario.limits  # whatever else they say
    return Decomposition(
        policy,
        tuple(_steps(StepTable.of_trace(trace), scenario, plant)),
        tuple(mean(part) for part in (*BEFORE, *AFTER)),
        _contributions(real, sim, mine, theirs, scenario, recorded),
    )


# --- policy ---


def _policy(trace: Trace, scenario: Scenario, plant: Plant) -> Policy:
    recording = record(trace)
    machine = Machine(
        limits=plant.limits,
        prefill_table=plant.prefill_table,
        decode_table=plant.decode_table,
        kv_block_count=min(plant.memory.kv_block_count, _KV_BLOCKS_MAX),
        prompt_capacity_tokens=scenario.limits.prompt_capacity_tokens,
        output_capacity_tokens=scenario.limits.output_capacity_tokens,
        time_limit_ns=scenario.limits.time_limit_ns,
    )
    replayed = replay(recording, machine)
    total, row = int(recording.rows["event"].size), first_difference(recording.rows, replayed)
    found = compare_rows(("measured", "twin"), recording.rows, replayed)
    if row is None or found is None:
        return Policy(total, total, None)
    return Policy(row, total, found.what, found.context)


# --- step model ---


def _steps(steps: StepTable, scenario: Scenario, plant: Plant) -> list[Steps]:
    """Totals of each kind over the recorded steps, each asked of the model as it was launched."""
    throttle = Throttle.of(plant.gpu, plant.step.prefill_busy)
    around, _ = overheads_of(scenario, plant)
    graph = {kind: [0, 0, 0] for kind in GraphKind}
    loop = [0, 0, 0]
    ended = 0  # by the model's own clock, on which a thread that shares its core takes its turns
    for row in range(len(steps)):
        kind, batch, sequence = GraphKind(int(steps.kind[row])), int(steps.batch[row]), int(steps.sequence[row])
        launched, live, number = int(steps.launched_ns[row]), int(steps.live[row]), int(steps.step[row])
        if kind is GraphKind.DECODE:
            took = plant.step.decode_ns(batch, int(steps.kv_tokens[row]))
            took = throttle.decode_ns(launched, took) if throttle else took
        else:
            took = plant.step.prefill_ns(batch, sequence)
            tokens = int(steps.prompt_tokens[row])
            took = throttle.prefill_ns(launched, took, batch, sequence, tokens) if throttle else took
        busy = int(steps.boundary_ns[row]) >= 0 and int(steps.kv_tokens[row]) > 0
        expected = around.before_ns(number, live) + around.after_ns(number, live)
        if around.late_ns:
            begun = ended + expected if busy else launched
            took += around.late_ns(begun + took)
            ended = begun + took
        _add(graph[kind], int(steps.done_ns[row]) - launched, took)
        if busy:  # an idle scheduler waits for a prompt, which is no cost of its loop
            measured = launched - int(steps.boundary_ns[row]) + int(steps.stored_ns[row]) - int(steps.done_ns[row])
            if kind is GraphKind.PREFILL:
                expected += around.claim_ns(live, pausing=True)
            if steps.relaunched[row]:
                expected += around.relaunch_ns
            _add(loop, measured, expected)
    return [*(Steps(kind.label, *graph[kind]) for kind in GraphKind if graph[kind][0]), Steps("loop", *loop)]


def _add(total: list[int], real_ns: int, sim_ns: int) -> None:
    total[0] += 1
    total[1] += real_ns
    total[2] += sim_ns


# --- frontend, and the sum ---


def _contributions(
    real: ObservedRun, sim: ObservedRun, mine: I64, theirs: I64, scenario: Scenario, recorded: Limits
) -> tuple[Contribution, ...]:
    """TTFT and the time from the first token to the last, whose sum is E2E. `recorded`: limits of the measured run."""
    given = _with_measured_arrivals(real, mine, scenario)
    same = given
    if scenario.limits != recorded:
        same = _with_measured_arrivals(real, mine, scenario.model_copy(update={"limits": recorded}))

    def sums(run: ObservedRun, rows: I64, names: tuple[str, ...]) -> I64:
        return np.asarray(sum(run.parts[name][rows] for name in names), np.int64)

    own = float((sums(sim, theirs, (*BEFORE, *AFTER)) - sums(real, mine, (*BEFORE, *AFTER))).mean())
    spans = real.last_ns[mine] - real.first_ns[mine], sim.last_ns[theirs] - sim.first_ns[theirs]
    ttft = real.first_ns[mine] - real.sent_ns[mine]
    found = []
    for latency, whole, measured, twin, key, extra in (
        ("TTFT", ttft, sums(real, mine, RING), sums(sim, theirs, RING), "ring", own),
        ("first token to last", spans[0], *spans, "span", 0.0),
    ):
        policy = float((given[key] - same[key]).mean())
        steps = float((same[key] - measured).mean())
        frontend = float((twin - given[key]).mean()) + extra
        found.append(Contribution(latency, float(whole.mean()), (policy, steps, frontend)))
    first, second = found
    policy, steps, frontend = (a + b for a, b in zip(first.by_part_ns, second.by_part_ns, strict=True))
    return (*found, Contribution("E2E", first.real_ns + second.real_ns, (policy, steps, frontend)))


def _with_measured_arrivals(real: ObservedRun, mine: I64, scenario: Scenario) -> dict[str, I64]:
    """Of a twin whose requests reach the ring when they really did, with a frontend that costs nothing."""
    published = real.sent_ns[mine] + np.asarray(sum(real.parts[name][mine] for name in BEFORE), np.int64)
    order = np.lexsort((real.key[mine], published))
    arrival = published[order] - published[order[0]]
    zeros = np.zeros(len(order), np.int64)
    requests = Requests(
        arrival, real.prompt_tokens[mine][order], real.output_tokens[mine][order], zeros - 1,
        np.full(len(order), NO_PARENT, np.int64), zeros,
    )  # fmt: skip
    workload = scenario.workload.model_copy(
        update={"arrivals": None, "cancel": scenario.workload.cancel.model_copy(update={"fraction": 0.0})}
    )
    update: dict[str, Any] = {
        "dpu": Dpu(profile="none", token_cores=2),
        "links": Links(profile="none"),
        "frontend": Frontend(poll_min_ns=1, poll_max_ns=1_000),
        "workload": workload,
    }
    result = simulate(scenario.model_copy(update=update), requests)
    table = result.requests
    if np.any(table["outcome"] != Outcome.COMPLETED):
        raise RuntimeError("a request that was served is not completed by the twin")
    back = np.empty(len(order), np.int64)
    back[order] = np.argsort(table["request_id"], kind="stable")
    return {
        "ring": np.asarray(sum(table[name] for name in RING), np.int64)[back],
        "span": (table["last_token_ns"] - table["first_token_ns"])[back],
    }
