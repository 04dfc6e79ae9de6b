"""[host], [interference] and [mitigations] of a scenario, and what a run of Blink feels of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blink.common.config import Scenario, load_scenario, parse_scenario, to_toml
from blink.common.config.system import VllmSystem
from blink.common.errors import InputError
from blink.common.summary import summarize
from blink.perf.host.scenario import host_conditions, interference_of
from blink.sim.engines.run import simulate_engine
from blink.sim.run import simulate
from blink.workload.build import build_load
from tests.runs import SCENARIO
from tests.unit.host_cases import BUSY, beside

JOBS = [{"profile": "pbzip2", "threads": 45}, {"profile": "llvm-build", "threads": 45}]


def scenario(*overrides: str, **tables: Any) -> Scenario:
    return parse_scenario({**SCENARIO, "interference": {"jobs": JOBS}, **tables}, "s", overrides)


def test_the_published_testbed_is_three_lines_of_a_scenario() -> None:
    assert host_conditions(scenario(), BUSY) == beside(90)


def test_threads_scale_all_jobs_alike() -> None:
    found = interference_of(scenario("interference.threads=24"))
    assert [job.threads for job in found.jobs] == [12, 12]
    assert interference_of(scenario("interference.threads=0")).threads == 0


def test_mitigations_reach_the_model() -> None:
    found = host_conditions(scenario("mitigations.cat_ways=7", "interference.placement=near"), 6)
    assert found.counters.llc_miss_rate == pytest.approx(0.07, abs=0.01)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("interference.jobs=[{threads=3}]", r"interference\.jobs\[0\]\.profile: is missing: give profile or file"),
        ("interference.jobs=[{profile='pbzip2',threads=-1}]", r"interference\.jobs\[0\]\.threads = -1"),
        ("interference.jobs=7", r"interference\.jobs = 7: must be a list of tables"),
        ("mitigations.nice=-21", r"mitigations\.nice = -21: must be a whole number between -20 and 19"),
    ],
)
def test_what_is_wrong_is_named(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        scenario(override)


def test_rules_across_options_are_named() -> None:
    with pytest.raises(InputError, match=r"interference\.threads = 5: jobs has no threads"):
        scenario("interference.jobs=[]", "interference.threads=5")
    with pytest.raises(InputError, match=r"mitigations\.dedicated_cores = true: needs host\.reserved_cores"):
        scenario("host.reserved_cores=0", "mitigations.dedicated_cores=true")
    with pytest.raises(InputError, match="no hardware thread is left"):
        host_conditions(scenario("host.reserved_cores=96"), 6)
    with pytest.raises(InputError, match="interferer: 'nobody' is not allowed"):
        host_conditions(scenario("interference.jobs=[{profile='nobody',threads=3}]"), 6)


def test_a_file_of_measurements_lies_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("base_ns,elapsed_ns\n1000,3000\n", encoding="utf-8")
    document = {**SCENARIO, "interference": {"jobs": [{"file": "mine.csv", "threads": 1}]}}
    (tmp_path / "s.toml").write_text(to_toml(document), encoding="utf-8")
    found = host_conditions(load_scenario(tmp_path / "s.toml"), 6)
    assert min(found.inflation.values()) == pytest.approx(3.0)


def run(threads: int) -> dict[str, Any]:
    document = {**SCENARIO, "trace": {"format": "none"}, "workload": {**SCENARIO["workload"], "requests": 60}}
    found, requests = build_load(parse_scenario({**document, "interference": {"jobs": JOBS, "threads": threads}}, "s"))
    return summarize(simulate(found, requests))


def test_blink_stays_flat_beside_other_jobs() -> None:
    quiet, loud = run(0), run(90)
    for name in ("output_throughput", "p99_ttft_ms", "p99_tpot_ms", "p99_itl_ms"):
        assert loud[name] == pytest.approx(quiet[name], rel=0.01)
    # What it does feel: its path through the host, and the power of the CPUs that others keep busy.
    energy = [summary["blink"]["accounts"]["energy_mj_per_token"] for summary in (quiet, loud)]
    assert 1.05 < energy[1] / energy[0] < 1.3


def test_a_host_driven_engine_degrades_thread_by_thread() -> None:
    document = {**SCENARIO, "trace": {"format": "none"}, "system": {"kind": "vllm"}}

    def mean_tpot_ms(threads: int) -> float:
        jobs = {"jobs": JOBS, "threads": threads}
        found, requests = build_load(parse_scenario({**document, "interference": jobs}, "s"))
        assert isinstance(found.system, VllmSystem)
        return float(summarize(simulate_engine(found, found.system, requests))["mean_tpot_ms"])

    swept = [mean_tpot_ms(threads) for threads in (0, 30, 60, 90)]
    assert swept == sorted(swept)
    assert swept[-1] > 2 * swept[0]
