"""Tracks, and what stands on them, before any file format.

A track holds spans that nest. Things that overlap, such as requests, have a track each (`overlaps`): viewers lay them
out side by side under one heading.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

Args = Mapping[str, int | str]
NO_ARGS: Args = {}


@dataclass(frozen=True, slots=True)
class Span:
    """From start to end, in ns; both in the run's own clock."""

    start_ns: int
    end_ns: int
    name: str
    args: Args = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment."""

    t_ns: int
    name: str
    args: Args = field(default_factory=dict)


@dataclass(slots=True)
class Track:
    """One line of a group. A counter has `levels` (time, value from then on) and nothing else."""

    group: str
    name: str
    overlaps: bool = False
    spans: list[Span] = field(default_factory=list)
    instants: list[Instant] = field(default_factory=list)
    levels: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Timeline:
    """All tracks of a run, in the order in which they are shown; those of one group stand together."""

    name: str
    tracks: list[Track]


class Edge(IntEnum):
    """What happens on a track at a moment."""

    BEGIN = 0
    END = 1
    INSTANT = 2


Happening = tuple[int, Edge, str, Args]


def happenings(track: Track) -> Iterator[Happening]:
    """Begins, ends and instants of a track in the order of time; every end closes the last begin that is open.

    Raises ValueError for spans that do not nest: no viewer could show them on one track.
    """
    spans = sorted(track.spans, key=lambda span: (span.start_ns, -span.end_ns))
    instants = iter(sorted(track.instants, key=lambda one: one.t_ns))
    instant = next(instants, None)
    open_until: list[Span] = []
    for span in [*spans, None]:
        begins_ns = span.start_ns if span else None
        while open_until and (begins_ns is None or open_until[-1].end_ns <= begins_ns):
            ends_ns = open_until.pop().end_ns
            while instant and instant.t_ns < ends_ns:
                yield instant.t_ns, Edge.INSTANT, instant.name, instant.args
                instant = next(instants, None)
            yield ends_ns, Edge.END, "", NO_ARGS
        while instant and (begins_ns is None or instant.t_ns < begins_ns):
            yield instant.t_ns, Edge.INSTANT, instant.name, instant.args
            instant = next(instants, None)
        if span is None:
            return
        if open_until and span.end_ns > open_until[-1].end_ns:
            raise ValueError(f"{track.group}, {track.name}: {span.name} at {span.start_ns} ns ends after what it is in")
        if span.end_ns < span.start_ns:
            raise ValueError(f"{track.group}, {track.name}: {span.name} ends before it begins, at {span.start_ns} ns")
        open_until.append(span)
        yield span.start_ns, Edge.BEGIN, span.name, span.args


def cut(timeline: Timeline, from_ns: int, to_ns: int) -> Timeline:
    """What happens in [from_ns, to_ns): spans that reach out of it are cut there, tracks that are left empty go."""
    kept = []
    for track in timeline.tracks:
        levels = [level for level in track.levels if from_ns <= level[0] < to_ns]
        before = [level for level in track.levels if level[0] < from_ns]
        if before:
            levels.insert(0, (from_ns, before[-1][1]))
        spans = [
            Span(max(span.start_ns, from_ns), min(span.end_ns, to_ns), span.name, span.args)
            for span in track.spans
            if span.start_ns < to_ns and span.end_ns >= from_ns
        ]
        instants = [one for one in track.instants if from_ns <= one.t_ns < to_ns]
        if spans or instants or levels:
            kept.append(Track(track.group, track.name, track.overlaps, spans, instants, levels))
    return Timeline(timeline.name, kept)
