"""A progress bar on standard error, on a terminal only: requests done, virtual time, time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from blink.common.units import NS_PER_S

REDRAW_S = 0.1

Progress = Callable[[int, int, int], None]
"""Called with (completed requests, requests in all, virtual time in ns)."""


@contextmanager
def progress_bar(name: str, wanted: bool = True) -> Iterator[Progress | None]:
    """The callback for a simulation; None where no bar is wanted or standard error is no terminal."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests, {task.fields[virtual_s]:,.1f} s simulated, left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None, virtual_s=0.0)

        drawn_s = 0.0

        def update(completed: int, total: int, now_ns: int) -> None:
            # The simulation calls far more often than an eye can follow.
            nonlocal drawn_s
            if time.monotonic() - drawn_s < REDRAW_S:
                return
            drawn_s = time.monotonic()
            bar.update(task, completed=completed, total=total, virtual_s=now_ns / NS_PER_S)

        yield update


@contextmanager
def work_bar(name: str, noun: str, wanted: bool = True) -> Iterator[Callable[[int, int, float], None] | None]:
    """The callback for pieces of unequal size, called with (done, in all, share of the work); None without a terminal.

    The time left follows from the share, not from the count: ten short runs say little of one long one.
    """
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}% {task.fields[count]}, left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=600.0) as bar:
        task = bar.add_task(name, total=1.0, count="")
        yield lambda done, total, share: bar.update(task, completed=share, count=f"{done} of {total} {noun}")


@contextmanager
def count_bar(name: str, noun: str, wanted: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """The callback for work in many pieces, called with (pieces done, pieces in all); None without a terminal."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{noun}, left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def note_line(name: str, noun: str, wanted: bool = True) -> Iterator[Callable[[int, str], None] | None]:
    """The callback for a search whose length nobody knows, called with (pieces done, what goes on); None without a
    terminal. It shows the time that has passed.
    """
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(name, total=None, note="")

        def update(done: int, note: str) -> None:
            if note:
                bar.update(task, note=note)
            bar.update(task, description=f"{name}: {done} {noun}")

        yield update
