"""Perfetto's own format, by the classes of the perfetto package: a track descriptor a track, times in nanoseconds."""

from __future__ import annotations

from typing import Any, BinaryIO

from blink.common.optional import need
from blink.report.timeline.model import Edge, Timeline, Track, happenings

SEQUENCE = 1
"""All packets come from one writer: viewers keep their order where times are equal."""


def write_perfetto(timeline: Timeline, out: BinaryIO) -> None:
    """Write the trace. Raises InputError without the perfetto package."""
    builder = need("perfetto.trace_builder.proto_builder", "--format perfetto", "perfetto")
    proto = need("perfetto.protos.perfetto.trace.perfetto_trace_pb2", "--format perfetto", "perfetto")
    _Writer(builder.StreamingTraceProtoBuilder(out), proto).write(timeline)


class _Writer:
    """Numbers the tracks and writes packet after packet."""

    def __init__(self, stream: Any, proto: Any) -> None:
        self._stream, self._proto = stream, proto
        self._uuid = 0
        kinds = proto.TrackEvent
        self._types = {
            Edge.BEGIN: kinds.TYPE_SLICE_BEGIN,
            Edge.END: kinds.TYPE_SLICE_END,
            Edge.INSTANT: kinds.TYPE_INSTANT,
        }

    def write(self, timeline: Timeline) -> None:
        parents: dict[str, int] = {}
        ranks: dict[tuple[str, str], int] = {}
        for track in timeline.tracks:
            rank = ranks.setdefault((track.group, track.name), len(ranks))
            if track.group not in parents:
                parents[track.group] = self._group(track.group, len(parents))
            uuid = self._track(track, parents[track.group], rank)
            for t_ns, value in track.levels:
                self._event(t_ns, uuid, self._proto.TrackEvent.TYPE_COUNTER).counter_value = value
                self._flush()
            for t_ns, edge, name, args in happenings(track):
                event = self._event(t_ns, uuid, self._types[edge])
                if edge != Edge.END:
                    event.name = name
                for key, given in args.items():
                    note = event.debug_annotations.add()
                    note.name = key
                    if isinstance(given, str):
                        note.string_value = given
                    else:
                        note.int_value = given
                self._flush()

    def _group(self, name: str, rank: int) -> int:
        """A track without spans, above its own: of a process, viewers would show a number and sort by name."""
        descriptor = self._descriptor()
        descriptor.name, descriptor.sibling_order_rank = name, rank
        descriptor.child_ordering = self._proto.TrackDescriptor.EXPLICIT
        self._flush()
        return self._uuid

    def _track(self, track: Track, parent: int, rank: int) -> int:
        """Tracks of what overlaps have one name: viewers merge them into as few lines as hold them."""
        descriptor = self._descriptor()
        descriptor.parent_uuid, descriptor.name, descriptor.sibling_order_rank = parent, track.name, rank
        if track.levels:
            descriptor.counter.unit_name = track.name
        self._flush()
        return self._uuid

    def _descriptor(self) -> Any:
        self._uuid += 1
        self._packet = self._stream.create_packet()
        self._packet.trusted_packet_sequence_id = SEQUENCE
        descriptor = self._packet.track_descriptor
        descriptor.uuid = self._uuid
        return descriptor

    def _event(self, t_ns: int, uuid: int, kind: int) -> Any:
        self._packet = self._stream.create_packet()
        self._packet.timestamp = t_ns
        self._packet.trusted_packet_sequence_id = SEQUENCE
        event = self._packet.track_event
        event.type, event.track_uuid = kind, uuid
        return event

    def _flush(self) -> None:
        self._stream.write_packet(self._packet)
