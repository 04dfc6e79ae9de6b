"""Several engines on one host: what they share, what they do not, and what is left for other jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from blink.common.config import parse_scenario
from blink.common.errors import InputError
from blink.perf.host.conditions import HostConditions, conditions
from blink.perf.host.interference import Interference
from blink.perf.host.operation import HostOp
from blink.perf.host.scenario import host_conditions, interference_of
from blink.perf.placement import Placement
from tests.runs import SCENARIO
from tests.unit.host_cases import BUSY, NOTHING, RESERVED, XEON, published_jobs


def among(engines: int, threads: float = 0.0, reserved: int = RESERVED, busy: int = BUSY) -> HostConditions:
    """So many engines on the published testbed, beside so many threads of other jobs."""
    mix = replace(published_jobs(threads), neighbours=engines - 1)
    return conditions(XEON, mix, NOTHING, busy, reserved_cores=reserved)


@pytest.mark.parametrize("reserved", [0, RESERVED])
def test_alone_on_the_host_a_few_engines_disturb_nobody(reserved: int) -> None:
    """Each finds its lines again: eight of them reuse less than half of the cache, and have cores of their own."""
    for engines in (1, 2, 4, 8):
        found = among(engines, reserved=reserved)
        assert max(found.inflation.values()) < 1.001
        assert found.counters.llc_miss_rate == XEON.llc_miss_floor
        assert found.cores.competitors == 0.0


def test_a_cache_that_holds_one_engine_is_too_small_for_several() -> None:
    small = replace(XEON, llc_bytes=2_000_000)
    one, two, four = (
        conditions(small, Interference(neighbours=count), NOTHING, BUSY, reserved_cores=RESERVED) for count in (0, 1, 3)
    )
    assert one.counters.llc_miss_rate == XEON.llc_miss_floor
    assert one.counters.llc_miss_rate < two.counters.llc_miss_rate < four.counters.llc_miss_rate < 1.0
    # Two sockets: on each there is one and a half of four neighbours' shares beside its own; 2.5 share 2 MB.
    assert four.counters.llc_miss_rate == pytest.approx(0.07 + 0.93 * (1 - 2.0 / 2.5 / 1.8), rel=0.01)
    assert four.inflation[HostOp.SCHEDULE] > two.inflation[HostOp.SCHEDULE] > 1.0


def test_beside_jobs_each_neighbour_takes_a_part_of_what_the_engines_hold_of_the_cache() -> None:
    miss = [among(engines, 24.0).counters.llc_miss_rate for engines in (1, 2, 4, 8)]
    assert miss == sorted(miss)
    used = [among(engines, 24.0).counters.memory_utilization for engines in (1, 2, 4, 8)]
    assert used == sorted(used) and used[-1] > used[0]


def test_without_cores_of_their_own_engines_compete_once_their_threads_exceed_the_hosts() -> None:
    fits, full, over = (among(engines, reserved=0, busy=12) for engines in (8, 9, 16))
    assert fits.cores.competitors == full.cores.competitors - XEON.crowding * 12 / 96 == 0.0
    assert over.cores.competitors == pytest.approx(XEON.crowding * (16 * 12 - 96) / 96)
    assert over.stall.load > fits.stall.load


def test_the_kernels_roaming_work_is_spread_over_the_reserved_threads_of_all_engines() -> None:
    one, four = among(1, 60.0), among(4, 60.0)
    work, jobs = published_jobs(60).total("kernel_share"), published_jobs(60).total("cpu_share")
    assert one.cores.kernel.busy == pytest.approx(work / (6 + 90 - jobs))
    assert four.cores.kernel.busy == pytest.approx(work / (24 + 72 - jobs))


def test_engines_that_keep_more_threads_than_the_host_has_are_refused() -> None:
    with pytest.raises(InputError, match=r"host\.reserved_cores = 16: 7 engines on a host keep 112 hardware threads"):
        among(7, reserved=16)


def scenario(kind: str = "vllm", **host: Any) -> Any:
    jobs = [{"profile": "pbzip2", "threads": 45}, {"profile": "llvm-build", "threads": 45}]
    document = {
        **SCENARIO,
        "system": {"kind": kind},
        "interference": {"jobs": jobs},
        "host": {"reserved_cores": 6, **host},
    }
    return parse_scenario({**document, "fleet": {"replicas": 10}}, "s")


def test_jobs_that_fill_the_host_have_what_all_its_engines_leave() -> None:
    found = scenario()
    assert [interference_of(found, engines).threads for engines in (1, 2, 8)] == [90, 84, pytest.approx(48)]
    assert interference_of(found, 8).neighbours == 7
    few = parse_scenario({**found.resolved(), "interference": {**found.resolved()["interference"], "threads": 24}}, "s")
    assert [interference_of(few, engines).threads for engines in (1, 8)] == [24, 24]
    assert host_conditions(found, BUSY, 1) == host_conditions(found, BUSY)


def test_replicas_fill_hosts_one_after_the_other() -> None:
    found = Placement.of(scenario())
    assert (found.per_host, found.hosts(8), found.hosts(9)) == (8, 1, 2)
    assert [found.engines(place, 10) for place in range(10)] == [8] * 8 + [2] * 2
    assert [Placement.of(scenario("blink")).engines(place, 10) for place in (0, 9)] == [1, 1], "nothing to Blink"


def test_a_host_holds_no_more_replicas_than_it_has_threads_to_keep_for_them() -> None:
    found = Placement.of(scenario(reserved_cores=20))
    assert (found.per_host, found.hosts(10)) == (4, 3)
    assert Placement.of(scenario("blink", reserved_cores=20)).per_host == 8
