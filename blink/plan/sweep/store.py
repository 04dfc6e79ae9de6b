"""The results of a sweep in one Parquet file that is whole at every moment, whatever ends the program.

The file is written anew beside its place, flushed to the disk and renamed, after every point, or, once it takes long,
so seldom that this costs a tenth of the time, but every ten seconds. Rows stand in the order of the points, not in
that of their ends: the finished file has the same bytes however it came about.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from blink.common.errors import InputError
from blink.plan.sweep.row import DIGEST, ERROR, SUMMARY, Row
from blink.report.rundir import put

RESULTS_NAME = "results.parquet"
KEY = b"blink.sweep"
WRITING_SHARE = 0.1
"""Of the time, what writing may take."""
GAP_MAX_S = 10.0
"""Between two writings at most, however long one takes."""


class Store:
    """The rows of a sweep by place, and their file. Open it with `with`: nobody else may write there meanwhile."""

    def __init__(self, folder: Path | None, definition: dict[str, Any], digests: Sequence[str]) -> None:
        self._path = folder / RESULTS_NAME if folder else None
        self._definition, self._digests = definition, digests
        self._rows: list[Row | None] = [None] * len(digests)
        self._lock, self._dirty, self._next_s = -1, False, 0.0
        self._guard = threading.Lock()
        self._timer: threading.Timer | None = None
        self._failure: InputError | None = None

    def __enter__(self) -> Self:
        if self._path:
            self._lock = os.open(self._path.parent, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(self._lock)
                raise InputError(f"--out {self._path.parent}: another sweep writes there just now") from None
            self._path.with_name(f".{RESULTS_NAME}.part").unlink(missing_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.flush()
        finally:
            if self._lock >= 0:
                os.close(self._lock)

    def take_over(self) -> int:
        """Take the rows that a former run left in the file; returns how many.

        Raises InputError if the file holds points that are not of this sweep: they would be lost.
        """
        if not self._path or not self._path.is_file():
            return 0
        places = {digest: index for index, digest in enumerate(self._digests)}
        _, rows = read_results(self._path)
        for row in rows:
            if row[DIGEST] not in places:
                raise InputError(
                    f"--out {self._path.parent}: holds points of another sweep, of another scenario or by another "
                    "version of the program; allowed: a new folder, or --restart to run all of it anew"
                )
            self._rows[places[row[DIGEST]]] = row
        return len(rows)

    def missing(self) -> list[int]:
        """The places without a row."""
        return [index for index, row in enumerate(self._rows) if row is None]

    def rows(self) -> list[Row]:
        """What there is, in the order of the points."""
        return [row for row in self._rows if row is not None]

    def put(self, index: int, row: Row) -> None:
        """Keep the row of a point, on the disk too, at the latest when the next writing is due."""
        with self._guard:
            self._rows[index] = row
            self._dirty = True
            wait_s = self._next_s - time.monotonic()
            if wait_s <= 0:
                self._write()
            elif self._timer is None:
                # The next run may take an hour: what is done must not wait for it.
                self._timer = threading.Timer(wait_s, self._write_later)
                self._timer.daemon = True
                self._timer.start()
        if self._failure:
            raise self._failure

    def flush(self) -> None:
        """Write what has not been written yet."""
        with self._guard:
            if self._timer:
                self._timer.cancel()
                self._timer = None
            self._write()

    def _write_later(self) -> None:
        with self._guard:
            self._timer = None
            try:
                self._write()
            except InputError as error:
                self._failure = error

    def _write(self) -> None:
        if not (self._dirty and self._path):
            return
        import pyarrow.parquet  # noqa: F401  # before the clock: its import is no part of a writing

        began_s = time.monotonic()
        table = to_table(self.rows(), self._definition)
        put(self._path, lambda part: _write(table, part))
        os.fsync(self._lock)
        self._dirty = False
        ended_s = time.monotonic()
        self._next_s = ended_s + min(GAP_MAX_S, (ended_s - began_s) * (1 - WRITING_SHARE) / WRITING_SHARE)


def to_table(rows: Sequence[Row], definition: dict[str, Any]) -> Any:
    """The rows as a pyarrow Table: axes as they are, figures as float64, counts as int64; `definition` as metadata."""
    import pyarrow as pa

    names = list(rows[0]) if rows else [DIGEST, ERROR, SUMMARY]
    columns = {name: [row[name] for row in rows] for name in names}
    arrays = {name: pa.array(values, _type_of(name, values)) for name, values in columns.items()}
    return pa.table(arrays).replace_schema_metadata({KEY: json.dumps(definition, ensure_ascii=False).encode()})


def read_results(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """The definition and the rows of a results file. Raises InputError if it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Opened once: a sweep that runs may put another file in its place between two looks at it.
        with path.open("rb") as file:
            table = pq.ParquetFile(file).read(use_threads=False)
        definition = json.loads((table.schema.metadata or {})[KEY])
        table[DIGEST], table[SUMMARY]
    except (pa.ArrowException, OSError, KeyError, ValueError):
        raise InputError(f"{path}: is not the results of a sweep") from None
    rows: list[Row] = table.to_pylist()
    return definition, rows


def _type_of(name: str, values: Sequence[Any]) -> Any:
    """One type a column whichever rows there are, so that half a sweep has the schema of the whole."""
    import pyarrow as pa

    known = [value for value in values if value is not None]
    if name in (DIGEST, ERROR, SUMMARY) or any(isinstance(value, str) for value in known):
        return pa.string()
    whole = name == "seed" or name.startswith("within_") or (name.startswith("window_") and name != "window_s")
    return pa.int64() if whole or (known and all(type(value) is int for value in known)) else pa.float64()


def _write(table: Any, part: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, part, compression="zstd")
    with part.open("rb") as file:
        os.fsync(file.fileno())
