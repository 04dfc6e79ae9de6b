"""From the folder of a run to the file of a viewer."""

from __future__ import annotations

from pathlib import Path

from blink.common.lifecycle import is_lifecycle, read_lifecycle
from blink.common.trace import read_trace, trace_path
from blink.report.rundir import put, read_run
from blink.report.timeline.chrome import write_chrome
from blink.report.timeline.engine import engine_tracks
from blink.report.timeline.model import Timeline
from blink.report.timeline.perfetto import write_perfetto
from blink.report.timeline.requests import request_tracks
from blink.report.timeline.ring import COLUMNS, ring_tracks

SUFFIXES = {"perfetto": ".pftrace", "chrome": ".trace.json"}
"""Format -> what its files are called."""


def timeline_of(folder: Path) -> Timeline:
    """Everything that is known of a run over time. Raises InputError if the folder is no run's or has no trace."""
    run = read_run(folder)
    path = trace_path(folder)
    tracks = engine_tracks(read_lifecycle(path)) if is_lifecycle(path) else ring_tracks(read_trace(path, COLUMNS))
    return Timeline(str(run.summary["label"]), [*request_tracks(run.requests), *tracks])


def write(timeline: Timeline, form: str, out: Path) -> None:
    """Write it beside its place and rename it. Raises InputError if it cannot be written or a package is missing."""

    def to(part: Path) -> None:
        if form == "perfetto":
            with part.open("wb") as binary:
                write_perfetto(timeline, binary)
        else:
            with part.open("w", encoding="utf-8", newline="\n") as text:
                write_chrome(timeline, text)

    put(out, to)
