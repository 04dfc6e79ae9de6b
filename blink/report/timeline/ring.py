"""A run of Blink: link, scheduler, graphs and slots, out of its transition trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from blink.common.events import NOTHING, TRANSITION_EVENTS, Event, GraphKind, Phase
from blink.common.states import SlotState
from blink.common.trace import Trace
from blink.report.timeline.model import Instant, Span, Track

LINK, SCHEDULER, SLOTS = "link", "scheduler", "slots"
COLUMNS = (
    "t_ns", "instance", "slot", "generation", "event", "from", "to", "token_count", "status", "step", "request_id",
    "phase", "graph", "batch", "sequence", "live", "kv_block_count",
)  # fmt: skip
SKIPPED = (Event.TOKEN,)
"""Too many to be seen one by one: the decode graphs stand for them."""
WRITES = (Event.PROMPT_POSTED, Event.SUBMIT, Event.CANCEL_POSTED, Event.RECYCLE)
DECISIONS = (
    Event.CLAIM, Event.REJECT, Event.PAUSE, Event.RESUME, Event.FINISH, Event.FINISH_AT_PREFILL, Event.ABORT,
    Event.CANCEL_SEEN,
)  # fmt: skip
IN_BATCH = (SlotState.PREFILL_PROCESSING, SlotState.DECODE_PROCESSING, SlotState.DECODE_PAUSED)


@dataclass(slots=True)
class _Slot:
    """What a slot is doing since when."""

    state: SlotState
    since_ns: int
    submitted_ns: int
    request_id: int
    generation: int
    kv_blocks: int = 0


@dataclass(slots=True)
class _Reading:
    """All that is gathered in one pass over the rows."""

    slots: dict[int, _Slot] = field(default_factory=dict)
    slot_spans: dict[int, list[Span]] = field(default_factory=dict)
    graphs: list[Span] = field(default_factory=list)
    launched: tuple[int, str, dict[str, int | str]] | None = None
    instances: list[Span] = field(default_factory=list)
    instance_since: tuple[int, int] | None = None
    reads: list[Span] = field(default_factory=list)
    posted_ns: int = NOTHING
    together: dict[tuple[int, Event], int] = field(default_factory=Counter)
    running: list[tuple[int, int]] = field(default_factory=list)
    waiting: list[tuple[int, int]] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)


def ring_tracks(trace: Trace) -> list[Track]:
    """The tracks of a transition trace. What is open at its end is closed there, and says so."""
    reading = _Reading()
    last_ns = 0
    for row in _rows(trace):
        last_ns = max(last_ns, row["t_ns"])
        _take(reading, Event(row["event"]), row)
    _close(reading, last_ns)
    return _tracks(reading)


def _rows(trace: Trace) -> Iterator[dict[str, int]]:
    """The rows that are shown, in the order of time; of one moment in the order of the file."""
    event = trace.columns["event"]
    shown = np.flatnonzero(~np.isin(event, [one.value for one in SKIPPED]))
    order = shown[np.argsort(trace.columns["t_ns"][shown], kind="stable")]
    columns = {name: trace.columns[name][order].tolist() for name in COLUMNS}
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _take(reading: _Reading, event: Event, row: dict[str, int]) -> None:
    t_ns = row["t_ns"]
    if event in TRANSITION_EVENTS:
        _move(reading, row)
    if event in WRITES or event in DECISIONS or event == Event.TOKENS_READ:
        reading.together[(t_ns, event)] += 1
    elif event == Event.STATUS_READ:
        if row["phase"] == Phase.POSTED:
            reading.posted_ns = t_ns
        elif reading.posted_ns >= 0:
            reading.reads.append(Span(reading.posted_ns, t_ns, "READ of the status array"))
            reading.posted_ns = NOTHING
    elif event == Event.GRAPH_LAUNCHED:
        _graph_done(reading, t_ns, {"unfinished": 1})
        reading.launched = (t_ns, _graph_name(row), {name: row[name] for name in ("step", "live")})
        if reading.instance_since is None:
            reading.instance_since = (t_ns, row["instance"])
    elif event == Event.GRAPH_DONE:
        _graph_done(reading, t_ns, {})
    elif event == Event.RELAUNCHED:
        _instance_done(reading, t_ns)
        reading.instance_since = (t_ns, row["instance"])
    elif event in (Event.CRASHED, Event.RESTARTED):
        reading.together[(t_ns, event)] += 1


def _graph_name(row: dict[str, int]) -> str:
    kind = GraphKind(row["graph"]).label
    return f"{kind} {row['batch']} x {row['sequence']}"


def _graph_done(reading: _Reading, t_ns: int, more: dict[str, int | str]) -> None:
    if reading.launched:
        since, name, args = reading.launched
        reading.graphs.append(Span(since, t_ns, name, {**args, **more}))
        reading.launched = None


def _instance_done(reading: _Reading, t_ns: int) -> None:
    if reading.instance_since:
        since, number = reading.instance_since
        reading.instances.append(Span(since, t_ns, f"scheduler instance {number}"))
        reading.instance_since = None


def _move(reading: _Reading, row: dict[str, int]) -> None:
    """One transition of a slot: the state it had becomes a span, and so does the whole stay once the slot is free."""
    t_ns, number, after = row["t_ns"], row["slot"], SlotState(row["to"])
    slot = reading.slots.get(number)
    if slot is None:
        if after != SlotState.EMPTY:
            reading.slots[number] = _Slot(after, t_ns, t_ns, row["request_id"], row["generation"])
            _count(reading, t_ns, SlotState.EMPTY, after, 0)
        return
    if after == slot.state:
        return
    spans = reading.slot_spans.setdefault(number, [])
    spans.append(Span(slot.since_ns, t_ns, slot.state.label))
    if row["kv_block_count"] > 0:
        slot.kv_blocks = row["kv_block_count"]
    _count(reading, t_ns, slot.state, after, slot.kv_blocks)
    if after == SlotState.EMPTY:
        spans.append(_stay(slot, t_ns, {}))
        del reading.slots[number]
        return
    slot.state, slot.since_ns = after, t_ns


def _stay(slot: _Slot, t_ns: int, more: dict[str, int | str]) -> Span:
    args = {"generation": slot.generation, "kv_blocks": slot.kv_blocks, **more}
    return Span(slot.submitted_ns, t_ns, f"request {slot.request_id}", args)


def _count(reading: _Reading, t_ns: int, before: SlotState, after: SlotState, kv_blocks: int) -> None:
    for levels, size, was, now in (
        (reading.waiting, 1, before == SlotState.PREFILL_PENDING, after == SlotState.PREFILL_PENDING),
        (reading.running, 1, before in IN_BATCH, after in IN_BATCH),
        (reading.blocks, kv_blocks, before in IN_BATCH, after in IN_BATCH),
    ):
        if was != now:
            level = (levels[-1][1] if levels else 0) + (size if now else -size)
            if levels and levels[-1][0] == t_ns:
                levels[-1] = (t_ns, level)
            else:
                levels.append((t_ns, level))


def _close(reading: _Reading, last_ns: int) -> None:
    _graph_done(reading, last_ns, {"unfinished": 1})
    _instance_done(reading, last_ns)
    for number, slot in reading.slots.items():
        spans = reading.slot_spans.setdefault(number, [])
        spans.append(Span(slot.since_ns, last_ns, slot.state.label))
        spans.append(_stay(slot, last_ns, {"unfinished": 1}))


def _tracks(reading: _Reading) -> list[Track]:
    instants: dict[bool, list[Instant]] = {True: [], False: []}
    for (t_ns, event), count in reading.together.items():
        name = event.label if count == 1 else f"{event.label} x {count}"
        instants[event in DECISIONS or event in (Event.CRASHED, Event.RESTARTED)].append(Instant(t_ns, name))
    found = [
        Track(LINK, "status READs", spans=reading.reads),
        Track(LINK, "WRITEs and READs of tokens", instants=instants[False]),
        Track(SCHEDULER, "decisions", spans=reading.instances, instants=instants[True]),
        Track(SCHEDULER, "graphs", spans=reading.graphs),
        Track(SCHEDULER, "batch, sequences", levels=reading.running),
        Track(SCHEDULER, "waiting in the ring", levels=reading.waiting),
        Track(SCHEDULER, "KV blocks", levels=reading.blocks),
    ]
    found += [Track(SLOTS, f"slot {number}", spans=reading.slot_spans[number]) for number in sorted(reading.slot_spans)]
    return [track for track in found if track.spans or track.instants or track.levels]
