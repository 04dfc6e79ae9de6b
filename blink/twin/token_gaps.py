"""TokenGaps: the times between the tokens of each request of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blink.common.events import Event
from blink.common.lifecycle import LifeEvent, LifeTrace
from blink.common.results import I64
from blink.common.trace import Trace
from blink.twin.statistics import Floats

_TOKENS = (Event.FIRST_TOKEN, Event.TOKEN, Event.FINISH)
"""Rows of a scheduler that put a token into the ring where there is one before it, or will be one after it."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenGaps:
    """One entry a gap, those of a request one after another: nanoseconds, and the request's row in its run."""

    row: I64
    gap_ns: I64

    @classmethod
    def of_trace(cls, trace: Trace, request_ids: I64) -> TokenGaps:
        """As the ring saw them: from one token that the scheduler stored to the next. `request_ids`: by row of the run.

        Gaps of requests that are not among them are left out.
        """
        columns = trace.columns
        stored = np.isin(columns["event"], _TOKENS)
        request, t_ns = (np.asarray(columns[name])[stored].astype(np.int64) for name in ("request_id", "t_ns"))
        return cls._of_times(request, t_ns, request_ids)

    @classmethod
    def of_lifecycle(cls, trace: LifeTrace, request_ids: I64) -> TokenGaps:
        """As the core of a host-driven engine saw them: from one output of a request to its next."""
        columns = trace.columns
        made = np.isin(columns["event"], (LifeEvent.FIRST_TOKEN, LifeEvent.TOKEN))
        return cls._of_times(columns["request_id"][made], columns["t_ns"][made], request_ids)

    @classmethod
    def _of_times(cls, request: I64, t_ns: I64, request_ids: I64) -> TokenGaps:
        order = np.argsort(request_ids, kind="stable")
        at = np.minimum(np.searchsorted(request_ids[order], request), len(order) - 1)
        known = request_ids[order][at] == request
        row, t_ns = order[at[known]], t_ns[known]
        sequence = np.lexsort((t_ns, row))
        row, t_ns = row[sequence], t_ns[sequence]
        same = row[1:] == row[:-1]
        return cls(row[1:][same], np.diff(t_ns)[same])

    @classmethod
    def of_lists(cls, gaps_s: Sequence[Floats], ns_per_s: int) -> TokenGaps:
        """From the lists of a benchmark in seconds, one a row."""
        row = np.repeat(np.arange(len(gaps_s)), [len(gaps) for gaps in gaps_s])
        return cls(row, np.rint(np.concatenate([*gaps_s, np.zeros(0)]) * ns_per_s).astype(np.int64))

    def of_rows(self, rows: I64) -> tuple[I64, I64]:
        """Gaps of the chosen rows: the index into `rows` of each, and its nanoseconds."""
        place = np.full(max(int(self.row.max(initial=-1)), int(rows.max(initial=-1))) + 1, -1, np.int64)
        place[rows] = np.arange(len(rows))
        kept = place[self.row] >= 0
        return place[self.row[kept]], self.gap_ns[kept]
