"""Backends under a clock of their own: the twin in real time is the simulation, to the token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from blink.common.config import load_scenario
from blink.common.metrics import tpot_ns
from blink.frontend.tokenizer.byte_level import ByteTokenizer
from blink.sim.run import simulate
from blink.workload.build import build_load
from tests.serve.running import SCENARIO

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from blink.frontend.openai.bodies import Sampling
from blink.serve.backend import Backend, Finish, Job
from blink.serve.real_time import RealTime
from blink.serve.simulated import COALESCE_NS, SimulatedBackend
from blink.serve.stub import StubText
from blink.serve.timed import Delay, TimedBackend

OVERRIDES = [("--set", "workload.cancel.fraction=0"), ("--set", "workload.arrivals.rate=400")]
START_NS = 5_000_000_000
AT_ONCE = RealTime(noticed_ns=0, told_ns=0, early_ns=0, early_share=0.0)


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ns = START_NS

    def __call__(self) -> int:
        return self.now_ns


@dataclass
class Heard:
    """What a job's client was told, and when."""

    first_ns: int = -1
    last_ns: int = -1
    count: int = 0
    finish: Finish | None = None


def served(backend: Backend, clock: Hands, jobs: list[Job]) -> None:
    """Submit each job at its arrival and give the backend its turns, each exactly when it asks for it."""
    due, waiting = None, list(jobs)
    while True:
        times = [time_ns for time_ns in (due, waiting[0].arrived_ns if waiting else None) if time_ns is not None]
        if not times:
            return
        clock.now_ns = max(clock.now_ns, min(times))
        while waiting and waiting[0].arrived_ns <= clock.now_ns:
            backend.submit(waiting.pop(0))
        due = backend.turn()


def job(number: int, prompt: int, output: int, at_ns: int, clock: Hands, heard: Heard) -> Job:
    def take(tokens: Sequence[int], finish: Finish | None) -> None:
        assert heard.finish is None
        if tokens:
            heard.first_ns = clock.now_ns if heard.first_ns < 0 else heard.first_ns
            heard.last_ns, heard.count = clock.now_ns, heard.count + len(tokens)
        heard.finish = finish or heard.finish

    return Job(number, [5] * prompt, output, Sampling(ignore_eos=True), at_ns, take)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_requests_at_the_simulations_times_get_their_tokens_at_its_times(scale: float) -> None:
    scenario, load = build_load(load_scenario(SCENARIO, OVERRIDES))
    result = simulate(scenario, load)
    rows, clock = result.requests, Hands()
    backend = SimulatedBackend(scenario, StubText(scenario, ByteTokenizer(), 1), scale, None, clock, AT_ONCE)
    heard = [Heard() for _ in range(len(load))]
    columns = zip(load.prompt_tokens.tolist(), load.output_tokens.tolist(), load.arrival_ns.tolist(), strict=True)
    jobs = [
        job(number, prompt, output, START_NS + round(arrival * scale), clock, heard[number])
        for number, (prompt, output, arrival) in enumerate(columns)
    ]
    served(backend, clock, jobs)
    assert [one.count for one in heard] == rows["output_tokens"].tolist()
    assert {one.finish for one in heard} == {Finish.LENGTH}
    first = np.array([one.first_ns for one in heard]) - START_NS
    last = np.array([one.last_ns for one in heard]) - START_NS
    slack = (COALESCE_NS + 1_000) * max(scale, 1.0)
    assert np.abs(first - rows["first_token_ns"] * scale).max() <= slack
    assert np.abs(last - rows["last_token_ns"] * scale).max() <= slack
    ttft = np.mean(first / scale - rows["sent_ns"])
    assert ttft == pytest.approx(np.mean(rows["ttft_ns"]), rel=0.02)
    many = rows["output_tokens"] > 1
    ours = ((last - first) / scale)[many] / (rows["output_tokens"][many] - 1)
    assert np.mean(ours) == pytest.approx(np.mean(tpot_ns(rows)), rel=0.02)
    backend.close(complete=True)


def test_what_the_real_machine_takes_is_not_added_to_what_is_modelled() -> None:
    """The server hears of a request late, and hands tokens out early; the client has them when the model says so."""
    overrides = [("--set", "workload.cancel.fraction=0"), ("--set", "workload.arrivals.rate=2")]
    scenario, load = build_load(load_scenario(SCENARIO, overrides))
    rows, clock, real = simulate(scenario, load).requests, Hands(), RealTime.load()
    backend = SimulatedBackend(scenario, StubText(scenario, ByteTokenizer(), 1), 1.0, None, clock, real)
    heard = [Heard() for _ in range(len(load))]
    columns = zip(load.prompt_tokens.tolist(), load.output_tokens.tolist(), load.arrival_ns.tolist(), strict=True)
    jobs = [
        job(number, prompt, output, START_NS + arrival + real.noticed_ns, clock, heard[number])
        for number, (prompt, output, arrival) in enumerate(columns)
    ]
    backend.turn()  # its time begins
    served(backend, clock, jobs)
    for times, name in (("first_ns", "first_token_ns"), ("last_ns", "last_token_ns")):
        early = rows[name] - (np.array([getattr(one, times) for one in heard]) - START_NS)
        assert early.min() >= -1_000
        assert early.max() <= real.told_ns + 1_000
    backend.close(complete=True)


def test_as_fast_as_it_goes_gives_every_token() -> None:
    scenario, _ = build_load(load_scenario(SCENARIO, OVERRIDES))
    clock, heard = Hands(), [Heard() for _ in range(30)]
    backend = SimulatedBackend(scenario, StubText(scenario, ByteTokenizer(), 1), 0.0, None, clock)
    served(backend, clock, [job(n, 9, 20, START_NS, clock, heard[n]) for n in range(30)])
    assert [(one.count, one.finish) for one in heard] == [(20, Finish.LENGTH)] * 30
    backend.close(complete=True)


def test_given_times_are_kept_and_the_batch_is_bounded() -> None:
    scenario, _ = build_load(load_scenario(SCENARIO, [*OVERRIDES, ("--set", "limits.batch_max=4")]))
    scenario = scenario.model_copy(update={"limits": scenario.limits.model_copy(update={"prefill_batch_max": 4})})
    clock, heard = Hands(), [Heard() for _ in range(6)]
    ttft, itl = Delay.parse("--ttft", "20"), Delay.parse("--itl", "5")
    backend = TimedBackend(scenario, StubText(scenario, ByteTokenizer(), 1), ttft, itl, 1.0, clock)
    served(backend, clock, [job(n, 5, 3, START_NS, clock, heard[n]) for n in range(6)])
    times = [((one.first_ns - START_NS) // 1_000_000, (one.last_ns - START_NS) // 1_000_000) for one in heard]
    assert times == [(20, 30)] * 4 + [(50, 60)] * 2


@pytest.mark.parametrize("text", ["50", "normal:50,5", "lognormal:50,0.3", "uniform:40,60", "exponential:50"])
def test_delays_have_the_mean_that_was_asked_for(text: str) -> None:
    delay, rng = Delay.parse("--ttft", text), np.random.default_rng(3)
    assert np.mean([delay.draw(rng) for _ in range(4000)]) == pytest.approx(50e6, rel=0.05)
