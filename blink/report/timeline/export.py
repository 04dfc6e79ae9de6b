"""From the folder of a run to the file of a viewer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from blink.common.lifecycle import is_lifecycle, read_lifecycle
from blink.common.trace import read_trace, trace_paths
from blink.report.rundir import put, read_run
from blink.report.timeline.chrome import write_chrome
from blink.report.timeline.engine import engine_tracks
from blink.report.timeline.model import Timeline, Track
from blink.report.timeline.perfetto import write_perfetto
from blink.report.timeline.requests import request_tracks
from blink.report.timeline.ring import COLUMNS, ring_tracks

SUFFIXES = {"perfetto": ".pftrace", "chrome": ".trace.json"}
"""Format -> what its files are called."""


def timeline_of(folder: Path) -> Timeline:
    """Everything that is known of a run over time. Raises InputError if the folder is no run's or has no trace."""
    run = read_run(folder)
    tracks = request_tracks(run.requests)
    for number, path in trace_paths(folder):
        found = engine_tracks(read_lifecycle(path)) if is_lifecycle(path) else ring_tracks(read_trace(path, COLUMNS))
        tracks += found if number is None else [_of_replica(track, number) for track in found]
    return Timeline(str(run.summary["label"]), tracks)


def _of_replica(track: Track, number: int) -> Track:
    """The same track, its group named after the replica: replica 2, scheduler."""
    return replace(track, group=f"replica {number}, {track.group}")


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
