"""What a native run asked of the step model, from the scheduler's own records: shapes of graphs and KV tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from blink.common.events import Event, GraphKind
from blink.common.request import Request
from blink.common.results import I64
from blink.common.states import SlotState
from blink.perf.observed import RangeTracker

_IN_BATCH = (SlotState.DECODE_PROCESSING, SlotState.DECODE_PAUSED)


class Asked:
    """Follows the KV tokens of the batch from one launch to the next; right as long as no record is missing."""

    def __init__(self, request_of: Callable[[int, int], Request | None]) -> None:
        """`request_of` gives the request of (slot, generation)."""
        self._request_of = request_of
        self._kv_tokens = 0
        self._ranges = RangeTracker()

    def take(self, columns: dict[str, I64]) -> None:
        """Take in rows of the gpu, in order."""
        event, kind, batch = columns["event"], columns["graph"], columns["batch"]
        launched = event == Event.GRAPH_LAUNCHED
        prefills = np.flatnonzero(launched & (kind == GraphKind.PREFILL))
        for shape in set(zip(batch[prefills].tolist(), columns["sequence"][prefills].tolist(), strict=True)):
            self._ranges.prefill(*shape)
        kv_tokens = self._kv_tokens + np.cumsum(self._changes(columns))
        decodes = np.flatnonzero(launched & (kind == GraphKind.DECODE))
        if decodes.size:
            for extreme in (np.min, np.max):
                self._ranges.decode(int(extreme(batch[decodes])), int(extreme(kv_tokens[decodes])))
        self._kv_tokens = int(kv_tokens[-1])

    def _changes(self, columns: dict[str, I64]) -> I64:
        """By row: KV tokens that it adds to the batch, each request with its prompt and what it has generated."""
        event = columns["event"]
        changes: I64 = (event == Event.TOKEN).astype(np.int64)
        left = (event == Event.FINISH) | ((event == Event.ABORT) & np.isin(columns["from"], _IN_BATCH))
        for row in np.flatnonzero(left | (event == Event.FIRST_TOKEN)).tolist():
            request = self._request_of(int(columns["slot"][row]), int(columns["generation"][row]))
            held = (request.prompt_tokens if request else 0) + int(columns["token_count"][row])
            changes[row] = -(held - (event[row] == Event.FINISH)) if left[row] else held
        return changes

    def observed(self, *, whole: bool) -> dict[str, tuple[int, int]]:
        """Quantity -> (smallest, largest), for `StepModel.range_violations`; `whole` False: records are missing."""
        found = self._ranges.observed()
        if not whole:
            found.pop("kv_tokens", None)
        return found
