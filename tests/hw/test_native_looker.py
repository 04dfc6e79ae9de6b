"""A second reader of trace records sees what another one drains, once, and takes nothing away."""

from __future__ import annotations

import numpy as np

from blink.hw.native.instance import Instance
from blink.hw.native.library import address_of, load_library
from blink.hw.native.looker import Looker
from tests.hw.native_help import needs_compiler, small_settings

pytestmark = needs_compiler
CAPACITY = 1 << 14


def made(instance: Instance, first: int, count: int) -> None:
    """Records with numbers in place of times."""
    records = np.zeros(count, instance.library.dtypes["record"])
    records["t_ns"] = np.arange(first, first + count)
    assert instance.library.append(instance.base, address_of(records), count) == count


def seen(looker: Looker) -> list[int]:
    found: list[int] = []
    while (records := looker.look()).size:
        found += records["t_ns"].tolist()
    return found


def test_records_are_seen_once_whether_they_were_drained_or_not_around_the_end_of_their_ring() -> None:
    instance = Instance(load_library(), small_settings(trace_capacity=CAPACITY))
    try:
        looker, step = Looker(instance), 5_000
        assert seen(looker) == []
        for first in range(0, 3 * CAPACITY, step):
            made(instance, first, step)
            drained = instance.drain()["t_ns"].tolist() if first % (2 * step) else None
            assert seen(looker) == list(range(first, first + step))
            assert seen(looker) == []
            assert (drained or instance.drain()["t_ns"].tolist()) == list(range(first, first + step))
    finally:
        instance.close()


def test_who_looks_too_rarely_goes_on_with_what_comes_then() -> None:
    instance = Instance(load_library(), small_settings(trace_capacity=CAPACITY))
    try:
        looker = Looker(instance)
        made(instance, 0, CAPACITY // 2 + 1)
        assert seen(looker) == []
        made(instance, 9, 3)
        assert seen(looker) == [9, 10, 11]
    finally:
        instance.close()
