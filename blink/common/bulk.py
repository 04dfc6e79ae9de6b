"""Bulk certification: which rows of a trace need no replay, because the row before in their slot vouches for them.

A long trace is mostly `token`, `pause` and `resume`. For those the specification looks only at the slot's row before
and at the graph launched last, so numpy can apply the same rules to millions of rows at once. A row is certified only
if `reference.step` would certainly accept it; every other row is replayed. A property test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blink.common.events import EVENT_RULES, NOTHING, Event, GraphKind
from blink.common.layout import GENERATION_NONE
from blink.common.reference import GPU, TRANSITION_OF
from blink.common.states import Actor, SlotState, SlotStatus
from blink.common.trace_data import Ints

Bools = NDArray[np.bool_]
Rows = NDArray[np.int64]
Fetch = Callable[[str], Ints]
"""Gives a column of the trace by name; a large column may be read from the file at each call."""

_BULK_EVENTS = (Event.TOKEN, Event.PAUSE, Event.RESUME)
_DECODING = int(SlotState.DECODE_PROCESSING)


@dataclass(frozen=True, slots=True)
class Bulk:
    """The certified rows, sorted by (slot, row): `rows`, what each leaves in its slot, and how many graphs were
    launched before it. `begin[s]` to `begin[s + 1]` are those of slot s. `mask` marks them among all rows.
    """

    mask: Bools
    rows: Rows
    target: Ints
    token_count: Ints
    launches: Ints
    begin: Rows
    decoding_change: Ints  # by row of the trace: what certified rows up to it add to the slots that decode

    @classmethod
    def nothing(cls, row_count: int, slot_count: int) -> Bulk:
        """No row is certified: a plain replay."""
        none = np.empty(0, np.int64)
        zeros = np.zeros(row_count, np.bool_)
        return cls(zeros, none, none, none, none, np.zeros(slot_count + 1, np.int64), np.zeros(row_count, np.int32))


def certify(fetch: Fetch, usable: Bools, slot_count: int, evidence: frozenset[str] = frozenset()) -> Bulk:
    """Certify rows among the `usable` ones (those whose order is known); `evidence` is what the header promises."""
    event, actor, slot = fetch("event"), fetch("actor"), fetch("slot")
    gpu = (actor == GPU) & usable
    mask = gpu & _shape_allows(fetch, event) & (slot >= 0) & (slot < slot_count)
    launches, decode_done, idle = _graph_facts(fetch, event, gpu)
    mask &= np.where(event == Event.TOKEN, decode_done, idle)
    mask &= _is_stored(fetch, event, "stored_count" in evidence)
    mask &= _same_instance(fetch("instance"), gpu)
    order = _slot_order(event, slot, gpu, slot_count)
    mask[order] &= _follows(fetch, order, launches)
    return _gather(fetch, mask, order, launches, slot_count)


def _shape_allows(fetch: Fetch, event: Ints) -> Bools:
    """The row by itself is a token, pause or resume with everything that such a row must record."""
    allowed = np.zeros((len(Event), len(SlotState) + 1, len(SlotState) + 1), np.bool_)
    for code in _BULK_EVENTS:
        transition = TRANSITION_OF[code]
        allowed[code, transition.sources[0], transition.target] = True
    mask: Bools = allowed[event, fetch("from"), fetch("to")]
    mask &= fetch("status") == SlotStatus.NONE
    for name in ("generation", "epoch", "token_count", "step", "request_id"):
        mask &= fetch(name) != NOTHING
    return mask


def _is_stored(fetch: Fetch, event: Ints, promised: bool) -> Bools:
    """The tokens that the row publishes were stored before, as far as the trace says."""
    stored = fetch("stored_count")
    silent: Bools = stored == NOTHING
    if promised:
        silent &= event != Event.TOKEN
    return silent | (stored >= fetch("token_count"))


def _graph_facts(fetch: Fetch, event: Ints, gpu: Bools) -> tuple[Ints, Bools, Bools]:
    """By row: graphs launched before it; whether the last graph is a decode and done; whether none runs."""
    launched = gpu & (event == Event.GRAPH_LAUNCHED)
    launches = np.cumsum(launched, dtype=np.int32)
    marks = np.flatnonzero(
        launched | (gpu & ((event == Event.GRAPH_DONE) | (event == Event.RESTARTED) | (event == Event.CRASHED)))
    )
    done = event[marks] == Event.GRAPH_DONE
    decode_done = done & (fetch("graph")[marks] == GraphKind.DECODE)
    last = np.zeros(len(event), np.int32)
    last[marks] = 1
    np.cumsum(last, out=last)  # 0: before the first graph event
    return launches, np.concatenate(([False], decode_done))[last], np.concatenate(([True], done))[last]


def _same_instance(instance: Ints, gpu: Bools) -> Bools:
    """The row carries the instance of the gpu's row before it, which the replay has checked, or none."""
    rows = np.flatnonzero(gpu)
    same = np.zeros(len(instance), np.bool_)
    if rows.size:
        found = instance[rows]
        same[rows[1:]] = found[1:] == found[:-1]
        same[rows] |= found == NOTHING
    return same


def _slot_order(event: Ints, slot: Ints, gpu: Bools, slot_count: int) -> Rows:
    """The gpu's transitions sorted by (slot, row)."""
    is_transition = np.zeros(len(Event), np.bool_)
    is_transition[list(TRANSITION_OF)] = True
    rows = np.flatnonzero(gpu & is_transition[event] & (slot >= 0) & (slot < slot_count))
    return rows[np.argsort(slot[rows].astype(np.int16), kind="stable")]


def _follows(fetch: Fetch, order: Rows, launches: Ints) -> Bools:
    """In the order of a slot: the row continues what the row before it left."""
    good = np.zeros(order.size, np.bool_)
    if order.size < 2:
        return good
    event = fetch("event")[order]
    is_token = event[1:] == Event.TOKEN
    slot = fetch("slot")[order]
    good[1:] = slot[1:] == slot[:-1]
    good[1:] &= fetch("to")[order][:-1] == fetch("from")[order][1:]
    for name in ("generation", "epoch", "request_id"):
        values = fetch(name)[order]
        good[1:] &= values[1:] == values[:-1]
    count = fetch("token_count")[order]
    good[1:] &= count[1:] - is_token == count[:-1]
    good &= count <= _limits(fetch, slot, fetch("generation")[order])
    launched = launches[order]
    good[1:] &= ~is_token | (launched[:-1] < launched[1:])
    return good


def _limits(fetch: Fetch, slot: Ints, generation: Ints) -> Ints:
    """The token limit of each row's (slot, generation) as its prompt_posted says; the least if there are several."""
    posts = np.flatnonzero(fetch("event") == Event.PROMPT_POSTED)
    keys = life_keys(fetch, posts)
    limits = np.minimum(fetch("output_tokens_max")[posts], fetch("output_capacity")[posts])
    order = np.lexsort((limits, keys))
    keys, limits = keys[order], limits[order]
    starts = np.flatnonzero(np.concatenate(([True], (slot[1:] != slot[:-1]) | (generation[1:] != generation[:-1]))))
    wanted = _life(slot[starts], generation[starts])
    at = np.searchsorted(keys, wanted)
    found = np.zeros(starts.size, np.int32)
    known = at < keys.size
    known[known] = keys[at[known]] == wanted[known]
    found[known] = limits[at[known]]
    return np.repeat(found, np.diff(np.concatenate((starts, [slot.size]))))


def life_keys(fetch: Fetch, rows: Rows) -> Ints:
    """One integer for each row's (slot, generation)."""
    return _life(fetch("slot")[rows], fetch("generation")[rows])


def _life(slot: Ints, generation: Ints) -> Ints:
    return slot.astype(np.int64) * (GENERATION_NONE + 1) + generation


def malformed(fetch: Fetch, rows: Rows) -> Rows:
    """Those of the rows whose actor, (from, to) or status no event of their name may have, whatever came before."""
    allowed = np.zeros((len(Event), len(Actor), len(SlotState) + 1, len(SlotState) + 1, len(SlotStatus) + 1), np.bool_)
    for event, rule in EVENT_RULES.items():
        actors = list(Actor) if rule.actor is None else [rule.actor]
        transition = TRANSITION_OF.get(event)
        if transition is None:
            allowed[event, actors] = True
        else:
            for source in transition.sources:
                allowed[event, rule.actor, source, transition.target, list(transition.statuses)] = True
    names = ("event", "actor", "from", "to", "status")
    return rows[~allowed[tuple(fetch(name)[rows] for name in names)]]


def _gather(fetch: Fetch, mask: Bools, order: Rows, launches: Ints, slot_count: int) -> Bulk:
    rows = order[mask[order]]
    target = fetch("to")[rows]
    change = np.zeros(len(mask), np.int32)
    source = fetch("from")[rows]
    change[rows] = (target == _DECODING).astype(np.int32) - (source == _DECODING)
    np.cumsum(change, out=change)
    begin = np.searchsorted(fetch("slot")[rows], np.arange(slot_count + 1))
    return Bulk(mask, rows, target, fetch("token_count")[rows], launches[rows], begin, change)
