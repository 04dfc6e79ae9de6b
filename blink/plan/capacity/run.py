"""Answers a question of capacity: candidates, search, answer, on the cores of this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any

from blink.common.errors import InputError
from blink.plan.capacity.answer import answered
from blink.plan.capacity.candidate import candidates_of
from blink.plan.capacity.question import Question
from blink.plan.capacity.search import CapacitySearch, Progress
from blink.plan.point import worker_processes

WORKERS_MAX = 256


def plan(
    question: Question,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """The answer as plain data, the same for any number of workers (default: one a CPU core).

    Raises InputError for a question that cannot be asked, and StoppedError once `stop()` is true. A question whose
    answer is that it cannot be done has an answer: `best` is None, and `answer` says why.
    """
    if workers is not None and not 1 <= workers <= WORKERS_MAX:
        raise InputError(f"workers = {workers}: must be between 1 and {WORKERS_MAX}")
    candidates = candidates_of(question)
    with _processes(workers or os.cpu_count() or 1) as (executor, give_up):

        def asked() -> bool:
            if stop is None or not stop():
                return False
            give_up()
            return True

        search = CapacitySearch(question, candidates, executor, progress, asked)
        search.search()
        return answered(search)


@contextmanager
def _processes(count: int) -> Iterator[tuple[Executor | None, Callable[[], None]]]:
    """Processes that stay for the whole search; None: runs go on here, one after the other."""
    if count == 1:
        yield None, lambda: None
        return
    with worker_processes(count) as found:
        yield found
