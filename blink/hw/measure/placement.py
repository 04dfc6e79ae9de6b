"""Where threads run: the core of each, read from the system again and again while something else goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from blink.common.results import I64
from blink.perf.calibration.host import PLACEMENT_PERIOD_S as PERIOD_S

NOWHERE = -1
_PROCESSOR = 36  # of the fields of /proc/PID/stat that follow the name


@dataclass(slots=True)
class Placements:
    """Samples, PERIOD_S apart, of the core of each process, and of this process's thread of one name last."""

    rows: list[list[int]] = field(default_factory=list)

    def table(self) -> I64:
        """Shape (samples, processes + 1); NOWHERE for a thread that was not there."""
        return np.array(self.rows, np.int64).reshape(len(self.rows), -1)


@contextmanager
def placements(processes: Sequence[int], thread_name: str) -> Iterator[Placements]:
    """Sample while the context is open."""
    found, ended = Placements(), threading.Event()

    def sample() -> None:
        while not ended.wait(PERIOD_S):
            own = [thread.native_id for thread in threading.enumerate() if thread.name == thread_name]
            paths = [f"/proc/{process}/stat" for process in processes]
            paths.append(f"/proc/self/task/{own[-1] if own else 'none'}/stat")
            found.rows.append([_core(path) for path in paths])

    sampler = threading.Thread(target=sample, name="placements", daemon=True)
    sampler.start()
    try:
        yield found
    finally:
        ended.set()
        sampler.join()


def _core(path: str) -> int:
    try:
        return int(Path(path).read_text().rpartition(")")[2].split()[_PROCESSOR])
    except OSError:  # it has ended, or has not begun
        return NOWHERE
