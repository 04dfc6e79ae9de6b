"""Variants: one thing changes and all else stays; what cannot be is refused in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from blink.common.config import Scenario, load_scenario, parse_scenario
from blink.common.config.system import BlinkSystem, HostDrivenSystem, TrtllmSystem, VllmSystem
from blink.common.errors import InputError
from blink.perf.host.scenario import interference_of
from blink.plan import variant
from tests.shared import ROOT

NAMES = sorted(path.name for path in (ROOT / "scenarios").glob("*.toml"))


def scenario(name: str = "llama3-8b-h100.toml", *overrides: str) -> Scenario:
    return load_scenario(ROOT / "scenarios" / name, overrides)


def sections_changed(before: Scenario, after: Scenario) -> set[str]:
    one, other = before.model_dump(), after.model_dump()
    return {name for name in one if one[name] != other[name]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", variant.SYSTEM_KINDS)
def test_every_scenario_can_be_served_by_every_system(name: str, kind: str) -> None:
    given = scenario(name)
    found = variant.with_system(given, kind)
    assert found.system.kind == kind
    assert sections_changed(given, found) <= {"system", "limits"}
    if found.system.kind == given.system.kind:
        assert found == given


def test_places_and_prompts_are_the_same_for_an_engine_as_for_blink() -> None:
    given = scenario("phi-4-l40s.toml", "limits.prompt_capacity_tokens=9000")
    engine = variant.with_system(given, "vllm").system
    assert isinstance(engine, VllmSystem)
    assert engine.max_num_seqs == given.limits.batch_max == 64
    assert engine.max_num_batched_tokens == 9000
    assert not engine.chunked_prefill
    assert not engine.prefix_caching


def test_what_an_engine_was_told_the_next_is_told_too() -> None:
    given = scenario("vllm-rtx4090-measured.toml", "system.async_scheduling=true")
    other = variant.with_system(given, "trtllm").system
    assert isinstance(given.system, HostDrivenSystem)
    assert isinstance(other, TrtllmSystem)
    assert (other.max_num_seqs, other.max_num_batched_tokens, other.num_gpu_blocks) == (256, 2048, 2587)
    assert other.chunked_prefill
    assert other.prefix_caching
    assert (other.profile, other.async_scheduling) == ("trtllm-1.1", None)
    onward = variant.with_system(given, "blink")
    assert isinstance(onward.system, BlinkSystem)
    assert onward.limits.batch_max == 256


def test_colocated_is_the_scenarios_own_or_the_published_mix() -> None:
    given = scenario()
    published = interference_of(variant.with_interference(given, "colocated"))
    assert [(job.profile.name, job.threads) for job in published.jobs] == [("pbzip2", 45.0), ("llvm-build", 45.0)]
    own = scenario("llama3-8b-h100.toml", 'interference.jobs=[{profile="memory-hog", threads=8}]')
    assert variant.with_interference(own, "colocated") == own
    assert variant.with_interference(own, "none").interference.jobs == ()


def test_a_smaller_host_gets_a_smaller_mix() -> None:
    given = scenario("llama3-8b-h100.toml", "host.profile=h200-node")
    jobs = interference_of(variant.with_interference(given, "colocated")).jobs
    assert [job.threads for job in jobs] == [5.0, 5.0]


def test_threads_are_those_of_all_jobs() -> None:
    given = scenario()
    assert [job.threads for job in interference_of(variant.with_threads(given, 30)).jobs] == [15.0, 15.0]
    assert variant.with_threads(given, 0) == variant.with_interference(given, "none")
    assert interference_of(variant.with_threads(given, 90)) == interference_of(
        variant.with_interference(given, "colocated")
    )


def test_rate_seed_and_number_of_requests() -> None:
    given = scenario()
    assert variant.with_rate(given, 3.5).resolved()["workload"]["arrivals"]["rate"] == 3.5
    assert variant.with_seed(given, 9).seed == 9
    assert variant.with_requests(given, 20).workload.requests == 20
    assert variant.with_requests(variant.with_requests(given, 20), 30).workload.requests == 20
    assert sections_changed(given, variant.with_rate(given, 3.5)) == {"workload"}


def test_mitigations_replace_the_scenarios_own() -> None:
    given = scenario("llama3-8b-h100.toml", "mitigations.pinning=true")
    assert variant.with_mitigations(given, ["none"]).mitigations.model_dump() == scenario().mitigations.model_dump()
    found = variant.with_mitigations(given, ["cat=4", "nice"]).mitigations
    assert (found.cat_ways, found.nice, found.pinning) == (4, -20, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: variant.with_system(given, "tgi"), "system 'tgi' is not known; allowed: blink, cpu-resident"),
        (lambda given: variant.with_interference(given, "some"), "'some' is not known; allowed: none, colocated"),
        (lambda given: variant.with_threads(given, 91), "91 interferer threads are not allowed; allowed: 0 to 90"),
        (lambda given: variant.with_threads(given, -1), "-1 interferer threads"),
        (lambda given: variant.with_rate(given, 0.0), "workload.arrivals.rate = 0.0"),
        (lambda given: variant.with_seed(given, -1), "seed = -1"),
        (lambda given: variant.with_mitigations(given, ["prayer"]), "'prayer' is not known; allowed: none, huge"),
        (lambda given: variant.with_mitigations(given, ["none", "cat"]), "'none' is not known"),
        (lambda given: variant.with_mitigations(given, ["cat", "cat=2"]), "cat is given twice"),
        (lambda given: variant.with_mitigations(given, ["pinning=1"]), "allowed: cat=WAYS and nice=LEVEL"),
        (lambda given: variant.with_mitigations(given, ["cat=many"]), "allowed: cat=WAYS and nice=LEVEL"),
        (lambda given: variant.with_mitigations(given, ["nice=40"]), "mitigations.nice = 40"),
    ],
)
def test_what_cannot_be_is_refused(change: Callable[[Scenario], Scenario], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)) as refused:
        change(scenario())
    assert "\n" not in str(refused.value)


def test_a_load_without_a_rate_has_none() -> None:
    for given in (scenario("closed-loop-batch.toml"), scenario("vllm-rtx4090-measured.toml")):
        with pytest.raises(InputError, match="has no rate"):
            variant.with_rate(given, 2.0)


def test_a_host_without_a_thread_left_takes_no_jobs() -> None:
    given = scenario("llama3-8b-h100.toml", "host.profile=h200-node", "host.reserved_cores=16")
    with pytest.raises(InputError, match="no hardware thread"):
        variant.with_interference(given, "colocated")


def test_measurements_in_a_file_cannot_be_scaled() -> None:
    document: dict[str, Any] = scenario().resolved()
    document["interference"] = {"jobs": [{"file": "mine.csv", "threads": 1}]}
    with pytest.raises(InputError, match="cannot be scaled"):
        variant.with_threads(parse_scenario(document, "mine"), 30)
