"""Traces that break each invariant, and for each its nearest relative that does not."""

from __future__ import annotations

from collections.abc import Callable

from blink.common.events import Event, GraphKind
from blink.common.states import Actor, SlotState, SlotStatus
from tests.unit.trace_builder import SLOTS, TraceBuilder

PREFILL, DECODE = GraphKind.PREFILL, GraphKind.DECODE
CANCELLED, FENCED = SlotStatus.CANCELLED, SlotStatus.FENCED
Change = Callable[[TraceBuilder], object]


def edit(b: TraceBuilder, event: Event, nth: int = 0, **columns: int) -> None:
    """Change columns of the nth record of an event (negative: from the end)."""
    row = [record.row for record in b.records if record.event == event][nth]
    b.records[row] = b.records[row]._replace(**columns)


def small() -> TraceBuilder:
    """Two requests, one of them paused for the other's prefill, a cancel, a relaunch, and a third request."""
    b = TraceBuilder()
    b.start(0)
    b.submit(1)
    b.pause(0)
    b.claim(1)
    b.run(PREFILL)
    b.first_token(1)
    b.resume(0)
    b.decode()
    b.status_read()
    b.read(0)
    b.cancel(1)
    b.decode(0)
    b.cancel_seen(1)
    b.abort(1, CANCELLED)
    b.drain(0)
    b.recycle(1)
    b.relaunch()
    b.start(0)
    b.decode(0)
    b.drain(0)
    return b


def whole(body: Change) -> Change:
    """A request in slot 0 that has its first token, then `body`."""

    def build(b: TraceBuilder) -> None:
        b.start(0)
        body(b)

    return build


def steps(*calls: Change) -> Change:
    def build(b: TraceBuilder) -> None:
        for call in calls:
            call(b)

    return build


def finish_all(b: TraceBuilder) -> None:
    """End whatever decodes, and drain every slot that is complete."""
    if b.in_state(SlotState.DECODE_PROCESSING):
        b.decode(*b.in_state(SlotState.DECODE_PROCESSING))
    for slot in b.in_state(SlotState.DECODE_COMPLETED):
        b.drain(slot)


def _recycle_with_read_in_flight(b: TraceBuilder) -> None:
    b.decode(0)
    b.status_read()
    b.read(0)
    b.add(Event.STATUS_READ, Actor.FRONTEND, phase=0)
    b.recycle(0)
    b.add(Event.STATUS_READ, Actor.FRONTEND, phase=1)


def _twice_claimed(b: TraceBuilder) -> None:
    b.submit(0)
    b.claim(0)
    b.place(0).state = SlotState.PREFILL_PENDING
    b.claim(0)


def _submit_without_prompt(b: TraceBuilder) -> None:
    b.submit(0)
    b.records.pop(0)
    b.records[0] = b.records[0]._replace(seq=0)
    b.seq[Actor.FRONTEND] = 1


def _overlap(**columns: int) -> Change:
    return steps(lambda b: b.submit(0), lambda b: b.submit(1, **columns))


def _crash_then_fence(b: TraceBuilder) -> None:
    b.start(0)
    b.crash()
    b.restart()
    _fenced(b)


def _fenced(b: TraceBuilder) -> None:
    b.cancel_seen(0, FENCED)
    b.abort(0, FENCED)
    b.recycle(0)


def _launch_after_seen(b: TraceBuilder) -> None:
    b.start(0)
    b.cancel(0)
    b.cancel_seen(0)
    b.run(DECODE)


def _launch_before_seen(b: TraceBuilder) -> None:
    b.start(0)
    b.cancel(0)
    b.run(DECODE)
    b.token(0)
    b.cancel_seen(0)
    b.abort(0, CANCELLED)
    b.recycle(0)


def _prefill_while_doomed_is_paused(b: TraceBuilder) -> None:
    """A graph for others may be launched while a cancelled slot stands paused: it is not launched for that slot."""
    b.start(0)
    b.cancel(0)
    b.submit(1)
    b.pause(0)
    b.cancel_seen(0)
    b.claim(1)
    b.run(PREFILL)
    b.first_token(1)
    b.abort(0, CANCELLED)
    b.recycle(0)


def _twice_in_one_step(b: TraceBuilder) -> None:
    b.start(0)
    b.decode()
    b.token(0)


def _token_of_a_graph_launched_before_resume(b: TraceBuilder) -> None:
    b.start(0)
    b.pause(0)
    b.launch(DECODE)
    b.done()
    b.resume(0)
    b.token(0)


def _resumed_after_seen(b: TraceBuilder) -> None:
    b.start(0)
    b.cancel(0)
    b.pause(0)
    b.cancel_seen(0)
    b.resume(0)
    b.launch(DECODE)


def _crash_under_a_read(b: TraceBuilder) -> None:
    """A restarted frontend has a new connection: the READ of its predecessor is in flight no more."""
    b.start(0)
    b.decode(0)
    b.add(Event.STATUS_READ, Actor.FRONTEND, phase=0)
    b.crash()
    b.restart()
    b.recycle(0)


def _token_while_paused(b: TraceBuilder) -> None:
    b.pause(0)
    b.run(DECODE)
    b.place(0).state = SlotState.DECODE_PROCESSING
    b.token(0)


BREACHES: list[tuple[str, str, Change, str]] = [
    ("I1", "illegal triple", whole(lambda b: (b.decode(), edit(b, Event.TOKEN, target=2))), "may not move a slot"),
    (
        "I1",
        "name and triple differ",
        whole(lambda b: (b.pause(0), edit(b, Event.PAUSE, target=5, status=1))),
        "pause does not lead",
    ),
    (
        "I1",
        "status not allowed",
        whole(lambda b: (b.decode(0), edit(b, Event.FINISH, status=CANCELLED))),
        "finish with status cancelled",
    ),
    ("I1", "wrong actor", whole(lambda b: (b.decode(), edit(b, Event.TOKEN, actor=0))), "only the gpu may"),
    ("I1", "not the slot's state", whole(_token_while_paused), "the slot is decode_paused"),
    (
        "I1",
        "missing column",
        whole(lambda b: edit(b, Event.CLAIM, kv_block_count=-1)),
        "claim does not record kv_block_count",
    ),
    (
        "I1",
        "a record of the wrong instance",
        whole(lambda b: (b.decode(), edit(b, Event.TOKEN, instance=3))),
        "instance 0 is alive",
    ),
    ("I1", "acts after a crash", whole(lambda b: (b.crash(), b.submit(1))), "acts after it crashed"),
    (
        "I1",
        "gpu moves a slot that nobody submitted",
        steps(lambda b: b.submit(0), lambda b: b.claim(0), lambda b: b.records.pop(0), lambda b: b.records.pop(0)),
        "the slot is empty",
    ),
    (
        "I1",
        "a token lands in the slot next door",
        whole(lambda b: (b.submit(1), b.decode(), b.decode(), edit(b, Event.TOKEN, -1, slot=1))),
        "the slot is prefill_pending",
    ),
    ("I2", "submit without prompt", _submit_without_prompt, "submitted before the prompt"),
    ("I2", "prompt into a slot of the gpu", whole(lambda b: b.post(0)), "while the slot is decode_processing"),
    ("I2", "another request", whole(lambda b: edit(b, Event.CLAIM, request_id=9)), "is for request 9"),
    ("I3", "stale generation", whole(lambda b: edit(b, Event.CLAIM, generation=4)), "generation 4, it must be 0"),
    (
        "I3",
        "recycle bumps by two",
        whole(lambda b: (finish_all(b), edit(b, Event.RECYCLE, generation=2))),
        "generation 2, it must be 1",
    ),
    (
        "I3",
        "recycle does not bump",
        whole(lambda b: (finish_all(b), edit(b, Event.RECYCLE, generation=0))),
        "generation 0, it must be 1",
    ),
    ("I4", "two claims", _twice_claimed, "claimed a second time"),
    ("I5", "count falls", whole(lambda b: (b.decode(), edit(b, Event.TOKEN, token_count=0))), "must be 2"),
    ("I5", "count jumps", whole(lambda b: (b.decode(), edit(b, Event.TOKEN, token_count=3))), "must be 2"),
    ("I5", "pause counts", whole(lambda b: (b.pause(0), edit(b, Event.PAUSE, token_count=2))), "must be 1"),
    ("I6", "beyond output_tokens_max", steps(lambda b: b.start(0, tokens=1), lambda b: b.decode()), "its limit is 1"),
    (
        "I6",
        "beyond output_capacity",
        whole(lambda b: (edit(b, Event.PROMPT_POSTED, output_capacity=1), b.decode())),
        "its limit is 1",
    ),
    ("I6", "prompt areas overlap", _overlap(prompt_offset=9), "the prompt areas of slots 1 and 0 overlap"),
    (
        "I6",
        "the area after it overlaps",
        steps(lambda b: b.submit(0, prompt_offset=20), lambda b: b.submit(1, prompt_offset=11)),
        "the prompt areas of slots 1 and 0 overlap",
    ),
    ("I6", "output areas overlap", _overlap(output_offset=99), "the output areas of slots 1 and 0 overlap"),
    (
        "I7",
        "a token is skipped",
        whole(lambda b: (b.decode(), b.read(0), edit(b, Event.TOKENS_READ, token_from=1))),
        "once and in order",
    ),
    (
        "I7",
        "a token twice",
        whole(lambda b: (b.read(0), b.decode(), b.read(0), edit(b, Event.TOKENS_READ, 1, token_from=0))),
        "once and in order",
    ),
    ("I7", "nothing is read", whole(lambda b: (b.read(0), b.read(0))), "once and in order"),
    ("I7", "ahead of what is published", whole(lambda b: b.read(0, 2)), "1 are published"),
    ("I7", "recycled undrained", whole(lambda b: (b.decode(0), b.recycle(0))), "0 of its 2 tokens read"),
    ("I7", "recycled under a READ", whole(_recycle_with_read_in_flight), "while a READ"),
    ("I7", "done without posted", whole(lambda b: b.add(Event.STATUS_READ, Actor.FRONTEND, phase=1)), "not posted"),
    ("I8", "cancelled without cancel", whole(lambda b: b.abort(0, CANCELLED)), "no cancel was posted"),
    ("I8", "seen without cancel", whole(lambda b: b.cancel_seen(0)), "no cancel was posted"),
    (
        "I8",
        "cancel of another generation",
        whole(lambda b: (b.cancel(0), edit(b, Event.CANCEL_POSTED, generation=5))),
        "not in the ring",
    ),
    ("I8", "fenced in the current epoch", whole(lambda b: b.abort(0, FENCED)), "is the frontend's"),
    (
        "I8",
        "restart skips an epoch",
        whole(lambda b: (b.crash(), b.restart(), edit(b, Event.RESTARTED, epoch=2))),
        "it must be 1",
    ),
    (
        "I8",
        "a restart keeps the epoch of the first frontend",
        whole(lambda b: (b.crash(), b.restart(landed=False))),
        "restarts with epoch 0, it must be 1",
    ),
    (
        "I8",
        "a restart keeps an epoch under which a prompt was posted",
        whole(lambda b: (b.crash(), b.restart(), b.post(1), b.crash(), b.restart(landed=False))),
        "restarts with epoch 1, it must be 2",
    ),
    (
        "I8",
        "a restart keeps an epoch under which the ring was read",
        whole(lambda b: (b.crash(), b.restart(), b.status_read(), b.crash(), b.restart(landed=False))),
        "restarts with epoch 1, it must be 2",
    ),
    (
        "I8",
        "a restart goes back behind an epoch that was lost",
        whole(lambda b: (b.crash(), b.restart(), b.crash(), b.restart(), edit(b, Event.RESTARTED, 1, epoch=0))),
        "restarts with epoch 0, it must be 2",
    ),
    ("I8", "submitted under a foreign epoch", whole(lambda b: edit(b, Event.SUBMIT, epoch=3)), "the frontend's is 0"),
    ("I8", "the gpu changes the epoch", whole(lambda b: edit(b, Event.CLAIM, epoch=3)), "submitted under 0"),
    ("I9", "a slot outside the ring", whole(lambda b: b.submit(SLOTS)), f"slots 0 to {SLOTS - 1}"),
    ("I10", "launched for a slot that resumed after seen", _resumed_after_seen, "after its cancel or fence was seen"),
    ("I10", "launched after seen", _launch_after_seen, "after its cancel or fence was seen"),
    ("I10", "wrong number of sequences", whole(lambda b: b.launch(DECODE, live=2)), "1 slots are decode_processing"),
    (
        "I10",
        "more than the shape holds",
        whole(lambda b: (b.launch(DECODE), edit(b, Event.GRAPH_LAUNCHED, -1, batch=0))),
        "batch 0",
    ),
    ("I10", "two graphs at once", whole(lambda b: (b.launch(DECODE), b.launch(DECODE))), "while another runs"),
    (
        "I10",
        "done is another graph",
        whole(lambda b: (b.run(DECODE), edit(b, Event.GRAPH_DONE, -1, sequence=1))),
        "not the one that was launched",
    ),
    ("I10", "token without a graph", whole(lambda b: b.token(0)), "without a decode graph"),
    ("I10", "two tokens of one graph", _twice_in_one_step, "without a decode graph"),
    ("I10", "token while the graph runs", whole(lambda b: (b.launch(DECODE), b.token(0))), "without a decode graph"),
    (
        "I10",
        "first token without prefill",
        steps(lambda b: b.submit(0), lambda b: b.claim(0), lambda b: b.first_token(0)),
        "without a prefill graph",
    ),
    (
        "I10",
        "claimed after the launch",
        steps(lambda b: b.submit(0), lambda b: b.run(PREFILL), lambda b: b.claim(0), lambda b: b.first_token(0)),
        "without a prefill graph",
    ),
    ("I10", "pause while a graph runs", whole(lambda b: (b.launch(DECODE), b.pause(0))), "while a graph runs"),
    (
        "I10",
        "relaunch while a graph runs",
        whole(lambda b: (b.launch(DECODE), b.relaunch())),
        "relaunched while a graph runs",
    ),
    ("I10", "paused slot gets a token", _token_of_a_graph_launched_before_resume, "without a decode graph"),
    (
        "I10",
        "looks at a slot of the frontend",
        whole(lambda b: (b.cancel(0), b.decode(0), b.cancel_seen(0))),
        "which is decode_completed",
    ),
]

HOLDS: list[tuple[str, str, Change]] = [
    ("I1", "every kind of move", lambda b: b.__dict__.update(small().__dict__)),
    ("I2", "the prompt is posted twice before submit", steps(lambda b: b.post(0), lambda b: b.start(0))),
    ("I3", "two generations", whole(steps(finish_all, lambda b: b.start(0)))),
    ("I4", "one claim a generation", whole(steps(finish_all, lambda b: b.start(0)))),
    ("I5", "pause keeps the count", whole(lambda b: (b.pause(0), b.resume(0)))),
    ("I6", "exactly the limit", steps(lambda b: b.start(0, tokens=3), lambda b: b.decode())),
    ("I6", "areas that touch", _overlap(prompt_offset=10, output_offset=100)),
    (
        "I6",
        "areas free again after recycle",
        whole(steps(finish_all, lambda b: b.submit(1, prompt_offset=0, output_offset=0))),
    ),
    ("I7", "a crash under a READ", _crash_under_a_read),
    ("I7", "cancelled and undrained", _launch_before_seen),
    ("I7", "cancel lost to the finish, undrained", whole(lambda b: (b.cancel(0), b.decode(0), b.recycle(0)))),
    ("I7", "old epoch and undrained", whole(lambda b: (b.decode(0), b.crash(), b.restart(), b.recycle(0)))),
    (
        "I7",
        "no token to drain",
        steps(lambda b: b.submit(0), lambda b: b.reject(0, SlotStatus.BAD_DESCRIPTOR), lambda b: b.recycle(0)),
    ),
    (
        "I8",
        "cancel at the claim",
        steps(lambda b: b.submit(0), lambda b: b.cancel(0), lambda b: b.reject(0, CANCELLED), lambda b: b.recycle(0)),
    ),
    ("I8", "fenced after a restart", _crash_then_fence),
    (
        "I8",
        "a second crash before the new epoch landed",
        steps(lambda b: b.start(0), lambda b: (b.crash(), b.restart(), b.crash(), b.restart(landed=False)), _fenced),
    ),
    (
        "I8",
        "a second crash after the new epoch landed",
        steps(lambda b: b.start(0), lambda b: (b.crash(), b.restart(), b.crash(), b.restart()), _fenced),
    ),
    ("I9", "the last slot", lambda b: b.start(SLOTS - 1)),
    ("I10", "launched before the cancel was seen", _launch_before_seen),
    ("I10", "a prefill while the cancelled slot stands paused", _prefill_while_doomed_is_paused),
    (
        "I10",
        "an engine error while a graph runs",
        whole(lambda b: (b.launch(DECODE), b.abort(0, SlotStatus.ENGINE), b.read(0), b.recycle(0), b.done())),
    ),
    ("I10", "relaunch between graphs", whole(lambda b: (b.relaunch(), b.decode()))),
]
