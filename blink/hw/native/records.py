"""From the scheduler's 32-byte records to rows of the trace, and what they tell of each request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blink.common.events import NOTHING, Event, GraphKind
from blink.common.layout import (
    EPOCH_MASK,
    EPOCH_SHIFT,
    GENERATION_MASK,
    GENERATION_SHIFT,
    STATE_MASK,
    STATUS_MASK,
    STATUS_SHIFT,
    TOKEN_COUNT_MASK,
    TOKEN_COUNT_SHIFT,
)
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import I64
from blink.hw.native.asked import Asked
from blink.hw.ring import Records

Columns = dict[str, I64]
_GRAPHS = np.isin(np.arange(256), (Event.GRAPH_LAUNCHED, Event.GRAPH_DONE))
_NO_SLOT = _GRAPHS | (np.arange(256) == Event.RELAUNCHED)
_LIFE_SHIFT = 24  # (slot, generation) as one number
_FIRST = (int(Event.FIRST_TOKEN), int(Event.FINISH_AT_PREFILL))
_TOLD = np.isin(np.arange(256), (Event.CLAIM, *_FIRST))
"""Tables by event: to look a few rows up in one is cheaper than np.isin."""


class RecordReader:
    """Rows of the gpu in the order of its records. `request_of` gives the request of (slot, generation)."""

    def __init__(
        self, recorder: Recorder | None, request_of: Callable[[int, int], Request | None], start_ns: int = 0
    ) -> None:
        self._recorder, self._request_of, self.start_ns = recorder, request_of, start_ns
        self._instance = 0
        self._prefilled_ns = NOTHING  # end of the last prefill
        self.last_ns = 0  # time of the last record
        self.asked = Asked(request_of)

    def take(self, records: Records) -> Columns:
        """Take in drained records, at least one: rows of the trace (which it returns) and times of requests."""
        columns = self._columns(records)
        self.last_ns = int(columns["t_ns"][-1])
        self._tell_requests(columns)
        self.asked.take(columns)
        if self._recorder:
            stream = self._recorder.gpu
            rows = stream.reserve(records.size)
            for name, values in columns.items():
                stream.columns[name][rows] = values
        return columns

    def _columns(self, records: Records) -> Columns:
        what = records["what"].astype(np.int64)
        ctl = records["ctl"]
        event = what & 0xFF
        source = what >> 8 & 0xFF
        of_slot = ~_NO_SLOT[event]
        of_graph = _GRAPHS[event]
        moves = of_slot & (event != Event.CANCEL_SEEN)
        seen = event == Event.CANCEL_SEEN
        instance = self._instance + np.cumsum(event == Event.RELAUNCHED)
        self._instance = int(instance[-1])

        def field(shift: int, mask: int) -> I64:
            return (ctl >> np.uint64(shift) & np.uint64(mask)).astype(np.int64)

        def only(where: np.ndarray[tuple[int], np.dtype[np.bool_]], values: I64) -> I64:
            return np.where(where, values, NOTHING)

        slot, generation = only(of_slot, what >> 16), only(of_slot, field(GENERATION_SHIFT, GENERATION_MASK))
        detail = records["detail"].astype(np.int64)
        status = np.where(seen, records["status"].astype(np.int64), field(STATUS_SHIFT, STATUS_MASK))
        return {
            "t_ns": records["t_ns"].astype(np.int64) - self.start_ns,
            "event": event,
            "instance": instance,
            "step": records["step"].astype(np.int64),
            "slot": slot,
            "generation": generation,
            "epoch": only(of_slot, field(EPOCH_SHIFT, EPOCH_MASK)),
            "request_id": self._request_ids(slot, generation),
            "from": only(moves, source),
            "to": only(moves, field(0, STATE_MASK)),
            "token_count": only(moves, field(TOKEN_COUNT_SHIFT, TOKEN_COUNT_MASK)),
            "status": only(of_slot & (moves | seen), status),
            "kv_block_count": only(event == Event.CLAIM, detail),
            "graph": only(of_graph, source),
            "batch": only(of_graph, field(0, 0xFFFF_FFFF)),
            "sequence": only(of_graph, field(32, 0xFFFF_FFFF)),
            "live": only(of_graph, detail),
        }

    def _request_ids(self, slot: I64, generation: I64) -> I64:
        lives, positions = np.unique(np.where(slot < 0, NOTHING, slot << _LIFE_SHIFT | generation), return_inverse=True)
        ids = []
        for life in lives.tolist():
            request = self._request_of(life >> _LIFE_SHIFT, life & GENERATION_MASK) if life >= 0 else None
            ids.append(NOTHING if request is None else request.request_id)
        return np.array(ids, np.int64)[positions]

    def _tell_requests(self, columns: Columns) -> None:
        """Times that only the gpu knows: claimed, prefilled, first token stored; blocks; pauses."""
        event = columns["event"]
        done = (event == Event.GRAPH_DONE) & (columns["graph"] == GraphKind.PREFILL)
        for row in np.flatnonzero(done | _TOLD[event]).tolist():
            code, time_ns = int(event[row]), int(columns["t_ns"][row])
            if code == Event.GRAPH_DONE:
                self._prefilled_ns = time_ns
                continue
            request = self._request_of(int(columns["slot"][row]), int(columns["generation"][row]))
            if request is None:
                continue
            if code == Event.CLAIM:
                request.claimed_ns, request.kv_block_count = time_ns, int(columns["kv_block_count"][row])
            else:
                request.prefilled_ns, request.stored_ns = self._prefilled_ns, time_ns
        for row in np.flatnonzero(event == Event.PAUSE).tolist():
            request = self._request_of(int(columns["slot"][row]), int(columns["generation"][row]))
            if request is not None:
                request.pause_count += 1
