"""Many runs at once: the same results for any number of workers, one clear error, an end in order."""

from __future__ import annotations

import json

import pytest

from blink.common.config import load_scenario
from blink.common.errors import InputError
from blink.plan.point import Point, run_point, run_points
from blink.plan.variant import with_interference, with_requests, with_seed, with_system
from tests.shared import ROOT

TINY = load_scenario(ROOT / "scenarios" / "ci-tiny.toml")


def points() -> list[Point]:
    base = with_requests(TINY, 12)
    return [
        Point(
            (("system", kind), ("interference", level), ("seed", seed)),
            with_seed(with_interference(with_system(base, kind), level), seed),
        )
        for kind in ("blink", "vllm")
        for level in ("none", "colocated")
        for seed in (1, 2)
    ]


def test_any_number_of_workers_gives_the_same_bytes_in_the_same_order() -> None:
    calls: list[tuple[int, int]] = []
    one = run_points(points(), workers=1, progress=lambda done, total: calls.append((done, total)))
    two = run_points(points(), workers=2, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(done, 8) for done in range(1, 9)] * 2
    assert [result.key for result in one] == [point.key for point in points()]
    assert [json.dumps(result.summary) for result in one] == [json.dumps(result.summary) for result in two]
    assert len({json.dumps(result.summary) for result in one}) == 8


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_point_that_cannot_run_is_named(workers: int) -> None:
    bad = TINY.model_copy(update={"gpu": TINY.gpu.model_copy(update={"profile": "abacus"})})
    given = [points()[0], Point((("system", "blink"), ("seed", 7)), bad), Point((("seed", 8),), bad), points()[1]]
    with pytest.raises(InputError, match=r"^system blink, seed 7: .*'abacus' is not allowed"):
        run_points(given, workers=workers)


def test_no_worker_is_refused() -> None:
    with pytest.raises(InputError, match="workers = 0: must be at least 1"):
        run_points(points(), workers=0)


def test_a_stop_keeps_what_is_done() -> None:
    done: list[int] = []
    found = run_points(points(), workers=1, progress=lambda count, _: done.append(count), stop=lambda: len(done) >= 3)
    assert [result.key for result in found] == [point.key for point in points()[:3]]


def test_a_stop_ends_the_workers() -> None:
    found = run_points(points(), workers=2, stop=lambda: True)
    assert len(found) < len(points())
    assert all(not result.summary["blink"]["partial"] for result in found)


def test_a_point_that_is_stopped_midway_is_no_result() -> None:
    assert run_point(points()[0], lambda: True) is None


def test_no_points_are_no_results() -> None:
    assert run_points([]) == []
