"""Records the transition trace of a run: three streams of rows, merged by time as they are written.

The gpu, the token reader and the submitter each record in their own order of time, but not in step with one another:
the fast mode learns of many steps at once. Rows leave for the file once no stream can add an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blink.common.events import NOTHING, Column, Event, GraphKind, Phase, written_columns
from blink.common.results import I64
from blink.common.states import Actor, SlotState, SlotStatus
from blink.common.trace import TraceFooter, TraceWriter
from blink.common.transitions import BY_NAME

Scalars = Mapping[str, int]
_INITIAL_ROWS = 1 << 15
_FLUSH_ROWS = 1 << 17
_EVENT_OF = {Event[name.upper()]: row for name, row in BY_NAME.items()}


@dataclass(frozen=True, slots=True)
class Columns:
    """What the trace says of a batch of slots, as parallel (n,) arrays."""

    slots: I64
    generation: I64
    epoch: int
    request_id: I64


def _streamed(evidence: tuple[str, ...]) -> tuple[Column, ...]:
    """Sequence numbers are given as the streams are merged."""
    return tuple(column for column in written_columns(evidence) if column.name != "seq")


class Stream:
    """A growing block of rows of one actor's thread; columns that are not set stay at -1."""

    def __init__(self, actor: Actor, rows: int = _INITIAL_ROWS, evidence: tuple[str, ...] = ()) -> None:
        self.count = 0
        self._capacity = rows
        self._actor = actor
        self.columns = {c.name: np.full(self._capacity, NOTHING, c.dtype) for c in _streamed(evidence)}
        self.columns["actor"].fill(actor)

    def reserve(self, rows: int) -> slice:
        """Room for `rows` more rows."""
        start, end = self.count, self.count + rows
        if end > self._capacity:
            self._grow(end)
        self.count = end
        return slice(start, end)

    def add(self, **values: int) -> None:
        """One row."""
        if self.count == self._capacity:
            self._grow(self.count + 1)
        row, columns = self.count, self.columns
        for name, value in values.items():
            columns[name][row] = value
        self.count = row + 1

    def drop(self, rows: int) -> None:
        """Forget the first `rows` rows, which were written out."""
        left = self.count - rows
        for name, column in self.columns.items():
            column[:left] = column[rows : self.count]
            if name != "actor":
                column[left : self.count] = NOTHING
        self.count = left

    def _grow(self, rows: int) -> None:
        capacity = max(rows, 2 * self._capacity)
        for name, column in self.columns.items():
            grown = np.full(capacity, self._actor if name == "actor" else NOTHING, column.dtype)
            grown[: self._capacity] = column
            self.columns[name] = grown
        self._capacity = capacity


class Recorder:
    """The streams and the file. All times are nanoseconds of one clock that both actors read.

    `evidence` names the columns of events.EVIDENCE that the backend fills, as the trace's header does. `initial_rows`
    a stream has room at first, and `flush_rows` in all are held before it is worth writing some.
    """

    def __init__(
        self,
        writer: TraceWriter,
        *,
        reads_each: bool,
        initial_rows: int = _INITIAL_ROWS,
        flush_rows: int = _FLUSH_ROWS,
        evidence: tuple[str, ...] = (),
    ) -> None:
        self._flush_rows = flush_rows
        self._cut: tuple[int, int] | None = None  # when, and the idle reads until then
        self.reads_each, self.evidence = reads_each, evidence
        self.gpu = Stream(Actor.GPU, initial_rows, evidence)
        self.reader = Stream(Actor.FRONTEND, initial_rows, evidence)
        self.submitter = Stream(Actor.FRONTEND, initial_rows, evidence)
        self._writer = writer
        self._streams = (self.gpu, self.reader, self.submitter)
        self._seq = {Actor.FRONTEND: 0, Actor.GPU: 0}

    # --- rows ---

    def move(
        self,
        stream: Stream,
        event: Event,
        t_ns: int,
        slot: int,
        generation: int,
        epoch: int,
        request_id: int,
        token_count: int,
        *,
        source: SlotState | None = None,
        status: SlotStatus = SlotStatus.NONE,
        **more: int,
    ) -> None:
        """One transition of one slot. `source` is needed only where the table allows several."""
        row = _EVENT_OF[event]
        stream.add(
            event=event,
            t_ns=t_ns,
            slot=slot,
            generation=generation,
            epoch=epoch,
            request_id=request_id,
            token_count=token_count,
            status=status,
            **{"from": row.sources[0] if source is None else source, "to": row.target},
            **more,
        )

    def move_all(self, event: Event, t_ns: int, batch: Columns, token_count: I64, step: int, instance: int) -> None:
        """The same transition of every slot of a batch at one time: pause, resume."""
        row = _EVENT_OF[event]
        rows = self.gpu.reserve(batch.slots.size)
        columns = self.gpu.columns
        self._slots(columns, rows, batch)
        for name, value in (
            ("event", event),
            ("t_ns", t_ns),
            ("from", row.sources[0]),
            ("to", row.target),
            ("token_count", token_count),
            ("status", SlotStatus.NONE),
            ("step", step),
            ("instance", instance),
        ):
            columns[name][rows] = value

    def steps(
        self,
        launched: list[int],
        done: list[int],
        stored: list[int],
        sequence: list[int],
        graph_batch: int,
        batch: Columns,
        token_count: I64,
        step: int,
        instance: int,
        ended: Mapping[int, SlotStatus],
    ) -> None:
        """Consecutive decode steps of an unchanged batch: for each a launch, its end, and one token a slot.

        `token_count` are the slots' counts before the first step, `step` is its number; `ended` maps positions in the
        batch to the status with which the last step's token finishes them.
        """
        steps, width = len(stored), batch.slots.size + 2
        rows = self.gpu.reserve(steps * width)
        columns = self.gpu.columns

        def block(name: str) -> NDArray[np.signedinteger]:
            return columns[name][rows].reshape(steps, width)

        times = block("t_ns")
        times[:, 0], times[:, 1] = launched, done
        times[:, 2:] = np.array(stored)[:, None]
        block("event")[:] = Event.TOKEN
        block("event")[:, 0] = Event.GRAPH_LAUNCHED
        block("event")[:, 1] = Event.GRAPH_DONE
        counted = np.arange(steps)[:, None]
        block("step")[:] = step + counted
        columns["instance"][rows] = instance
        block("slot")[:, 2:] = batch.slots
        block("generation")[:, 2:] = batch.generation
        block("request_id")[:, 2:] = batch.request_id
        block("epoch")[:, 2:] = batch.epoch
        block("from")[:, 2:] = SlotState.DECODE_PROCESSING
        block("to")[:, 2:] = SlotState.DECODE_PROCESSING
        block("status")[:, 2:] = SlotStatus.NONE
        block("token_count")[:, 2:] = token_count + 1 + counted
        block("graph")[:, :2] = GraphKind.DECODE
        block("batch")[:, :2] = graph_batch
        block("sequence")[:, :2] = np.array(sequence)[:, None]
        block("live")[:, :2] = batch.slots.size
        for position, status in ended.items():
            row = rows.stop - batch.slots.size + position
            columns["event"][row] = Event.FINISH
            columns["to"][row] = SlotState.DECODE_COMPLETED
            columns["status"][row] = status

    def status_reads(self, posted: list[int], done: list[int]) -> None:
        """Status READs that brought news, in order."""
        rows = self.reader.reserve(2 * len(posted))
        columns = self.reader.columns
        columns["t_ns"][rows] = np.array([posted, done]).T.reshape(-1)
        columns["event"][rows] = Event.STATUS_READ
        columns["phase"][rows] = np.tile((Phase.POSTED, Phase.DONE), len(posted))

    @staticmethod
    def _slots(columns: dict[str, NDArray[np.signedinteger]], rows: slice, batch: Columns) -> None:
        columns["slot"][rows] = batch.slots
        columns["generation"][rows] = batch.generation
        columns["request_id"][rows] = batch.request_id
        columns["epoch"][rows] = batch.epoch

    # --- the file ---

    def due(self) -> bool:
        """Whether enough rows wait for a flush to be worth its while."""
        return self.gpu.count + self.reader.count + self.submitter.count >= self._flush_rows

    def flush(self, before_ns: int) -> None:
        """Write the rows before `before_ns`: no stream will add an earlier one."""
        before_ns = before_ns if self._cut is None else min(before_ns, self._cut[0])
        counts = [int(np.searchsorted(s.columns["t_ns"][: s.count], before_ns)) for s in self._streams]
        total = sum(counts)
        if not total:
            return
        times = np.concatenate([s.columns["t_ns"][:n] for s, n in zip(self._streams, counts, strict=True)])
        order = np.argsort(times, kind="stable")
        columns: dict[str, NDArray[np.signedinteger]] = {}
        for column in _streamed(self.evidence):
            parts = [s.columns[column.name][:n] for s, n in zip(self._streams, counts, strict=True)]
            columns[column.name] = np.concatenate(parts)[order]
        columns["seq"] = self._number(columns["actor"])
        self._writer.write(columns, total)
        for stream, count in zip(self._streams, counts, strict=True):
            stream.drop(count)

    def cut(self, t_ns: int, idle_status_reads: int) -> None:
        """What is recorded from `t_ns` on stays out of the trace, which is not complete then."""
        self._cut = t_ns, idle_status_reads

    def close(self, slots: dict[str, int], *, complete: bool, idle_status_reads: int, dropped_by_gpu: int = 0) -> None:
        """Write what is left and the footer. `dropped_by_gpu` counts rows that never got here."""
        self.flush(np.iinfo(np.int64).max)
        events = {actor.label: count for actor, count in self._seq.items()}
        dropped = {Actor.FRONTEND.label: 0, Actor.GPU.label: dropped_by_gpu}
        if self._cut is not None:  # how the slots stood then nobody has noted
            self._writer.close(TraceFooter(events, dropped, None, False, self._cut[1]))
            return
        self._writer.close(TraceFooter(events, dropped, slots, complete, idle_status_reads))

    def abort(self) -> None:
        """Leave no file behind."""
        self._writer.abort()

    def _number(self, actors: NDArray[np.signedinteger]) -> I64:
        seq = np.empty(actors.size, np.int64)
        for actor in Actor:
            mask = actors == actor
            count = int(np.count_nonzero(mask))
            seq[mask] = np.arange(self._seq[actor], self._seq[actor] + count)
            self._seq[actor] += count
        return seq
