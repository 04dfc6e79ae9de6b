"""Chrome's trace event JSON: times in microseconds, begin and end on threads, nestable async where things overlap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

from blink.common.units import NS_PER_US
from blink.report.timeline.model import Edge, Timeline, Track, happenings

PHASES = {Edge.BEGIN: "B", Edge.END: "E", Edge.INSTANT: "i"}
ASYNC = {Edge.BEGIN: "b", Edge.END: "e", Edge.INSTANT: "n"}


def write_chrome(timeline: Timeline, out: TextIO) -> None:
    """Write the JSON object, an event a line."""
    out.write('{"displayTimeUnit": "ns", "traceEvents": [\n')
    first = True
    for event in _events(timeline):
        out.write(("" if first else ",\n") + json.dumps(event, separators=(",", ":")))
        first = False
    out.write("\n]}\n")


def _events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    groups = list(dict.fromkeys(track.group for track in timeline.tracks))
    for pid, group in enumerate(groups, 1):
        yield _meta("process_name", pid, 0, {"name": group})
        yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
        tracks = [track for track in timeline.tracks if track.group == group]
        for tid, track in enumerate(tracks, 1):
            yield from _track(track, pid, tid)


def _track(track: Track, pid: int, tid: int) -> Iterator[dict[str, Any]]:
    if track.levels:
        for t_ns, value in track.levels:
            yield {
                "name": track.name,
                "ph": "C",
                "ts": t_ns / NS_PER_US,
                "pid": pid,
                "tid": 0,
                "args": {"value": value},
            }
        return
    if not track.overlaps:
        yield _meta("thread_name", pid, tid, {"name": track.name})
        yield _meta("thread_sort_index", pid, tid, {"sort_index": tid})
    stack: list[str] = []
    for t_ns, edge, name, args in happenings(track):
        if edge == Edge.BEGIN:
            stack.append(name)
        # A reader of async events pairs ends with begins by name.
        named = stack.pop() if edge == Edge.END else name
        event: dict[str, Any] = {"name": named, "ts": t_ns / NS_PER_US, "pid": pid}
        if track.overlaps:
            event |= {"ph": ASYNC[edge], "cat": track.name, "id": f"{pid}.{tid}", "tid": 0}
        else:
            event |= {"ph": PHASES[edge], "tid": tid, **({"s": "t"} if edge == Edge.INSTANT else {})}
        yield {**event, "args": dict(args)} if args else event


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}
