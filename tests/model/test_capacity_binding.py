"""What binds: each resource is named where it is made scarce, and none where none helps."""

from __future__ import annotations

from typing import Any

import pytest

from blink.common.states import SLOT_COUNT
from blink.plan.capacity.binding import NOTHING, RESOURCES, Relief, binding, relieve
from blink.plan.capacity.candidate import candidates_of
from blink.plan.capacity.search import CapacitySearch
from tests.model.test_capacity import question

FIXED = "workload.lengths={kind='fixed', prompt_tokens=%d, output_tokens=%d}"
SCARCE: dict[str, dict[str, Any]] = {
    "compute": {"set": [FIXED % (4000, 4)], "traffic": {"rate": 14.0, "window_s": 10.0}},
    "bandwidth": {"set": [FIXED % (50, 300)], "traffic": {"rate": 10.0, "window_s": 10.0}, "slo": {"p99_tpot_ms": 7.2}},
    "kv": {
        "set": [FIXED % (1500, 300), "gpu.memory_utilization=0.22"],
        "traffic": {"rate": 6.0, "window_s": 10.0},
    },
    "batch": {"set": [FIXED % (100, 200), "limits.batch_max=8"], "traffic": {"rate": 8.0, "window_s": 10.0}},
    "host": {
        "set": [FIXED % (100, 200)],
        "traffic": {"rate": 20.0, "window_s": 10.0},
        "slo": {"p99_tpot_ms": 15.0},
        "candidates": {"systems": ["vllm"], "interference": ["colocated"]},
    },
}


@pytest.mark.parametrize("resource", SCARCE)
def test_the_resource_that_is_scarce_is_named(resource: str) -> None:
    asked = question(**SCARCE[resource])
    search = CapacitySearch(asked, candidates_of(asked), None)
    trial = search.trials[0]
    search.run_more([(trial, 1)])
    assert not search.stands(trial, 1), search.worst(trial, 1)
    found = binding(relieve(search, trial, 1))
    assert found is not None and found.resource == resource, found


def relief(resource: str, ratio: float, meets: bool = False) -> Relief:
    return Relief(resource, 2.0, 100.0 * ratio, ratio, meets)


def test_what_would_do_goes_before_what_helps_more_and_nothing_is_named_for_a_little() -> None:
    nothing = relief(NOTHING, 1.0)
    assert binding([nothing]) is None
    assert binding([nothing, relief("kv", 0.95)]) is None
    assert binding([nothing, relief("kv", 0.95, meets=True)]).resource == "kv"  # type: ignore[union-attr]
    assert binding([nothing, relief("host", 0.2), relief("batch", 0.7, meets=True)]).resource == "batch"  # type: ignore[union-attr]
    assert binding([nothing, relief("host", 0.2), relief("slots", 0.0)]).resource == "slots"  # type: ignore[union-attr]
    assert set(RESOURCES) == {"compute", "bandwidth", "kv", "host", "batch", "slots"}


def test_slots_bind_where_more_requests_wait_than_the_ring_has() -> None:
    asked = question(set=[FIXED % (20, 40), "limits.batch_max=16"], traffic={"rate": 700.0, "window_s": 10.0})
    search = CapacitySearch(asked, candidates_of(asked), None)
    trial = search.trials[0]
    search.run_more([(trial, 1)])
    (figures,) = search.run_all([search.point(trial.candidate, 1, search.seeds[0])])
    assert figures["slots_in_use_max"] <= SLOT_COUNT
    found = {one.resource for one in relieve(search, trial, 1)}
    assert "slots" in found
