"""The scheduler's rows of the transition trace."""

from __future__ import annotations

import numpy as np

from blink.common.events import Event
from blink.common.layout import TOKEN_COUNT_MASK, TOKEN_COUNT_SHIFT
from blink.common.policy import GraphShape
from blink.common.recorder import Recorder
from blink.common.results import I64
from blink.common.ring import Ring
from blink.common.states import SlotState, SlotStatus
from blink.sim.batch import Batch, Live, Segment
from blink.sim.clock import Clock

Who = tuple[int, int, int, int]
"""slot, generation, epoch, request_id"""
_STOPPED = (SlotStatus.CANCELLED, SlotStatus.FENCED)


class GpuRows:
    """Writes what the scheduler does into the recorder's gpu stream, now unless a time is given."""

    def __init__(self, env: Clock, ring: Ring, recorder: Recorder) -> None:
        self._env, self._ring, self._rec = env, ring, recorder
        self._instance = 0

    def relaunched(self, step: int) -> None:
        """Recorded by the new instance."""
        self._instance += 1
        self._rec.gpu.add(event=Event.RELAUNCHED, t_ns=self._env.now, step=step, instance=self._instance)

    def crashed(self) -> None:
        """The scheduler's last row."""
        self._rec.gpu.add(event=Event.CRASHED, t_ns=self._env.now, instance=self._instance)

    def claimed(self, live: Live, step: int) -> None:
        """T2, with the number of KV blocks."""
        self._move(Event.CLAIM, self._env.now, _who(live), 0, step, kv_block_count=len(live.blocks))

    def rejected(self, who: Who, status: SlotStatus, step: int) -> None:
        """T3, after the look that saw a cancel or a fence."""
        self._seen(who, status, step)
        self._move(Event.REJECT, self._env.now, who, 0, step, status=status)

    def aborted(self, live: Live, source: SlotState, status: SlotStatus, count: int, step: int) -> None:
        """T9, after the look that saw a cancel or a fence."""
        self._seen(_who(live), status, step)
        self._move(Event.ABORT, self._env.now, _who(live), count, step, source=source, status=status)

    def first_token(self, live: Live, status: SlotStatus, count: int, t_ns: int, step: int) -> None:
        """T4, or T4' where the first token ends the request."""
        event = Event.FIRST_TOKEN if status is SlotStatus.NONE else Event.FINISH_AT_PREFILL
        self._move(event, t_ns, _who(live), count, step, status=status)

    def moved(self, event: Event, batch: Batch, step: int) -> None:
        """T6 or T7 of a whole batch."""
        if batch.columns:
            counts = self._counts(batch.slots)
            self._rec.move_all(event, self._env.now, batch.columns, counts, step, self._instance)

    def graph(self, event: Event, t_ns: int, shape: GraphShape, live: int, step: int) -> None:
        """A graph was launched, or is done."""
        self._rec.gpu.add(
            event=event, t_ns=t_ns, graph=shape.kind, batch=shape.batch, sequence=shape.sequence,
            live=live, step=step, instance=self._instance,
        )  # fmt: skip

    def steps(self, segment: Segment, first: int, last: int, ended: dict[int, SlotStatus]) -> None:
        """Steps first..last-1 of a segment; call before their tokens are stored in the ring."""
        batch = segment.batch
        if batch.columns:
            window = slice(first, last)
            self._rec.steps(
                segment.launched[window], segment.done[window], segment.stored[window], segment.sequence[window],
                segment.shape_batch, batch.columns, self._counts(batch.slots), segment.first_step + first,
                self._instance, ended,
            )  # fmt: skip

    def _seen(self, who: Who, status: SlotStatus, step: int) -> None:
        if status in _STOPPED:
            slot, generation, epoch, request_id = who
            self._rec.gpu.add(
                event=Event.CANCEL_SEEN, t_ns=self._env.now, slot=slot, generation=generation, epoch=epoch,
                request_id=request_id, status=status, step=step, instance=self._instance,
            )  # fmt: skip

    def _move(
        self,
        event: Event,
        t_ns: int,
        who: Who,
        count: int,
        step: int,
        *,
        source: SlotState | None = None,
        status: SlotStatus = SlotStatus.NONE,
        **more: int,
    ) -> None:
        self._rec.move(
            self._rec.gpu, event, t_ns, *who, count,
            source=source, status=status, step=step, instance=self._instance, **more,
        )  # fmt: skip

    def _counts(self, slots: I64) -> I64:
        words = self._ring.ctl[slots]
        return (words >> np.uint64(TOKEN_COUNT_SHIFT) & np.uint64(TOKEN_COUNT_MASK)).astype(np.int64)


def _who(live: Live) -> Who:
    return live.slot, live.generation, live.epoch, live.request.request_id
