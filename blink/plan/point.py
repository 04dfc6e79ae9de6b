"""Points: many scenarios run at once, each a whole run whose summary is kept. Order and bytes do not depend on how."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from blink.common.config import Scenario
from blink.common.errors import InputError

if TYPE_CHECKING:
    from ctypes import c_byte

    Flag = c_byte

    from blink.common.results import RunResult
    from blink.workload.requests import Requests

Key = tuple[tuple[str, Any], ...]
"""What a point differs in from the others, as (name, value) pairs."""

Progress = Callable[[int, int], None]
"""Called with (points that are done, points in all)."""

Each = Callable[[int, "PointResult"], None]
"""Called with a point's place among the points and its result, as soon as there is one, in whatever order."""

POLL_S = 0.25
"""How often the parent looks whether it was asked to stop."""


@dataclass(frozen=True, slots=True)
class Point:
    """One run to make."""

    key: Key
    scenario: Scenario

    @property
    def label(self) -> str:
        """The key in words."""
        return ", ".join(f"{name} {value}" for name, value in self.key)

    def simulate(self, scenario: Scenario, requests: Requests, stop: Callable[[], bool] | None) -> RunResult:
        """The run itself; a kind of point that may end it before its time has its own."""
        from blink.sim.run import simulate

        return simulate(scenario, requests, stop=stop)

    def summarize(self, result: RunResult, requests: Requests) -> dict[str, Any]:
        """What is kept of the run; a kind of point that keeps something else has its own."""
        from blink.common.summary import summarize

        return summarize(result)

    def refused(self, error: InputError) -> dict[str, Any]:
        """What is kept of a point that cannot run: nothing, it ends all. Raises InputError that names the point."""
        raise InputError(f"{self.label}: {error}") from None


@dataclass(frozen=True, slots=True)
class PointResult:
    """A run that went to its end; `summary` is what summary.json would hold, or what the point keeps."""

    key: Key
    summary: dict[str, Any]


Work = Future["PointResult | None"]


def run_points(
    points: Sequence[Point],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    each: Each | None = None,
    executor: Executor | None = None,
) -> list[PointResult]:
    """Simulate every point, in `workers` processes (default: one a CPU core), and return them in the order given.

    With an `executor` the points run there instead, such as on a cluster; it stays open. The same points give the same
    results wherever they run. Once `stop()` is true the runs under way are ended and left out: fewer results than
    points mean that it was stopped. `each` hears of every result when it comes.

    Raises InputError that names the first point that cannot run, and what is wrong with it.
    """
    if workers is not None and workers < 1:
        raise InputError(f"workers = {workers}: must be at least 1")
    if executor is not None:
        return _run_in(executor, points, progress, stop, each)
    count = min(workers or os.cpu_count() or 1, len(points))
    if count <= 1:
        return _run_here(points, progress, stop, each)
    return _run_in_processes(points, count, progress, stop, each)


def run_point(point: Point, stop: Callable[[], bool] | None = None) -> PointResult | None:
    """Simulate one point here; None if it was stopped before its end. InputError names the point."""
    from blink.workload.build import build_load

    try:
        scenario, requests = build_load(point.scenario)
        result = point.simulate(scenario, requests, stop)
    except InputError as error:
        return PointResult(point.key, point.refused(error))
    return None if result.partial else PointResult(point.key, point.summarize(result, requests))


def _run_here(
    points: Sequence[Point], progress: Progress | None, stop: Callable[[], bool] | None, each: Each | None
) -> list[PointResult]:
    results: list[PointResult] = []
    for index, point in enumerate(points):
        result = None if stop and stop() else run_point(point, stop)
        if result is None:
            break
        results.append(result)
        if each:
            each(index, result)
        if progress:
            progress(len(results), len(points))
    return results


def _run_in(
    executor: Executor,
    points: Sequence[Point],
    progress: Progress | None,
    stop: Callable[[], bool] | None,
    each: Each | None,
) -> list[PointResult]:
    """On somebody else's executor, whose workers cannot be told to stop: what runs then is given up."""
    futures = [executor.submit(_work, point) for point in points]
    try:
        _await(futures, lambda: None, progress, stop, each)
    except BaseException:
        _cancel(futures)
        raise
    return _gather(points, futures)


def _run_in_processes(
    points: Sequence[Point],
    count: int,
    progress: Progress | None,
    stop: Callable[[], bool] | None,
    each: Each | None,
) -> list[PointResult]:
    with worker_processes(count) as (pool, tell_workers):
        with interrupts_held_back():
            futures = [pool.submit(_work, point) for point in points]
        _await(futures, tell_workers, progress, stop, each)
        return _gather(points, futures)


@contextmanager
def worker_processes(count: int) -> Iterator[tuple[Executor, Callable[[], None]]]:
    """So many processes, for one or many calls of `run_points`, and what tells them to give up what they run.

    An exception inside gives up everything. Processes are there before this returns, out of the reach of Ctrl-C.
    """
    track_quietly()
    # A fresh interpreter a worker: a forked one would inherit whatever threads and locks its parent holds just then.
    context = multiprocessing.get_context("spawn")
    # No lock around it: a worker that dies holding one would hang the rest.
    stopped: Flag = context.RawValue("b", 0)

    def tell_workers() -> None:
        stopped.value = 1

    with ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(stopped,)) as pool:
        try:
            with interrupts_held_back():
                for _ in range(count):
                    pool.submit(_stop_asked)
            yield pool, tell_workers
        except BaseException:
            tell_workers()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def track_quietly() -> None:
    """Start Python's tracker of semaphores so that it does its work without a word.

    A pool's semaphores have names, which its process unlinks as it ends. One that is killed cannot; the tracker, which
    outlives it for this, does so in its place, but tells of a leak that is none any more.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, "ignore:resource_tracker:UserWarning")))
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


def _await(
    futures: Sequence[Work],
    tell_workers: Callable[[], None],
    progress: Progress | None,
    stop: Callable[[], bool] | None,
    each: Each | None,
) -> None:
    """Until all are done. Once one fails, those behind it are not begun; those before it are, and may fail first."""
    done, waiting, stopping = 0, set(futures), False
    place = {future: index for index, future in enumerate(futures)}
    while waiting:
        ended, waiting = wait(waiting, timeout=POLL_S, return_when=FIRST_COMPLETED)
        if stop and stop() and not stopping:
            stopping = True
            tell_workers()
            _cancel(futures)
            # An executor of somebody else may never tell of a future that was cancelled.
            waiting = {future for future in waiting if not future.cancelled()}
        for future in ended:
            if future.cancelled():
                continue
            if future.exception() is not None:
                _cancel(futures[place[future] :])
                continue
            result = future.result()
            if result is not None:
                done += 1
                if each:
                    each(place[future], result)
                if progress:
                    progress(done, len(futures))


def _cancel(futures: Sequence[Work]) -> None:
    for future in futures:
        future.cancel()


def _gather(points: Sequence[Point], futures: Sequence[Work]) -> list[PointResult]:
    """The results in order. The failure of the first point that failed is the one that is raised."""
    results = []
    for point, future in zip(points, futures, strict=True):
        try:
            result = future.result()
        except CancelledError:
            continue
        except BrokenProcessPool:
            raise InputError(f"{point.label}: its process ended, as for want of memory: try fewer workers") from None
        if result is not None:
            results.append(result)
    return results


_stopped: Flag | None = None


def _begin(stopped: Flag) -> None:
    global _stopped
    _stopped = stopped
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A parent that is killed tells nobody; its workers would wait for more points for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(point: Point) -> PointResult | None:
    return None if _stop_asked() else run_point(point, _stop_asked)


def _stop_asked() -> bool:
    return bool(_stopped and _stopped.value)


@contextmanager
def interrupts_held_back() -> Iterator[None]:
    """Processes that are started inside never see Ctrl-C, which reaches all of a terminal; here it comes a bit later.

    What it means is the parent's to decide, and a worker must not die of it while it starts.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
