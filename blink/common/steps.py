"""StepTable: every graph that a scheduler launched, by its rows of a trace: what it computed, and when.

The rows are those of the scheduler alone, in its order, as int64 columns with the names of a trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common.events import Event, GraphKind
from blink.common.results import I64
from blink.common.states import Actor, SlotState
from blink.common.trace_data import Trace

ROW_COLUMNS = (
    "t_ns", "event", "instance", "step", "request_id", "from", "token_count", "graph", "batch", "sequence", "live",
)  # fmt: skip
"""Columns of the scheduler's rows that a StepTable is made of."""
_STORES = (Event.FIRST_TOKEN, Event.FINISH_AT_PREFILL, Event.TOKEN, Event.FINISH)
_IN_BATCH = (SlotState.DECODE_PROCESSING, SlotState.DECODE_PAUSED)


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """One entry a launched graph whose end was recorded, in order; times in nanoseconds of the scheduler's clock.

    `batch` and `sequence` are the captured shape, `live` the real rows. `kv_tokens`: of the sequences that decode, as
    the step begins. `prompt_tokens`: of the prompts of a prefill, 0 of a decode. `boundary_ns` is the end of the step
    before (its last row), -1 for the first; `relaunched` says that a relaunch lies between.
    """

    step: I64
    kind: I64
    batch: I64
    sequence: I64
    live: I64
    kv_tokens: I64
    prompt_tokens: I64
    boundary_ns: I64
    claimed_ns: I64
    launched_ns: I64
    done_ns: I64
    stored_ns: I64
    ended_ns: I64
    relaunched: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def graph_ns(self) -> I64:
        """From each launch until its end was seen."""
        return self.done_ns - self.launched_ns

    def where(self, chosen: NDArray[np.bool_]) -> StepTable:
        """The chosen steps."""
        return StepTable(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    def of_kind(self, kind: GraphKind) -> StepTable:
        """The steps of one kind."""
        return self.where(self.kind == kind)

    @classmethod
    def of(cls, rows: Mapping[str, I64], prompt_tokens: Mapping[int, int]) -> StepTable:
        """From rows of the scheduler. `prompt_tokens`: request_id -> tokens of its prompt."""
        event, t_ns, step = rows["event"], rows["t_ns"], rows["step"]
        launched = np.flatnonzero(event == Event.GRAPH_LAUNCHED)
        done = np.flatnonzero(event == Event.GRAPH_DONE)
        launched = launched[np.isin(step[launched], step[done])]
        steps = step[launched]
        if not launched.size:
            nothing: dict[str, Any] = {column.name: np.zeros(0, np.int64) for column in fields(cls)}
            return cls(**{**nothing, "relaunched": np.zeros(0, np.bool_)})
        prompts = np.array([prompt_tokens.get(int(key), 0) for key in rows["request_id"]], np.int64)
        done_ns = t_ns[done[np.searchsorted(step[done], steps)]]
        stored_ns = _last(step, t_ns, np.isin(event, _STORES), steps, done_ns)
        ended_ns = _last(step, t_ns, event == Event.RESUME, steps, stored_ns)
        claimed = event == Event.CLAIM
        return cls(
            step=steps,
            kind=rows["graph"][launched],
            batch=rows["batch"][launched],
            sequence=rows["sequence"][launched],
            live=rows["live"][launched],
            kv_tokens=np.cumsum(_kv_changes(rows, prompts))[launched],
            prompt_tokens=_sums(step[claimed], prompts[claimed], steps),
            boundary_ns=np.concatenate([[-1], ended_ns[:-1]]),
            claimed_ns=_first(step, t_ns, claimed, steps, t_ns[launched]),
            launched_ns=t_ns[launched],
            done_ns=done_ns,
            stored_ns=stored_ns,
            ended_ns=ended_ns,
            relaunched=np.concatenate([[False], np.diff(rows["instance"][launched]) > 0]),
        )

    @classmethod
    def of_trace(cls, trace: Trace) -> StepTable:
        """From a whole trace."""
        columns = trace.columns
        rows = scheduler_rows(trace)
        posted = columns["event"] == Event.PROMPT_POSTED
        pairs = zip(columns["request_id"][posted].tolist(), columns["prompt_tokens"][posted].tolist(), strict=True)
        return cls.of(rows, dict(pairs))


def scheduler_rows(trace: Trace) -> dict[str, I64]:
    """ROW_COLUMNS of the scheduler's rows of a trace, in its order."""
    mine = np.flatnonzero(trace.columns["actor"] == Actor.GPU)
    mine = mine[np.argsort(trace.columns["seq"][mine], kind="stable")]
    return {name: np.asarray(trace.columns[name])[mine].astype(np.int64) for name in ROW_COLUMNS}


def _kv_changes(rows: Mapping[str, I64], prompts: I64) -> I64:
    """By row: KV tokens that it adds to what decodes, each request with its prompt and what it has generated."""
    event, count = rows["event"], rows["token_count"]
    changes: I64 = (event == Event.TOKEN).astype(np.int64)
    entered = event == Event.FIRST_TOKEN
    changes[entered] = prompts[entered] + 1
    finished = event == Event.FINISH
    changes[finished] = -(prompts + count - 1)[finished]
    aborted = (event == Event.ABORT) & np.isin(rows["from"], _IN_BATCH)
    changes[aborted] = -(prompts + count)[aborted]
    return changes


def _last(step: I64, t_ns: I64, chosen: NDArray[np.bool_], steps: I64, otherwise: I64) -> I64:
    """The time of the last chosen row of each step."""
    found, times = step[chosen], t_ns[chosen]
    if not found.size:
        return otherwise.copy()
    at = np.searchsorted(found, steps, side="right") - 1
    return np.where((at >= 0) & (found[at] == steps), times[at], otherwise)


def _first(step: I64, t_ns: I64, chosen: NDArray[np.bool_], steps: I64, otherwise: I64) -> I64:
    """The time of the first chosen row of each step."""
    found, times = step[chosen], t_ns[chosen]
    if not found.size:
        return otherwise.copy()
    at = np.minimum(np.searchsorted(found, steps), found.size - 1)
    return np.where(found[at] == steps, times[at], otherwise)


def _sums(keys: I64, values: I64, wanted: I64) -> I64:
    """The sum of the values of each wanted key; the keys ascend."""
    total: I64 = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    return total[np.searchsorted(keys, wanted, side="right")] - total[np.searchsorted(keys, wanted)]
