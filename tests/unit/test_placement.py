"""Where threads run, as /proc says it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from blink.hw.measure.busy import busy_processes
from blink.hw.measure.placement import NOWHERE, placements


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system has no /proc")
def test_each_process_and_the_named_thread_have_a_core() -> None:
    ended = threading.Event()
    mine = threading.Thread(target=ended.wait, name="of the test")
    allowed = os.sched_getaffinity(0)
    with busy_processes(2) as them, placements([*them, 1 << 30], "of the test") as seen:
        while not seen.rows:
            time.sleep(0.01)
        mine.start()
        had = len(seen.rows)
        while len(seen.rows) < had + 2:
            time.sleep(0.01)
        ended.set()
        mine.join()
    table = seen.table()
    assert table.shape[1] == 4
    assert set(table[:, :2].ravel().tolist()) <= allowed
    assert set(table[:, 2].tolist()) == {NOWHERE}
    assert NOWHERE in table[:, 3].tolist()
    assert table[-1, 3] in allowed
