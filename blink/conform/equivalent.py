"""The second level: each request goes through the same transitions on both backends, pauses and resumes left out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from blink.common.events import TRANSITION_EVENTS, Event
from blink.common.results import I64, Outcome, RunResult
from blink.common.states import Actor, SlotState, SlotStatus
from blink.common.trace import Trace
from blink.conform.compare import STEPS_BEFORE, Difference, side_by_side

_COMPARED = tuple(event for event in TRANSITION_EVENTS if event not in (Event.PAUSE, Event.RESUME))
_BY_A_CLOCK = (SlotStatus.CANCELLED, SlotStatus.TIME_LIMIT)
_COLUMNS = ("event", "from", "to", "token_count", "status")
_RESULTS = ("outcome", "status", "output_tokens", "prompt_tokens", "output_tokens_max", "kv_block_count")
"""Columns of the request table that depend on the request alone."""


def compare_lives(
    names: tuple[str, str], traces: tuple[Trace, Trace], results: tuple[RunResult, RunResult]
) -> tuple[dict[str, int], Difference | None]:
    """What was compared, and the first difference.

    A request that a cancel or the time limit ended on either side is left out and counted: when a clock strikes is no
    property of the request.
    """
    refused = [set(result.refusals) for result in results]
    if refused[0] != refused[1]:
        request_id = min(refused[0] ^ refused[1])
        who = names[0] if request_id in refused[0] else names[1]
        return {"requests": 0}, Difference(f"r{request_id}: only {who} refuses it", ())
    by_clock = _ended_by_clock(results)
    lives = [_lives(trace, by_clock) for trace in traces]
    compared = {
        "requests": int(np.unique(lives[0][:, 0]).size),
        "transitions": len(lives[0]),
        "ended by a clock": int(by_clock.size),
    }
    return compared, _first_life(names, lives) or _first_result(names, results, by_clock)


def _ended_by_clock(results: tuple[RunResult, RunResult]) -> I64:
    found = []
    for result in results:
        rows = result.requests
        struck = np.isin(rows["status"], _BY_A_CLOCK) | (rows["outcome"] == Outcome.CANCELLED)
        found.append(rows["request_id"][struck])
    return np.unique(np.concatenate(found))


def _lives(trace: Trace, left_out: I64) -> NDArray[np.int64]:
    """(n, 1 + columns) rows: the transitions of every request, request by request, in their order.

    The order of one request is submit, what the gpu did, recycle: no clock is compared with another.
    """
    columns = trace.columns
    chosen = np.isin(columns["event"], _COMPARED) & ~np.isin(columns["request_id"], left_out)
    table = np.stack([np.asarray(columns[name])[chosen].astype(np.int64) for name in ("request_id", *_COLUMNS)], axis=1)
    event, actor = columns["event"][chosen], columns["actor"][chosen]
    stage = np.where(actor == Actor.GPU, 1, np.where(event == Event.RECYCLE, 2, 0))
    order = np.lexsort((columns["seq"][chosen], stage, table[:, 0]))
    return np.asarray(table[order], np.int64)


def _first_life(names: tuple[str, str], lives: list[NDArray[np.int64]]) -> Difference | None:
    ours, theirs = lives
    count = min(len(ours), len(theirs))
    found = np.flatnonzero((ours[:count] != theirs[:count]).any(axis=1))
    if not found.size and len(ours) == len(theirs):
        return None
    row = int(found[0]) if found.size else count
    request_id = min(int(life[row, 0]) for life in lives if row < len(life))
    own = [life[life[:, 0] == request_id] for life in lives]
    at = row - int(np.searchsorted(ours[:, 0], request_id))
    words = [_words(life[at]) if at < len(life) else "nothing" for life in own]
    what = f"r{request_id}: transition {at} is {words[0]} on {names[0]}, {words[1]} on {names[1]}"
    first = max(0, at - STEPS_BEFORE)
    shown = [[[_words(move)] for move in life[first : at + 1]] for life in own]
    return Difference(what, tuple(side_by_side(names, shown[0], shown[1])))


def _words(move: NDArray[np.int64]) -> str:
    _, event, source, target, token_count, status = move.tolist()
    words = f"{Event(event).label} {SlotState(source).label} -> {SlotState(target).label}, count {token_count}"
    return words if status <= 0 else f"{words}, {SlotStatus(status).label}"


def _first_result(names: tuple[str, str], results: tuple[RunResult, RunResult], left_out: I64) -> Difference | None:
    kept = [~np.isin(result.requests["request_id"], left_out) for result in results]
    order = [np.argsort(r.requests["request_id"][k], kind="stable") for r, k in zip(results, kept, strict=True)]
    for name in ("request_id", *_RESULTS):
        ours, theirs = (
            result.requests[name][k][o] for result, k, o in zip(results, kept, order, strict=True)
        )  # fmt: skip
        if ours.size != theirs.size:
            return Difference(f"{names[0]} has {ours.size} requests, {names[1]} has {theirs.size}", ())
        unequal = np.flatnonzero(ours != theirs)
        if unequal.size:
            row = int(unequal[0])
            request_id = int(results[0].requests["request_id"][kept[0]][order[0]][row])
            what = f"r{request_id}: {name} is {ours[row]} on {names[0]}, {theirs[row]} on {names[1]}"
            return Difference(what, ())
    return None
