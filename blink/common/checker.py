"""Checks a trace against the specification: the invariants I1 to I10 and, if it claims to be complete, L1.

The trace is replayed through `blink.common.reference`; two actors are merged by hand-over of ownership, never by a
clock (`blink.common.replay`). Which events are the evidence for which invariant:

| invariant | evidence in a trace |
|---|---|
| I1 | a transition whose (from, to, actor), name or status the table lacks, or whose `from` is not the slot's state; an event of the wrong actor; an actor that acts while crashed or as a wrong instance; `seq` that repeats or goes back |
| I2 | `prompt_posted` while the gpu owns the slot; `submit` before the prompt of that generation; a request_id other than the prompt's; a `claim` whose `prompt_tag` is not the posted one; a completion that publishes more tokens than its `stored_count` |
| I3 | a `generation` other than the slot's; a `recycle` that does not raise it by exactly one |
| I4 | a second `claim` of one generation |
| I5 | a token count that the transition's rule does not give |
| I6 | a token count above `output_tokens_max` or `output_capacity`; `prompt_posted` with areas that overlap a live slot's |
| I7 | `tokens_read` that skips, repeats or runs ahead of what is published; `recycle` with tokens unread, or while a `status_read` is posted and not done; a first or further token that publishes more than its `stored_count`; a `wrong_count` above 0 |
| I8 | status `cancelled` without `cancel_posted` of that generation; `fenced` under the current epoch; an epoch that is not the slot's or the frontend's; `restarted` with an epoch that does not follow the last one, or repeats one under which something was done |
| I9 | a slot outside the ring; the footer's free + in_use + recovering |
| I10 | `graph_launched` for a slot after its `cancel_seen`, or for another number of slots than are in the covered state; one graph at a time; a token without a done graph that was launched for the slot; a pause, resume, abort or `relaunched` while a graph runs |
| L1 | a trace that claims to be complete and leaves a slot not empty |

What the events alone cannot show: the order in which WRITEs arrive in memory, torn READs, the bytes of prompts and
tokens. A backend that knows more adds evidence (events.EVIDENCE) and names it in the header; what has none is listed as
not judged. The model search and the hardware tests look at it all.
"""  # noqa: E501  # a table row is one line

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from blink.common.bulk import Bools, Bulk, Fetch, Rows, certify, malformed
from blink.common.coverage import coverage_of
from blink.common.events import EVENT_RULES, EVIDENCE, Event
from blink.common.layout import layout_hash
from blink.common.reference import EMPTY, PENDING, Violation, check_form
from blink.common.replay import Found, Records, Replay
from blink.common.ring_model import Ring
from blink.common.states import Actor, SlotState
from blink.common.trace import Ints, Trace, TraceFooter, TraceHeader, read_trace, trace_path
from blink.common.verdict import CONFORMS, INCONCLUSIVE, STUCK, VIOLATES, Finding, Verdict, with_contexts

__all__ = ["Finding", "Verdict", "check_trace"]

VIOLATIONS_MAX = 10
_KEPT = ("seq", "actor", "instance", "slot", "generation", "epoch", "event", "from", "to", "token_count", "status")
"""Columns that a check of a file holds in memory; the others are read when they are needed, one at a time."""


def check_trace(source: Trace | Path | str, *, bulk: bool = True, violations_max: int = VIOLATIONS_MAX) -> Verdict:
    """The verdict on a trace, given itself or as the path of a file or of a run's directory.

    `bulk` False replays every row instead of certifying runs of tokens at once; the verdict is the same. Raises
    InputError for a file that is broken.
    """
    header, footer, fetch = _open(source)
    order = [_program_order(fetch, actor, footer) for actor in Actor]
    usable = np.zeros(len(fetch("seq")), np.bool_)
    for found in order:
        usable[found.rows] = True
    replay = _replay(header, fetch, usable, order, bulk, violations_max)
    found_rows = replay.found + _malformed_rest(fetch, usable, header.slot_count, violations_max)
    findings = [_finding(found) for found in found_rows[:violations_max]]
    if not findings:
        findings = [found.breach for found in order if found.breach is not None]
    findings = with_contexts(fetch, findings) if findings else []
    incomplete = _incomplete(header, footer, order)
    if not incomplete:
        findings += _slot_counts(header, footer, replay)
    stuck = [] if findings or incomplete or footer is None or not footer.complete else _left_over(replay)
    code, reason = _judge(findings, incomplete, stuck, footer)
    counts = _counts(fetch, order, replay, footer)
    shown = tuple(findings or stuck[:violations_max])
    return Verdict(code, reason, shown, counts, coverage_of(fetch), _unjudged(header, counts))


def _open(source: Trace | Path | str) -> tuple[TraceHeader, TraceFooter | None, Fetch]:
    """Header, footer and a function that gives a column."""
    if not isinstance(source, Trace):
        path = trace_path(source)
        if path.suffix != ".ndjson":
            kept = read_trace(path, _KEPT)

            def fetch(name: str) -> Ints:
                found = kept.columns.get(name)
                return read_trace(path, [name]).columns[name] if found is None else found

            return kept.header, kept.footer, fetch
        source = read_trace(path)
    columns = source.columns
    return source.header, source.footer, columns.__getitem__


# --- the order within an actor --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ActorOrder:
    """The rows of one actor up to the first that is missing, what is wrong with their `seq`, and what is missing."""

    actor: Actor
    rows: Rows
    row_count: int
    breach: Finding | None = None
    incomplete: str | None = None


def _program_order(fetch: Fetch, actor: Actor, footer: TraceFooter | None) -> _ActorOrder:
    """`seq` must count up by one from 0: what is missing was dropped, what repeats or goes back is a breach."""
    rows = np.flatnonzero(fetch("actor") == actor)
    seq = fetch("seq")[rows]
    breach: Finding | None = None
    incomplete, end = _declared_loss(actor, rows.size, footer), rows.size
    if (seq != np.arange(rows.size)).any():
        breach = _out_of_order(actor, rows, seq)
        present = np.unique(seq)
        gaps = np.flatnonzero(present != np.arange(present.size))
        if gaps.size:
            missing = int(gaps[0])
            incomplete = f"event {missing} of the {actor.label} is missing"
            end = int(np.flatnonzero(seq > missing)[0])
    elif footer is not None and footer.dropped[actor.label]:
        end = 0  # something is missing and nothing says where
    return _ActorOrder(actor, rows[:end], rows.size, breach, incomplete)


def _declared_loss(actor: Actor, row_count: int, footer: TraceFooter | None) -> str | None:
    if footer is None:
        return "the trace has no footer: it was cut off"
    if footer.dropped[actor.label]:
        return f"{footer.dropped[actor.label]} events of the {actor.label} were dropped"
    if footer.events[actor.label] != row_count:
        return f"the footer counts {footer.events[actor.label]} events of the {actor.label}, the trace has {row_count}"
    return None


def _out_of_order(actor: Actor, rows: Rows, seq: Ints) -> Finding | None:
    """The first row whose `seq` is not above all before it."""
    highest = np.maximum.accumulate(seq)
    wrong = np.flatnonzero(seq[1:] <= highest[:-1])
    if not wrong.size:
        return None
    at = int(wrong[0]) + 1
    message = f"program order: seq {seq[at]} of the {actor.label} comes after seq {highest[at - 1]}"
    return Finding("I1", message, int(rows[at]), int(seq[at]), actor.label)


# --- the replay -----------------------------------------------------------------------------------------------------


def _replay(
    header: TraceHeader, fetch: Fetch, usable: Bools, order: list[_ActorOrder], bulk: bool, violations_max: int
) -> Replay:
    evidence = frozenset(header.evidence)
    certified = (
        certify(fetch, usable, header.slot_count, evidence) if bulk else Bulk.nothing(usable.size, header.slot_count)
    )
    ring = Ring(header.slot_count, header.generation, header.epoch, evidence=evidence)
    open_ended = frozenset(int(found.actor) for found in order if found.incomplete)
    replay = Replay(ring, certified, open_ended, violations_max)
    records = Records(fetch, np.flatnonzero(usable & ~certified.mask))
    replay.run(records.of(Actor.FRONTEND), records.of(Actor.GPU))
    return replay


def _malformed_rest(fetch: Fetch, usable: Bools, slot_count: int, violations_max: int) -> list[Found]:
    """Rows beyond a gap cannot be replayed, but what is wrong with them by themselves is wrong all the same."""
    rows = malformed(fetch, np.flatnonzero(~usable))[:violations_max]
    found = []
    for record in Records(fetch, rows):
        try:
            check_form(record, slot_count)
        except Violation as violation:
            found.append(Found(record, violation))
    return found


def _finding(found: Found) -> Finding:
    record, violation = found.record, found.violation
    return Finding(
        violation.invariant,
        violation.message,
        record.row,
        record.seq,
        Actor(record.actor).label,
        record.slot,
    )


# --- the end of the trace -------------------------------------------------------------------------------------------


def _incomplete(header: TraceHeader, footer: TraceFooter | None, order: list[_ActorOrder]) -> list[str]:
    """Why the trace cannot be judged as a whole; empty if it can."""
    reasons = list(dict.fromkeys(found.incomplete for found in order if found.incomplete))
    if header.layout_hash != layout_hash():
        reasons.append(f"the trace was made under layout {header.layout_hash:016x}, this is {layout_hash():016x}")
    return reasons


def _slot_counts(header: TraceHeader, footer: TraceFooter | None, replay: Replay) -> list[Finding]:
    """I9 in the footer's counts of slots."""
    if footer is None or footer.slots is None or replay.stopped_early:
        return []
    slots = footer.slots
    total = sum(slots.values())
    if total != header.slot_count:
        terms = " + ".join(f"{name} {count}" for name, count in slots.items())
        return [Finding("I9", f"{terms} is {total}, the ring has {header.slot_count} slots")]
    held = sum(slot.state != EMPTY and not _may_be_empty(replay, index) for index, slot in replay.slots.items())
    if slots["free"] > header.slot_count - held:
        return [Finding("I9", f"the frontend counts {slots['free']} slots as free, but {held} are not empty")]
    return []


def _may_be_empty(replay: Replay, index: int) -> bool:
    """A submission that a crashed frontend posted and that nothing shows to have arrived."""
    slot = replay.slots[index]
    return slot.state == PENDING and slot.written_by < replay.ring.frontend_incarnation


def _left_over(replay: Replay) -> list[Finding]:
    """L1: slots that are not empty at the end of a trace that claims to be complete."""
    return [
        Finding(
            "L1",
            f"slot {index} generation {slot.generation} (request {slot.request_id}) is left "
            f"{SlotState(slot.state).label} with {slot.read_count} of {slot.token_count} tokens read",
            slot=index,
        )
        for index, slot in sorted(replay.slots.items())
        if slot.state != EMPTY and not _may_be_empty(replay, index)
    ]


def _unjudged(header: TraceHeader, counts: dict[str, int]) -> tuple[str, ...]:
    """What the events of this trace leave open and it has no evidence for."""
    return tuple(
        f"whether {row.shows} ({', '.join(row.invariants)})"
        for row in EVIDENCE
        if row.column not in header.evidence and any(f"events_{event.label}" in counts for event in row.events)
    )


def _judge(
    findings: list[Finding], incomplete: list[str], stuck: list[Finding], footer: TraceFooter | None
) -> tuple[int, str]:
    if findings:
        return VIOLATES, f"{findings[0].invariant}: {findings[0].message}"
    if incomplete:
        return INCONCLUSIVE, "; ".join(incomplete)
    if stuck:
        return STUCK, f"{stuck[0].invariant}: the trace claims to be complete, but {stuck[0].message}"
    if footer is not None and not footer.complete:
        return CONFORMS, "no violation as far as the run went; it ended before it drained, so L1 is not judged"
    return CONFORMS, "every event obeys the specification and every slot came back"


def _counts(fetch: Fetch, order: list[_ActorOrder], replay: Replay, footer: TraceFooter | None) -> dict[str, int]:
    by_event = np.bincount(fetch("event"), minlength=len(Event))
    return {
        "events": sum(found.row_count for found in order),
        **{f"events_{found.actor.label}": found.row_count for found in order},
        **{f"events_{event.label}": int(by_event[event]) for event in EVENT_RULES if by_event[event]},
        "events_certified_in_bulk": int(replay.bulk.mask.sum()),
        "events_not_judged": sum(found.row_count - found.rows.size for found in order),
        "idle_status_reads": footer.idle_status_reads if footer is not None else 0,
    }
