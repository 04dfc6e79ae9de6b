"""Fleets: a replica is the twin as it stands, no request is lost, and each router does what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blink.common.config import Scenario, parse_scenario
from blink.common.errors import InputError
from blink.common.results import Outcome, RunResult
from blink.common.summary import summarize
from blink.sim.run import simulate
from blink.workload.build import build_load

KINDS = ("blink", "cpu-resident", "vllm", "sglang", "trtllm")
ROUTERS = ("round-robin", "least-outstanding", "join-shortest-queue", "power-of-two", "prefix-affinity")
FREE = """\
profile = "fleet"
name = "free"
description = "A router that costs nothing."
carry_over = "one-rack"
[constants]
router_ns = { value = 0, unit = "ns", kind = "assumed", source = "none, for this test" }
router_hop_ns = { value = 0, unit = "ns", kind = "assumed", source = "none, for this test" }
"""


def scenario(kind: str = "blink", **more: Any) -> Scenario:
    document: dict[str, Any] = {
        "name": "fleet",
        "seed": 5,
        "system": {"kind": kind},
        "model": {"profile": "llama-3-8b"},
        "gpu": {"profile": "h100-96gb"},
        "workload": {
            "requests": 150,
            "arrivals": {"kind": "poisson", "rate": 30.0},
            "lengths": {"kind": "uniform", "prompt_tokens": [10, 1500], "output_tokens": [1, 120]},
            "cancel": {"fraction": 0.1, "after_s": 0.5},
        },
    }
    return parse_scenario({**document, **more}, "test")


def run(of: Scenario) -> RunResult:
    return simulate(*build_load(of))


def fleet(replicas: int, **more: Any) -> dict[str, Any]:
    return {"fleet": {"replicas": replicas, **more}}


@pytest.mark.parametrize("kind", KINDS)
def test_one_replica_behind_a_router_that_costs_nothing_is_the_twin_as_it_stands(kind: str, tmp_path: Path) -> None:
    (tmp_path / "free.toml").write_text(FREE)
    plain = run(scenario(kind))
    one = run(scenario(kind, **fleet(1, profile=str(tmp_path / "free.toml"))))
    for name, column in plain.requests.items():
        assert np.array_equal(column, one.requests[name]), name
    assert np.array_equal(plain.itl.values, one.itl.values)
    assert np.array_equal(plain.itl.weights, one.itl.weights)
    assert plain.scheduler == one.scheduler
    assert plain.counters == one.counters
    assert one.accounts == pytest.approx(plain.accounts)
    assert (plain.duration_ns, plain.notes) == (one.duration_ns, one.notes)


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("kind", ["blink", "vllm"])
def test_every_request_is_served_once_and_the_same_run_has_the_same_result(kind: str, router: str) -> None:
    first, again = (run(scenario(kind, **fleet(3, router=router))) for _ in range(2))
    assert summarize(first) == summarize(again)
    assert len(first.requests["request_id"]) == 150
    assert not np.any(first.requests["outcome"] == Outcome.UNFINISHED)
    done = int(np.count_nonzero(first.requests["outcome"] == Outcome.COMPLETED))
    assert done > 100
    assert sum(replica["completed"] for replica in first.fleet["replicas"]) == done


def test_the_router_and_its_hop_are_in_the_time_to_the_first_token(tmp_path: Path) -> None:
    """A lone request: the router's time and its hop on the way there, and the hop on the way back."""
    load = {
        "requests": 1,
        "arrivals": {"kind": "all-at-once"},
        "lengths": {"kind": "fixed", "prompt_tokens": 100, "output_tokens": 1},
    }
    plain, routed = run(scenario(workload=load)), run(scenario(workload=load, **fleet(1)))
    later = routed.requests["ttft_ns"][0] - plain.requests["ttft_ns"][0]
    assert routed.requests["ingress_ns"][0] - plain.requests["ingress_ns"][0] == 150_000 + 15_000
    assert routed.requests["delivery_ns"][0] - plain.requests["delivery_ns"][0] == 15_000
    # What lies between may shift by a scan or a poll of the ring.
    assert later == pytest.approx(180_000, abs=5_000)


def test_round_robin_takes_turns_and_counts_of_the_others_stay_near() -> None:
    def counts(router: str) -> list[int]:
        load = scenario().resolved()["workload"] | {"cancel": {"fraction": 0.0}}
        found = run(scenario(workload=load, **fleet(3, router=router)))
        return [replica["completed"] for replica in found.fleet["replicas"]]

    assert counts("round-robin") == [50, 50, 50]
    assert max(counts("least-outstanding")) - min(counts("least-outstanding")) < 25
    assert min(counts("power-of-two")) > 30


def test_more_replicas_wait_less_and_the_shortest_queue_waits_no_longer_than_turns() -> None:
    load = {
        "requests": 400,
        "arrivals": {"kind": "gamma", "rate": 60.0, "burstiness": 0.3},
        "lengths": {"kind": "lognormal", "prompt_tokens": {"mean": 800, "sigma": 0.8},
                    "output_tokens": {"mean": 60, "sigma": 1.2, "maximum": 2000}},
    }  # fmt: skip

    def wait(replicas: int, router: str) -> float:
        found = run(scenario(workload=load, limits={"batch_max": 16}, **fleet(replicas, router=router)))
        return float(found.requests["ring_wait_ns"].mean())

    turns = wait(3, "round-robin")
    assert wait(6, "round-robin") < turns < wait(2, "round-robin")
    assert wait(3, "join-shortest-queue") < turns
    assert wait(3, "least-outstanding") < turns


def test_a_session_stays_with_its_replica() -> None:
    """Affinity without any bound on the load: the two replicas see disjoint sets of sessions."""
    from blink.common.config.fleet import Fleet
    from blink.sim.fleet.router import make_router

    class Fake:
        def __init__(self, index: int, under_way: int = 0) -> None:
            self.index, self.under_way, self.waiting = index, under_way, under_way

    choose = make_router(Fleet(router="prefix-affinity"), np.random.default_rng(1))
    calm = [Fake(index) for index in range(4)]
    first = [choose(calm, affinity) for affinity in range(200)]
    assert first == [choose(calm, affinity) for affinity in range(200)]
    assert {first.count(place) for place in range(4)} <= set(range(25, 80))
    # A replica that leaves moves its own sessions alone.
    left = [choose(calm[:3], affinity) for affinity in range(200)]
    assert all(before == after for before, after in zip(first, left, strict=True) if before != 3)
    # One that has much more to do than the mean is passed over.
    busy = [Fake(index, 100 if index == first[0] else 1) for index in range(4)]
    assert choose(busy, 0) != first[0]


def test_prompts_that_no_replica_can_hold_are_refused_before_the_router() -> None:
    load = {
        "requests": 3,
        "arrivals": {"kind": "all-at-once"},
        "lengths": {"kind": "fixed", "prompt_tokens": 9000, "output_tokens": 4},
    }
    found = run(scenario(workload=load, **fleet(2)))
    assert set(found.requests["outcome"].tolist()) == {Outcome.REFUSED}
    assert len(found.refusals) == 3


def test_clients_that_wait_for_their_answer_are_served_by_all() -> None:
    load = {
        "requests": 40,
        "arrivals": {"kind": "closed-loop", "concurrency": 4},
        "lengths": {"kind": "fixed", "prompt_tokens": 50, "output_tokens": 20},
    }
    found = run(scenario(workload=load, **fleet(2)))
    assert [replica["under_way_max"] for replica in found.fleet["replicas"]] == [2, 2]


def test_the_accounts_of_a_fleet_add_up() -> None:
    """Eight replicas of one GPU are one host: eight times what is paid for a GPU, not eight servers' power."""
    one, eight = run(scenario(**fleet(1))), run(scenario(**fleet(8)))
    hours = [found.duration_ns / 3.6e12 for found in (one, eight)]
    assert eight.accounts["cost_usd"] / hours[1] == pytest.approx(8 * one.accounts["cost_usd"] / hours[0])
    assert eight.fleet["hosts"] == 1
    assert one.accounts["wall_w"] < eight.accounts["wall_w"] < 8 * one.accounts["wall_w"]
    assert eight.accounts["gpu_w"] > 8 * 70  # idle at least
    for found in (one, eight):  # a replica is paid for after its last request, too
        assert sum(summarize(found)["blink"]["time_share"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"replicas": 0}, "fleet.replicas = 0"),
        ({"router": "best"}, "fleet.router"),
        ({"profile": "none"}, "allowed: one-rack"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(table: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        run(scenario(fleet=table))
