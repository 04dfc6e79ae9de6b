"""The host model's limits: nothing beside it changes nothing, more of it is never better, and arithmetic by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.common.errors import InputError
from blink.perf.host.conditions import HostConditions, conditions
from blink.perf.host.interference import Interference, InterfererProfile, Job, Mitigations
from blink.perf.host.memory import instruction_ns, miss_rate
from blink.perf.host.operation import HostOp, load_operations
from blink.perf.host.stall import KernelQueue
from tests.unit.host_cases import NOTHING, RESERVED, XEON, beside, published_jobs

JOBS = ("pbzip2", "llvm-build", "memory-hog", "page-fault", "bz2-fault")
OPERATIONS = load_operations()


def tail_ns(found: HostConditions) -> float:
    """P99.9 of stretches of 20 ms: beyond the share that no stall of another job hits, so a tail of stalls."""
    stretches = np.full(200_000, 20_000_000)
    return float(np.percentile(found.op_ns_many(HostOp.SCHEDULE, stretches, np.random.default_rng(1)), 99.9))


@pytest.mark.parametrize("reserved", [0, RESERVED])
def test_without_other_jobs_nothing_changes(reserved: int) -> None:
    found = beside(0, reserved=reserved)
    assert set(found.inflation.values()) == {1.0}
    assert set(found.inflation) == set(HostOp)
    assert [source.name for source in found.stall.sources] == ["noise"]
    assert found.device_path_ratio == 1.0
    counters = found.counters
    assert (counters.dtlb_misses_ratio, counters.walk_active_ratio, counters.llc_stall_ratio) == (1.0, 1.0, 1.0)
    assert counters.llc_miss_rate == XEON.llc_miss_floor
    assert found.wakeup_ns(np.random.default_rng(1)) == XEON.wakeup_ns


def test_mitigations_of_nothing_change_nothing_that_matters() -> None:
    idle = beside(0, Mitigations(pinning=True, dedicated_cores=True, nice=-20, huge_pages_interferer=True))
    assert set(idle.inflation.values()) == {1.0}
    assert idle.stall == beside(0).stall


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(JOBS),
    fewer=st.floats(0, 120),
    more=st.floats(0, 40),
    reserved=st.sampled_from([0, 6, 48]),
    placement=st.sampled_from(["spread", "near"]),
    ways=st.sampled_from([None, 1, 5, 12]),
)
def test_more_threads_are_never_better(
    name: str, fewer: float, more: float, reserved: int, placement: str, ways: int | None
) -> None:
    profile = InterfererProfile.load(name)

    def state(threads: float) -> HostConditions:
        jobs = Interference((Job(profile, threads),), placement)  # type: ignore[arg-type]
        return conditions(XEON, jobs, Mitigations(cat_ways=ways), 6, reserved_cores=reserved)

    few, many = state(fewer), state(fewer + more)
    for kind in HostOp:
        assert many.inflation[kind] >= few.inflation[kind] * (1 - 1e-12)
    assert many.stall.load >= few.stall.load * (1 - 1e-12)
    assert many.cores.kernel.busy >= few.cores.kernel.busy
    assert many.cores.competitors >= few.cores.competitors
    assert many.counters.cores_available <= few.counters.cores_available
    assert many.counters.llc_stall_ratio >= few.counters.llc_stall_ratio * (1 - 1e-12)
    # Once the engine's socket is full, further threads only send invalidations from the other one: walks add accesses
    # of the engine, it holds a little more of the LLC, and its miss rate may fall while its stalls still grow.
    if placement == "spread" or fewer + more <= XEON.threads_per_socket - reserved:
        assert many.counters.llc_miss_rate >= few.counters.llc_miss_rate - 1e-12
    assert many.device_path_ratio >= few.device_path_ratio


def test_the_sweep_of_the_published_jobs_degrades_step_by_step() -> None:
    swept = [beside(threads) for threads in range(0, 91, 10)]
    means = [found.mean_op_ns(HostOp.SCHEDULE, 1e6) for found in swept]
    assert means == sorted(means)
    assert len(set(means)) == len(means)
    assert means[-1] > 2.0 * means[1]
    assert max(found.device_path_ratio for found in swept) < 1.02


def test_every_job_changes_a_counter_of_its_kind() -> None:
    def state(name: str) -> HostConditions:
        jobs = Interference((Job(InterfererProfile.load(name), 40),))
        return conditions(XEON, jobs, NOTHING, 6, reserved_cores=RESERVED)

    hog, faults = state("memory-hog").counters, state("page-fault").counters
    assert hog.memory_utilization > 0.85 > faults.memory_utilization
    assert faults.dtlb_misses_ratio > 1.5 > hog.dtlb_misses_ratio


# --- mitigations: the published directions, at the published 24 threads ---


def test_huge_pages_of_the_engine_help_its_tlb_and_hardly_its_time() -> None:
    plain, huge = beside(24, placement="near"), beside(24, Mitigations(huge_pages_victim=True), "near")
    change = huge.counters.dtlb_misses_ratio / plain.counters.dtlb_misses_ratio - 1
    assert change == pytest.approx(-0.16, abs=1e-9)
    for kind in HostOp:
        assert 0.95 < huge.inflation[kind] / plain.inflation[kind] < 1.0
    assert huge.stall == plain.stall
    assert tail_ns(huge) == pytest.approx(tail_ns(plain), rel=0.10)


def test_huge_pages_of_the_jobs_leave_the_cache_and_lengthen_the_tail() -> None:
    plain, huge = beside(24, placement="near"), beside(24, Mitigations(huge_pages_interferer=True), "near")
    assert huge.counters.llc_miss_rate == pytest.approx(plain.counters.llc_miss_rate, abs=0.005)
    assert huge.cores.kernel.section_ns > plain.cores.kernel.section_ns
    assert huge.stall.load == pytest.approx(plain.stall.load)
    assert tail_ns(huge) > tail_ns(plain)


def test_cache_ways_clear_the_cache_and_not_the_stalls() -> None:
    plain = beside(24, placement="near")
    by_ways = {ways: beside(24, Mitigations(cat_ways=ways), "near") for ways in range(1, 13)}
    misses = [found.counters.llc_miss_rate for found in by_ways.values()]
    assert misses == sorted(misses, reverse=True)
    assert misses[0] < 0.2 * plain.counters.llc_miss_rate, "what is reused fits into one way"
    assert by_ways[7].counters.llc_miss_rate == pytest.approx(0.07, abs=0.01)
    assert by_ways[12].counters.llc_miss_rate == pytest.approx(0.07, abs=0.01)
    assert plain.counters.llc_stall_ratio / by_ways[7].counters.llc_stall_ratio > 5
    for found in by_ways.values():
        assert found.stall == plain.stall
        assert found.cores == plain.cores


def test_nice_has_no_effect_on_cores_that_no_other_job_enters() -> None:
    plain, nice = beside(24), beside(24, Mitigations(nice=-20))
    assert nice.inflation == plain.inflation
    assert nice.stall == plain.stall
    assert nice.counters == plain.counters


def test_nice_helps_where_user_threads_compete() -> None:
    plain, nice, meek = (beside(120, Mitigations(nice=level), reserved=0) for level in (0, -20, 10))
    assert nice.stall.load < plain.stall.load < meek.stall.load


def test_pinning_saves_migrations_and_keeps_the_stalls() -> None:
    plain, pinned = beside(90), beside(90, Mitigations(pinning=True))
    assert pinned.counters.dtlb_misses_ratio < plain.counters.dtlb_misses_ratio
    assert pinned.stall.load == plain.stall.load
    assert tail_ns(pinned) == pytest.approx(tail_ns(plain), rel=0.05)


def test_isolated_cores_keep_a_part_of_the_kernel_away_and_leave_the_cache_as_it_is() -> None:
    plain, isolated = beside(90), beside(90, Mitigations(dedicated_cores=True))
    assert 0.0 < isolated.cores.kernel.busy < plain.cores.kernel.busy
    assert isolated.counters.llc_miss_rate == pytest.approx(plain.counters.llc_miss_rate, abs=0.01)
    assert min(isolated.inflation.values()) > 1.4


# --- arithmetic by hand ---


def test_an_instruction_costs_its_parts() -> None:
    host = dataclasses.replace(XEON, frequency_hz=2e9, llc_ns=20.0, walk_fixed_ns=4.0, walk_llc_accesses=1.0)
    op = dataclasses.replace(
        OPERATIONS[HostOp.LAUNCH],
        core_cycles_per_instruction=1.0,
        instructions_per_llc_access=100.0,
        instructions_per_walk=1000.0,
    )
    # 0.5 ns; an access is 20 + 0.25 (100 - 20) = 40 ns; a walk 44 ns, twice as often.
    assert instruction_ns(host, op, 2.0, 0.25, 100.0) == pytest.approx(0.5 + 0.40 + 0.088)


def test_a_shared_cache_settles_where_filling_rates_divide_it() -> None:
    host = dataclasses.replace(XEON, llc_bytes=1000, llc_ways=10, llc_miss_floor=0.0)
    # held = 1000 m / (m + 1), m = 1 - held / 800  ->  4 m^2 + 5 m - 4 = 0
    miss = miss_rate(host, NOTHING, 800.0, 1.0, 1e9, 1.0)
    assert miss == pytest.approx((-5 + math.sqrt(25 + 64)) / 8, abs=1e-9)
    # Jobs of 100 bytes cannot take more than that, and then everything fits.
    assert miss_rate(host, NOTHING, 800.0, 1.0, 100.0, 1.0) == 0.0
    # Four private ways of ten hold half of 800 bytes.
    assert miss_rate(host, Mitigations(cat_ways=4), 800.0, 1.0, 1e9, 1.0) == pytest.approx(0.5)


def test_oversubscribed_cores_by_hand() -> None:
    # 120 threads of 0.95 on average beside 3 on 96: 114 want 93 free cores, 21 too many on 96.
    found = beside(120, reserved=0)
    assert found.cores.competitors == pytest.approx(21 / 96)
    slices = next(source for source in found.stall.sources if source.name == "slices")
    assert slices.rate_per_s == pytest.approx(250.0)
    assert slices.load == pytest.approx(21 / 96)


def test_the_mean_is_what_is_drawn() -> None:
    found = beside(90)
    rng = np.random.default_rng(7)
    drawn = [found.op_ns(HostOp.LAUNCH, 2_000_000, rng) for _ in range(20_000)]
    many = found.op_ns_many(HostOp.LAUNCH, np.full(200_000, 2_000_000), np.random.default_rng(8))
    expected = found.mean_op_ns(HostOp.LAUNCH, 2_000_000)
    assert sum(drawn) / len(drawn) == pytest.approx(expected, rel=0.06)
    assert int(many.sum()) / len(many) == pytest.approx(expected, rel=0.02)
    assert min(drawn) >= round(2_000_000 * found.inflation[HostOp.LAUNCH])


def test_a_wake_up_waits_for_the_kernel_as_often_as_it_is_there() -> None:
    found = beside(90)
    rng = np.random.default_rng(9)
    late = [found.wakeup_ns(rng) for _ in range(20_000)]
    queue = found.cores.kernel
    expected = XEON.wakeup_ns + queue.busy * queue.section_ns / (1 - queue.busy) ** 2
    assert sum(late) / len(late) == pytest.approx(expected, rel=0.03)
    assert min(late) == XEON.wakeup_ns


@pytest.mark.parametrize("busy", [0.05, 0.5, 0.8])
def test_the_kernel_s_queue_has_the_mean_and_variance_of_an_exact_one(busy: float) -> None:
    queue, rng = KernelQueue(busy, 1e6), np.random.default_rng(5)
    drawn = queue.draw_periods_ns(200_000, rng)
    assert float(drawn.mean()) == pytest.approx(1e6 / (1 - busy), rel=0.03)
    assert float(drawn.var()) == pytest.approx(1e12 * (1 + busy) / (1 - busy) ** 3, rel=0.25)
    exact = [busy_period_ns(busy, 1e6, rng) for _ in range(4_000)]
    for percent in (90, 99):
        assert np.percentile(drawn, percent) == pytest.approx(float(np.percentile(exact, percent)), rel=0.15)
    left = [queue.draw_remaining_ns(rng) for _ in range(50_000)]
    assert sum(left) / len(left) == pytest.approx(1e6 / (1 - busy) ** 2, rel=0.06)


def busy_period_ns(busy: float, section_ns: float, rng: np.random.Generator) -> float:
    """A busy period of M/M/1, event by event."""
    waiting, time_ns = 1, 0.0
    while waiting:
        time_ns += float(rng.exponential(section_ns / (1 + busy)))
        waiting += 1 if float(rng.random()) < busy / (1 + busy) else -1
    return time_ns


def test_the_same_seed_draws_the_same() -> None:
    found, again = beside(90), beside(90)
    assert found == again
    one, two = np.random.default_rng(3), np.random.default_rng(3)
    assert [found.op_ns(HostOp.IPC, 50_000, one) for _ in range(500)] == [
        again.op_ns(HostOp.IPC, 50_000, two) for _ in range(500)
    ]
    assert [found.spin_ns(1e6, one) for _ in range(500)] == [again.spin_ns(1e6, two) for _ in range(500)]


def test_spinning_never_ends_early() -> None:
    found, rng = beside(90), np.random.default_rng(4)
    assert all(found.spin_ns(1e6, rng) >= 1_000_000 for _ in range(2_000))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mitigations": Mitigations(cat_ways=13)}, "mitigations.cat_ways = 13: must be between 1 and 12"),
        ({"mitigations": Mitigations(nice=20)}, "mitigations.nice = 20: must be between -20 and 19"),
        ({"reserved_cores": 97}, "host.reserved_cores = 97: must be between 0 and 96"),
        ({"victim_threads": 0}, "victim_threads: 0 is not allowed"),
    ],
)
def test_what_the_host_does_not_have_is_refused(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"mitigations": NOTHING, "victim_threads": 6, "reserved_cores": 6, **change}
    with pytest.raises(InputError, match=message):
        conditions(XEON, published_jobs(10), **arguments)  # type: ignore[arg-type]
