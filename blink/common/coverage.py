"""Which transitions, statuses, system events and races a trace holds: the evidence for invariant S over a suite."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from blink.common.bulk import Bools, Fetch, Rows, life_keys
from blink.common.events import TRANSITION_EVENTS, Event
from blink.common.reference import FRONTEND, GPU
from blink.common.states import SlotState, SlotStatus
from blink.common.transitions import SYSTEM_EVENTS

Coverage = dict[str, dict[str, int]]
_ENDS = (Event.REJECT, Event.FINISH_AT_PREFILL, Event.FINISH, Event.ABORT)
_STOPPED = (SlotStatus.CANCELLED, SlotStatus.FENCED)
_LIVE_ON_GPU = (
    SlotState.PREFILL_PENDING,
    SlotState.PREFILL_PROCESSING,
    SlotState.DECODE_PROCESSING,
    SlotState.DECODE_PAUSED,
)


def coverage_of(fetch: Fetch) -> Coverage:
    """Counts by name; a name that did not occur has 0."""
    event, actor = fetch("event"), fetch("actor")
    by_event = np.bincount(event, minlength=len(Event))
    ended = np.flatnonzero(np.isin(event, _ENDS))
    statuses = np.bincount(np.maximum(fetch("status")[ended], 0), minlength=len(SlotStatus))
    frontend_restarts = np.flatnonzero((event == Event.RESTARTED) & (actor == FRONTEND))
    system = (by_event[Event.CANCEL_POSTED], frontend_restarts.size, by_event[Event.RELAUNCHED])
    return {
        "transitions": {code.label: int(by_event[code]) for code in TRANSITION_EVENTS},
        "statuses": {status.label: int(statuses[status]) for status in SlotStatus if status != SlotStatus.NONE},
        "system": {row.name: int(count) for row, count in zip(SYSTEM_EVENTS, system, strict=True)},
        "races": _races(fetch, ended, frontend_restarts),
    }


def missing_from(coverages: Iterable[Coverage]) -> list[str]:
    """What occurred in none of a suite's traces, as "kind name": invariant S asks that the list is empty."""
    total: dict[tuple[str, str], int] = {}
    for coverage in coverages:
        for kind, counts in coverage.items():
            for name, count in counts.items():
                total[kind, name] = total.get((kind, name), 0) + count
    return [f"{kind} {name}" for (kind, name), count in total.items() if not count]


def _races(fetch: Fetch, ended: Rows, frontend_restarts: Rows) -> dict[str, int]:
    """A cancel or fence against each state that it can meet, and a relaunch or restart against slots in use."""
    event, actor = fetch("event"), fetch("actor")
    status, source = fetch("status")[ended], fetch("from")[ended]
    races = {
        f"{stopped.label} while {state.label}": int(((status == stopped) & (source == state)).sum())
        for stopped in _STOPPED
        for state in _LIVE_ON_GPU
    }
    natural = ended[np.isin(status, (SlotStatus.STOP, SlotStatus.LENGTH))]
    cancels = np.flatnonzero(event == Event.CANCEL_POSTED)
    races["cancel lost to the finish"] = int(np.isin(life_keys(fetch, cancels), life_keys(fetch, natural)).sum())
    relaunches = np.flatnonzero(event == Event.RELAUNCHED)
    on_gpu = _in_use(actor == GPU, event == Event.CLAIM, np.isin(event, _ENDS[1:]))
    in_ring = _in_use(actor == FRONTEND, event == Event.SUBMIT, event == Event.RECYCLE)
    races["relaunch with slots in use"] = int((on_gpu[relaunches] > 0).sum())
    races["restart with slots in use"] = int((in_ring[frontend_restarts] > 0).sum())
    return races


def _in_use(actor: Bools, begins: Bools, ends: Bools) -> Rows:
    """By row: how many slots one actor has begun and not ended, in its own order."""
    change = (actor & begins).astype(np.int32) - (actor & ends)
    return np.cumsum(change)
