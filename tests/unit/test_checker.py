"""The checker: valid traces conform, broken ones are named, incomplete ones never passed, stuck ones told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blink.common.checker import Verdict, check_trace
from blink.common.coverage import missing_from
from blink.common.events import EVIDENCE, EVIDENCE_OF, Event
from blink.common.layout import GENERATION_NONE
from blink.common.reference import TRANSITION_OF, Violation, step
from blink.common.ring_model import Model, Record, Ring
from blink.common.states import Actor, SlotState, SlotStatus
from blink.common.trace import Trace, TraceHeader, open_writer
from tests.unit.checker_cases import BREACHES, HOLDS, PREFILL, Change, edit, finish_all, small
from tests.unit.trace_builder import SLOTS, TraceBuilder, random_run, trace_of


def both(trace: Trace) -> Verdict:
    """The verdict, which must be the same with and without certification in bulk."""
    fast, plain = check_trace(trace), check_trace(trace, bulk=False)
    assert (fast.code, fast.reason) == (plain.code, plain.reason)
    assert fast.coverage == plain.coverage
    return fast


def _case(value: object) -> str:
    """The name of a case: what is built is left to the words beside it."""
    return "" if callable(value) else str(value)


@pytest.mark.parametrize(("invariant", "name", "build", "words"), BREACHES, ids=_case)
def test_a_breach_is_found_and_named(invariant: str, name: str, build: Change, words: str) -> None:
    b = TraceBuilder()
    build(b)
    verdict = both(trace_of(b.records, complete=False))
    assert verdict.code == 2
    assert verdict.violations[0].invariant == invariant, verdict.report()
    assert words in verdict.violations[0].message
    assert verdict.reason.startswith(f"{invariant}: ")


@pytest.mark.parametrize(("invariant", "name", "build"), HOLDS, ids=_case)
def test_its_nearest_relative_holds(invariant: str, name: str, build: Change) -> None:
    b = TraceBuilder()
    build(b)
    finish_all(b)
    verdict = both(trace_of(b.records, complete=False))
    assert verdict.code == 0, verdict.report()


def test_every_invariant_of_a_trace_has_both() -> None:
    wanted = {f"I{number}" for number in range(1, 11)}
    assert {breach[0] for breach in BREACHES} == wanted
    assert {hold[0] for hold in HOLDS} == wanted


# --- every single change of a small trace ---------------------------------------------------------------------------


def mutations_of(records: list[Record]) -> list[tuple[str, list[Record]]]:
    """Every trace with one event changed: states, generation, actor, count, request, slot, status, place."""
    found: list[tuple[str, list[Record]]] = []

    def change(at: int, **columns: int) -> None:
        label = f"{at} {Event(records[at].event).label} {columns}"
        found.append((label, [*records[:at], records[at]._replace(**columns), *records[at + 1 :]]))

    for at, record in enumerate(records):
        change(at, actor=1 - record.actor)
        for name in ("source", "target"):
            if getattr(record, name) >= 0:
                for state in set(SlotState) - {getattr(record, name)}:
                    change(at, **{name: state})
        for step_by in (1, -1, 1000):
            if record.generation >= 0:
                change(at, generation=(record.generation + step_by) % GENERATION_NONE)
            if record.token_count >= 0 and record.token_count + step_by >= 0:
                change(at, token_count=record.token_count + step_by)
        if record.slot >= 0:
            change(at, slot=(record.slot + 1) % SLOTS)
            change(at, request_id=record.request_id + 1)
        if record.event in TRANSITION_OF:
            for status in set(SlotStatus) - {record.status} - _alternatives(record):
                change(at, status=status)
        later = [place for place in range(at + 1, len(records)) if records[place].actor == record.actor]
        if later:
            swapped = list(records)
            swapped[at], swapped[later[0]] = swapped[later[0]], swapped[at]
            found.append((f"{at} and {later[0]} swapped", swapped))
        found.append((f"{at} twice", [*records[: at + 1], *records[at:]]))
    return found


def _alternatives(record: Record) -> set[SlotStatus]:
    """Statuses that would be just as right: nothing but the model knows why a text ends or an engine fails."""
    if record.event in (Event.FINISH, Event.FINISH_AT_PREFILL):
        return {SlotStatus.STOP, SlotStatus.LENGTH}
    return {SlotStatus.TIME_LIMIT, SlotStatus.ENGINE} if record.event == Event.ABORT else set()


def test_every_single_change_of_a_small_trace_is_a_violation() -> None:
    records = small().records
    assert both(trace_of(records)).code == 0
    mutations = mutations_of(records)
    assert len(mutations) > 600
    passed = [label for label, mutated in mutations if both(trace_of(mutated)).code != 2]
    assert passed == []


def test_a_row_taken_out_is_never_passed() -> None:
    records = small().records
    counts = small().trace().footer.events
    for at in range(len(records)):
        verdict = both(trace_of([*records[:at], *records[at + 1 :]], events=counts))
        assert verdict.code in (2, 3), at
    assert "the footer counts" in verdict.reason  # the last row left no gap


def test_order_within_an_actor_is_named_when_nothing_else_is_wrong() -> None:
    b = TraceBuilder()
    b.submit(0)
    b.submit(1)
    b.records[2], b.records[3] = b.records[3], b.records[2]
    b.records[1], b.records[2] = b.records[2], b.records[1]
    verdict = both(trace_of(b.records, complete=False))
    assert (verdict.code, verdict.violations[0].invariant) == (2, "I2")  # submit before its prompt
    b = TraceBuilder()
    b.status_read()
    b.post(0)
    b.records = [b.records[2]._replace(row=0), b.records[0]._replace(row=1), b.records[1]._replace(row=2)]
    verdict = both(trace_of(b.records, complete=False))
    assert (verdict.code, verdict.violations[0].invariant) == (2, "I1")
    assert verdict.violations[0].message == "program order: seq 0 of the frontend comes after seq 2"


# --- order between the actors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", list(Actor))
def test_one_actor_after_the_other_in_the_file_is_as_good_as_interleaved(first: Actor) -> None:
    for seed in range(20):
        records = random_run(np.random.default_rng(seed)).records
        blocks = sorted(records, key=lambda record: record.actor != first)
        verdict = both(trace_of(blocks))
        assert verdict.code == 0, verdict.report()


def test_no_two_clocks_are_compared() -> None:
    records = [record._replace(t_ns=record.seq if record.actor else 10**12 - record.seq) for record in small().records]
    assert both(trace_of(records)).code == 0


def test_a_cycle_of_waits_is_a_violation() -> None:
    """A token of slot 0 is read before slot 1 is submitted, and published after slot 1 is claimed."""
    b = TraceBuilder()
    b.start(0)
    b.submit(1)
    b.pause(0)
    b.claim(1)
    b.run(PREFILL)
    b.first_token(1)
    b.resume(0)
    b.decode()
    b.read(0)
    assert both(trace_of(b.records, complete=False)).code == 0
    read = b.records.pop()
    at = next(i for i, r in enumerate(b.records) if r.slot == 1)
    b.records.insert(at, read)
    numbered: dict[int, int] = {0: 0, 1: 0}
    for place, record in enumerate(b.records):
        b.records[place] = record._replace(seq=numbered[record.actor])
        numbered[record.actor] += 1
    verdict = both(trace_of(b.records, complete=False))
    assert (verdict.code, verdict.violations[0].invariant) == (2, "I7")
    assert "1 are published" in verdict.violations[0].message


# --- crashes --------------------------------------------------------------------------------------------------------


def test_a_lost_submission_may_be_made_again() -> None:
    b = TraceBuilder()
    b.submit(0)
    b.crash()
    b.restart()
    b.place(0).state = SlotState.EMPTY  # the WRITE never arrived, the ring says so
    b.start(0)
    finish_all(b)
    assert both(b.trace()).code == 0


def test_a_lost_recycle_may_be_made_again() -> None:
    b = TraceBuilder()
    b.start(0)
    b.decode(0)
    b.drain(0)
    b.crash()
    b.restart()
    place = b.place(0)
    place.state, place.generation = SlotState.DECODE_COMPLETED, 0
    b.recycle(0)
    b.start(0)
    finish_all(b)
    assert both(b.trace()).code == 0


def test_without_a_crash_neither_may_be_made_again() -> None:
    b = TraceBuilder()
    b.submit(0)
    b.place(0).state = SlotState.EMPTY
    b.submit(0)
    verdict = both(trace_of(b.records, complete=False))
    assert (verdict.code, verdict.violations[0].invariant) == (2, "I2")


def test_a_submission_that_a_crash_may_have_swallowed_is_not_stuck() -> None:
    b = TraceBuilder()
    b.submit(0)
    b.crash()
    b.restart()
    assert both(b.trace()).code == 0
    assert both(b.trace(slots={"free": SLOTS, "in_use": 0, "recovering": 0})).code == 0


def test_generations_wrap() -> None:
    b = TraceBuilder(generation=GENERATION_NONE - 1)
    b.start(0)
    finish_all(b)
    b.start(0)
    finish_all(b)
    assert b.place(0).generation == 1
    assert both(b.trace()).code == 0


# --- evidence -------------------------------------------------------------------------------------------------------

ALL = tuple(EVIDENCE_OF)


def with_evidence(body: Change) -> TraceBuilder:
    b = TraceBuilder(evidence=ALL)
    b.start(0)
    body(b)
    return b


@pytest.mark.parametrize(
    ("invariant", "body", "words"),
    [
        ("I2", lambda b: edit(b, Event.CLAIM, prompt_tag=7), "does not see the prompt of generation 0: it found tag 7"),
        ("I2", lambda b: (b.decode(0), edit(b, Event.FINISH, stored_count=1)), "token count 2 with 1 of them stored"),
        ("I7", lambda b: edit(b, Event.FIRST_TOKEN, stored_count=0), "token count 1 with 0 of them stored"),
        ("I7", lambda b: (b.decode(), edit(b, Event.TOKEN, stored_count=1)), "token count 2 with 1 of them stored"),
        ("I7", lambda b: (b.read(0), edit(b, Event.TOKENS_READ, wrong_count=1)), "not those of request 0"),
        ("I2", lambda b: edit(b, Event.CLAIM, prompt_tag=-1), "claim does not record prompt_tag"),
        ("I2", lambda b: (b.decode(), edit(b, Event.TOKEN, stored_count=-1)), "token does not record stored_count"),
        ("I7", lambda b: (b.read(0), edit(b, Event.TOKENS_READ, wrong_count=-1)), "does not record wrong_count"),
    ],
)
def test_evidence_of_a_breach_is_a_breach(invariant: str, body: Change, words: str) -> None:
    b = with_evidence(body)
    verdict = both(b.trace(complete=False))
    assert (verdict.code, verdict.violations[0].invariant) == (2, invariant), verdict.report()
    assert words in verdict.violations[0].message
    if "record" not in words:  # what stands in a trace is judged even where the header does not promise it
        assert both(trace_of(b.records, complete=False)).code == 2


def test_a_trace_without_evidence_conforms_and_says_what_is_not_judged() -> None:
    records = small().records
    bare, whole = both(trace_of(records)), both(trace_of(_with_evidence(records), evidence=ALL))
    assert (bare.code, whole.code) == (0, 0)
    assert whole.unjudged == ()
    assert "not judged" not in whole.report()
    for row, clause in zip(EVIDENCE, bare.unjudged, strict=True):
        assert row.shows in clause and all(invariant in clause for invariant in row.invariants)
        assert clause in bare.report()
    b = TraceBuilder()
    b.status_read()
    assert both(b.trace()).unjudged == (), "nothing was claimed, published or read"


def _with_evidence(records: list[Record]) -> list[Record]:
    """The evidence that a run gives in which nothing is wrong."""
    b = TraceBuilder(evidence=ALL)
    for record in records:
        columns = record._asdict()
        for name in ("row", "seq", "actor", "instance", "t_ns", *ALL):
            del columns[name]
        b.add(Event(columns.pop("event")), Actor(record.actor), **columns)
    return [new._replace(instance=old.instance) for new, old in zip(b.records, records, strict=True)]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_evidence_that_is_right_changes_no_verdict(seed: int) -> None:
    choices = np.random.default_rng(seed)
    b = random_run(choices, evidence=ALL)
    assert both(b.trace()).code == 0
    if any(record.event == Event.TOKEN for record in b.records):
        tokens = [row for row, record in enumerate(b.records) if record.event == Event.TOKEN]
        row = tokens[int(choices.integers(len(tokens)))]
        b.records[row] = b.records[row]._replace(stored_count=b.records[row].token_count - 1)
        verdict = both(b.trace())
        assert (verdict.code, verdict.violations[0].row) == (2, row)


# --- incomplete and stuck -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("actor", list(Actor))
def test_declared_drops_are_inconclusive(actor: Actor) -> None:
    dropped = {"frontend": 0, "gpu": 0, actor.label: 3}
    verdict = both(small().trace(dropped=dropped))
    assert verdict.code == 3
    assert f"3 events of the {actor.label} were dropped" in verdict.reason


def test_a_breach_before_a_gap_is_still_a_breach() -> None:
    b = TraceBuilder()
    b.start(0)
    b.decode()
    edited = b.records[-1]._replace(token_count=7)
    records = [*b.records[:-1], edited]
    b.records = records
    b.decode()
    b.decode()
    del b.records[-3]
    assert both(trace_of(b.records, complete=False)).violations[0].invariant == "I5"


def test_a_row_beyond_a_gap_is_judged_by_itself() -> None:
    b = TraceBuilder()
    b.start(0)
    b.decode()
    b.decode()
    wrong = b.records[-1]._replace(target=int(SlotState.EMPTY))
    verdict = both(trace_of([*b.records[:-4], *b.records[-3:-1], wrong], complete=False))
    assert (verdict.code, verdict.violations[0].invariant) == (2, "I1")
    right = both(trace_of([*b.records[:-4], *b.records[-3:]], complete=False))
    assert right.code == 3
    assert "is missing" in right.reason


def test_no_footer_is_inconclusive() -> None:
    trace = small().trace()
    verdict = both(Trace(trace.source, trace.header, None, trace.columns))
    assert verdict.code == 3
    assert "no footer" in verdict.reason


def test_another_layout_is_inconclusive() -> None:
    trace = small().trace()
    header = TraceHeader("test", "builder", 0, layout_hash=1, slot_count=SLOTS)
    assert both(Trace(trace.source, header, trace.footer, trace.columns)).code == 3


def test_a_complete_trace_with_a_slot_in_use_is_stuck() -> None:
    b = TraceBuilder()
    b.start(3)
    verdict = both(b.trace())
    assert verdict.code == 4
    assert verdict.violations[0].invariant == "L1"
    assert "slot 3 generation 0 (request 0) is left decode_processing" in verdict.reason
    assert both(b.trace(complete=False)).code == 0
    b.decode(3)
    assert both(b.trace()).code == 4, "complete in the ring, but not drained"
    b.drain(3)
    assert both(b.trace()).code == 0


def test_the_footers_slots_must_add_up() -> None:
    trace = small().trace
    assert both(trace(slots={"free": SLOTS, "in_use": 0, "recovering": 0})).code == 0
    short = both(trace(slots={"free": SLOTS - 1, "in_use": 0, "recovering": 0}))
    assert (short.code, short.violations[0].invariant) == (2, "I9")
    b = TraceBuilder()
    b.start(0)
    b.submit(1)
    assert both(b.trace(complete=False, slots={"free": SLOTS - 2, "in_use": 1, "recovering": 1})).code == 0
    freed = both(b.trace(complete=False, slots={"free": SLOTS - 1, "in_use": 1, "recovering": 0}))
    assert (freed.code, freed.violations[0].invariant) == (2, "I9")
    assert "2 are not empty" in freed.reason


# --- random traces --------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_random_valid_runs_conform(seed: int) -> None:
    verdict = both(random_run(np.random.default_rng(seed)).trace())
    assert verdict.code == 0, verdict.report()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_bulk_certification_never_changes_the_verdict(seed: int, changes: int) -> None:
    """Random valid traces with random changes: both paths find the same first breach."""
    choices = np.random.default_rng(seed)
    records = random_run(choices, steps=30).records
    for _ in range(changes):
        records = _changed(records, choices)
    both(trace_of(records))


def _changed(records: list[Record], choices: np.random.Generator) -> list[Record]:
    """One random change that may or may not matter; positions keep their `seq`, so that order is changed for real."""
    at = int(choices.integers(len(records)))
    record = records[at]
    kind = int(choices.integers(4))
    if kind == 0:  # another value, most often one that occurs
        name = Record._fields[int(choices.integers(5, len(Record._fields)))]
        value = getattr(records[int(choices.integers(len(records)))], name)
        if value == -1 or name == "event":
            value = getattr(record, name)
        return [*records[:at], record._replace(**{name: value}), *records[at + 1 :]]
    if kind == 1:  # out of the trace
        changed = [*records[:at], *records[at + 1 :]]
    elif kind == 2:  # once more
        changed = [*records[: at + 1], *records[at:]]
    else:  # to another place
        changed = [*records[:at], *records[at + 1 :]]
        changed.insert(min(at + int(choices.integers(1, 9)), len(changed)), record)
    numbers: dict[int, int] = {0: 0, 1: 0}
    for place, found in enumerate(changed):
        changed[place] = found._replace(seq=numbers[found.actor])
        numbers[found.actor] += 1
    return changed


def test_the_reference_replays_a_run_and_changes_no_model_in_place() -> None:
    records = random_run(np.random.default_rng(3)).records
    model = Model(Ring(slot_count=SLOTS), {})
    for record in records:
        before = (model.ring, dict(model.slots))
        after = step(model, record)
        assert (model.ring, dict(model.slots)) == before
        model = after
    assert all(slot.state == SlotState.EMPTY for slot in model.slots.values())
    token = next(record for record in records if record.event == Event.TOKEN)._replace(instance=-1)
    with pytest.raises(Violation, match=r"^I3: token of slot") as found:
        step(model, token)
    assert found.value.invariant == "I3"


# --- the verdict ----------------------------------------------------------------------------------------------------


def test_a_report_shows_the_events_that_matter() -> None:
    b = TraceBuilder()
    b.start(0)
    b.decode(0)
    b.recycle(0)
    verdict = both(trace_of(b.records))
    lines = verdict.report().splitlines()
    assert lines[0] == "violates: I7: slot 0 is recycled with 0 of its 2 tokens read"
    assert "event 9: seq 2 of the frontend" in lines[2]
    rows = lines[3 : lines.index("", 3)]
    context = [line.split() for line in rows]
    assert context[0][:4] == ["event", "seq", "actor", "instance"]
    assert "prompt_offset" not in context[0], "columns that do not apply to the event at fault are left out"
    name = context[0].index("name")
    assert [words[name] for words in context[1:]] == [
        "prompt_posted",
        "submit",
        "claim",
        "first_token",
        "finish",
        "recycle",
    ]
    assert len({line.index(words[2]) for line, words in zip(rows, context, strict=True)}) == 1, "aligned"
    assert json.loads(json.dumps(verdict.to_json()))["verdict"] == "violates"


def test_coverage_counts_what_occurred_and_lists_what_did_not() -> None:
    verdict = both(small().trace())
    coverage = verdict.coverage
    assert coverage["transitions"]["submit"] == 3
    assert coverage["statuses"]["cancelled"] == 1
    assert coverage["system"] == {"cancel": 1, "frontend restart": 0, "relaunch": 1}
    assert coverage["races"]["cancelled while decode_processing"] == 1
    assert "transitions reject" in missing_from([coverage])
    others = [both(random_run(np.random.default_rng(seed)).trace()).coverage for seed in range(12)]
    left = missing_from([coverage, *others])
    assert not [name for name in left if name.startswith(("transitions", "system"))]
    assert verdict.counts["events"] == 47


@pytest.mark.parametrize("suffix", [".ndjson", ".parquet"])
def test_a_file_gets_the_verdict_of_its_trace(tmp_path: Path, suffix: str) -> None:
    trace = random_run(np.random.default_rng(1)).trace()
    broken = trace.columns["token_count"].copy()
    broken[np.flatnonzero(trace.columns["event"] == Event.TOKEN)[4]] += 1
    for counts in (trace.columns["token_count"], broken):
        columns: dict[str, Any] = {**trace.columns, "token_count": counts}
        expected = check_trace(Trace(trace.source, trace.header, trace.footer, columns))
        writer = open_writer(tmp_path / f"trace{suffix}", trace.header)
        writer.write(columns, len(trace))
        writer.close(trace.footer)
        assert check_trace(tmp_path) == expected
        assert check_trace(tmp_path / f"trace{suffix}") == expected
    assert expected.code == 2
