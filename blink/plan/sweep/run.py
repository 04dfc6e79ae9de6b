"""Makes the runs of a sweep: those that are not there yet, wherever they may run, each kept as soon as it is done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from blink.common.errors import InputError
from blink.plan.point import PointResult, run_points
from blink.plan.sweep.cluster import cluster_executor
from blink.plan.sweep.identity import point_digest
from blink.plan.sweep.question import Question
from blink.plan.sweep.row import ERROR, Row, row_of, work_of
from blink.plan.sweep.store import Store

Progress = Callable[[int, int, float], None]
"""Called with (points that are done, points in all, share of the work that is done)."""


@dataclass(frozen=True, slots=True)
class Made:
    """The rows of a sweep in the order of its points; fewer than points if it was stopped."""

    rows: list[Row]
    point_count: int
    resumed_count: int

    @property
    def partial(self) -> bool:
        """Whether it was stopped before its end."""
        return len(self.rows) < self.point_count


def make(
    question: Question,
    folder: Path | None = None,
    *,
    workers: int | None = None,
    cluster: str | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> Made:
    """Run every point of the question that `folder` does not hold yet, in processes here or on a cluster.

    The rows are the same wherever they were made and in whichever order. Raises InputError if no point can run, with
    the reason of the first, and if the folder holds another sweep.
    """
    points = question.points
    digests = [point_digest(point) for point in points]
    with Store(folder, question.definition(folder), digests) as store:
        resumed = store.take_over()
        # The longest first: no worker is left alone with one of them at the end.
        order = sorted(store.missing(), key=lambda index: -work_of(points[index].scenario))
        work = _Work([work_of(point.scenario) for point in points], store.missing(), progress)

        def keep(place: int, result: PointResult) -> None:
            index = order[place]
            store.put(index, row_of(result, digests[index], question.classes))
            work.done(index)

        executor = cluster_executor(cluster) if cluster and order else nullcontext()
        with executor as running:
            run_points([points[index] for index in order], workers=workers, stop=stop, each=keep, executor=running)
        rows = store.rows()
        if len(rows) < len(points) and not (stop and stop()):
            store.flush()
            raise InputError(
                f"{len(points) - len(rows)} of {len(points)} runs were lost, as when a cluster goes away"
                + ("; the others are kept: the same command goes on" if folder else "")
            )
    if rows and len(rows) == len(points) and all(row[ERROR] for row in rows):
        raise InputError(f"{points[0].label}: {rows[0][ERROR]}")
    return Made(rows, len(points), resumed)


class _Work:
    """How much is done, for the eye: points, and their share of the work that was left when it began."""

    def __init__(self, each: list[float], missing: list[int], progress: Progress | None) -> None:
        self._each, self._progress = each, progress
        self._left, self._total, self._count = len(missing), sum(each[index] for index in missing), len(each)
        self._done = 0.0
        if progress:
            progress(self._count - self._left, self._count, 0.0)

    def done(self, index: int) -> None:
        self._left -= 1
        self._done += self._each[index]
        if self._progress:
            self._progress(self._count - self._left, self._count, self._done / self._total)
