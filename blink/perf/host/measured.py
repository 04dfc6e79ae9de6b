"""MeasuredWork: a user's own measurement of host work beside a job, in place of a profile of that job."""

from __future__ import annotations

import csv
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

from blink.common.errors import InputError
from blink.common.units import NS_PER_S

COLUMNS = ["base_ns", "elapsed_ns"]
STALL_SHARE = 0.5  # a stretch that takes this much longer than the median says was interrupted, not slowed


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """What a file of stretches says: a slow-down of all work, and interruptions with their lengths as they were."""

    inflation: float
    stalls_per_s: float
    stall_lengths_ns: tuple[float, ...]

    @classmethod
    def read(cls, path: str | Path) -> MeasuredWork:
        """Read a CSV file with the columns `base_ns` and `elapsed_ns`: one row is the same stretch of work undisturbed
        and beside the job. A stretch far beyond the median ratio was interrupted; the others give the slow-down.

        Raises InputError that names the file, the row and what is allowed.
        """
        rows = _rows(Path(path))
        median = statistics.median(elapsed / base for base, elapsed in rows)
        smooth = [(base, elapsed) for base, elapsed in rows if elapsed <= (1.0 + STALL_SHARE) * median * base]
        inflation = math.fsum(elapsed for _, elapsed in smooth) / math.fsum(base for base, _ in smooth)
        inflation = max(1.0, inflation)
        limit = (1.0 + STALL_SHARE) * median
        lengths = tuple(elapsed - inflation * base for base, elapsed in rows if elapsed > limit * base)
        worked_ns = inflation * math.fsum(base for base, _ in rows)
        return cls(inflation, len(lengths) / worked_ns * NS_PER_S, tuple(x for x in lengths if x > 0.0))


def _rows(path: Path) -> list[tuple[float, float]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            head = next(reader, [])
            if head != COLUMNS:
                raise InputError(f"{path}: line 1: {','.join(head)!r}; allowed: the columns {','.join(COLUMNS)}")
            rows = [_row(path, reader.line_num, cells) for cells in reader if cells]
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a CSV file: {error}") from error
    if not rows:
        raise InputError(f"{path}: no rows; allowed: at least one stretch of work")
    return rows


def _row(path: Path, line: int, cells: list[str]) -> tuple[float, float]:
    try:
        base, elapsed = (float(cell) for cell in cells)
    except ValueError:
        base = elapsed = math.nan
    if not (0.0 < base < math.inf and 0.0 < elapsed < math.inf):
        raise InputError(f"{path}: line {line}: {','.join(cells)!r}; allowed: two times in ns above 0")
    return base, elapsed
