"""The fourth level: a recorded run, fed to the simulator, gives the same decisions at the same times.

What the scheduler saw is read off the trace: a prompt arrives at the boundary that claimed or rejected it, a cancel at
the boundary that obeyed it. A prompt that only waits changes no decision, with one exception: an empty scheduler whose
window is spent relaunches for it, at the same step. Each step takes as long as it was measured to take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from blink.common.events import COLUMNS, Event, GraphKind
from blink.common.lockstep import NO_EOS, Arrival, Cancel, Machine, Operation
from blink.common.policy import Action
from blink.common.states import SLOT_COUNT, Actor, SlotStatus
from blink.common.trace import Ints, Trace
from blink.conform.compare import STEPS_BEFORE, Difference, event_words, side_by_side
from blink.frontend.slot_tracker import SlotTracker
from blink.sim.lockstep import LockStep, Timing

DECIDED = (
    "event", "instance", "step", "slot", "generation", "request_id", "from", "to", "token_count", "status", "graph",
    "batch", "sequence", "live", "kv_block_count",
)  # fmt: skip
"""Columns of the scheduler's rows that must be equal. The time of a row must be, too, where a step ends."""
_TIMED = (Event.GRAPH_DONE, Event.FIRST_TOKEN, Event.FINISH_AT_PREFILL, Event.TOKEN, Event.FINISH)
_ENTERED = (Event.CLAIM, Event.REJECT)

Rows = dict[str, Ints]


@dataclass(slots=True)
class _Group:
    """Operations that are due together: at the first boundary of that step and at least that instance."""

    step: int
    instance: int
    t_ns: int  # of the first row that they led to
    operations: list[Operation] = field(default_factory=list)
    limited: bool = False  # the boundary ended something for the time limit, so it is one even without operations


@dataclass(frozen=True, slots=True)
class _Step:
    """Times of one recorded step: of its first row, its claims (or launch), graph's end, stored tokens, last row."""

    begun_ns: int
    claimed_ns: int
    done_ns: int
    stored_ns: int
    ended_ns: int  # of tokens or, after them, of the resume: the time at which the next boundary judges time limits


@dataclass(frozen=True, slots=True)
class Recording:
    """What a replay needs of a trace."""

    rows: Rows  # of the gpu, in its order
    groups: tuple[_Group, ...]
    slots: tuple[int, ...]  # of the arrivals, in their order
    steps: dict[int, _Step]
    relaunched_ns: dict[int, int]  # by the instance that comes

    @property
    def operations(self) -> list[Operation]:
        """All operations in order, for a script of this run."""
        return [operation for group in self.groups for operation in group.operations]

    def boundary_ns(self, step: int) -> int:
        """The time of the boundary before a step, while something runs; 0 if it is not known."""
        before = self.steps.get(step - 1)
        return before.ended_ns if before else 0


class _GivenSlots(SlotTracker):
    """Hands out the slots that a recording names, in its order."""

    def __init__(self, slots: tuple[int, ...]) -> None:
        super().__init__()
        self._left = deque(slots)

    def acquire(self) -> int | None:
        """The next of them (another one if it is not free, which the comparison will see)."""
        if self._left:
            self._hint = self._left.popleft()
        return super().acquire()


def record(trace: Trace) -> Recording:
    """What the scheduler of a trace saw, and when."""
    rows = _rows_of(trace, Actor.GPU)
    arrivals = _arrivals(trace, rows)
    groups = _groups(rows, arrivals)
    slot_of = dict(zip(rows["request_id"].tolist(), rows["slot"].tolist(), strict=True))
    order = [op.request_id for group in groups for op in group.operations if isinstance(op, Arrival)]
    relaunched = rows["event"] == Event.RELAUNCHED
    return Recording(
        rows,
        tuple(groups),
        tuple(slot_of[request_id] for request_id in order),
        _steps(rows),
        dict(zip(rows["instance"][relaunched].tolist(), rows["t_ns"][relaunched].tolist(), strict=True)),
    )


def _rows_of(trace: Trace, actor: Actor) -> Rows:
    mine = np.flatnonzero(trace.columns["actor"] == actor)
    mine = mine[np.argsort(trace.columns["seq"][mine], kind="stable")]
    names = ["t_ns", *DECIDED] if actor is Actor.GPU else [column.name for column in COLUMNS]
    return {name: np.asarray(trace.columns[name])[mine].astype(np.int64) for name in names}


def _arrivals(trace: Trace, rows: Rows) -> dict[int, Arrival]:
    """Every request that the scheduler acted upon, its step still to be filled in; EOS where the text stopped."""
    stopped = rows["status"] == SlotStatus.STOP
    eos_at = dict(zip(rows["request_id"][stopped].tolist(), rows["token_count"][stopped].tolist(), strict=True))
    theirs = _rows_of(trace, Actor.FRONTEND)
    found = {}
    for row in np.flatnonzero(theirs["event"] == Event.PROMPT_POSTED).tolist():
        request_id = int(theirs["request_id"][row])
        found[request_id] = Arrival(
            0, request_id, int(theirs["prompt_tokens"][row]), int(theirs["output_tokens_max"][row]),
            eos_at.get(request_id, NO_EOS),
        )  # fmt: skip
    return found


def _groups(rows: Rows, arrivals: dict[int, Arrival]) -> list[_Group]:
    """Operations in the order of the rows that they led to, cut wherever one boundary cannot have seen them all."""
    groups: list[_Group] = []
    relaunch: _Group | None = None  # what the scheduler saw before it relaunched, until the second boundary after that
    last_reject = -1
    names = ("event", "step", "instance", "slot", "request_id", "status", "t_ns")
    for event, step, instance, slot, request_id, status, t_ns in zip(*(rows[n].tolist() for n in names), strict=True):
        if event == Event.GRAPH_LAUNCHED:
            relaunch, last_reject = None, -1
        cancelled = status == SlotStatus.CANCELLED and event in (Event.REJECT, Event.ABORT)
        if event not in (*_ENTERED, Event.ABORT, Event.RELAUNCHED):
            continue
        key = (step, instance - (event == Event.RELAUNCHED))
        # A boundary rejects in the order of slots, then it aborts: any other order is that of two boundaries, between
        # which the scheduler was idle.
        again = event == Event.REJECT and slot < last_reject
        if not groups or (groups[-1].step, groups[-1].instance) != key or again:
            groups.append(_Group(*key, t_ns))
            relaunch = None if again else relaunch
        if event == Event.REJECT:
            last_reject = slot
        if event == Event.ABORT:
            last_reject = SLOT_COUNT
            groups[-1].limited |= status == SlotStatus.TIME_LIMIT
        if event == Event.RELAUNCHED:
            relaunch, last_reject = groups[-1], -1
            continue
        if event in _ENTERED and request_id in arrivals:
            # What a relaunched scheduler acts upon first may be why its predecessor relaunched.
            (relaunch or groups[-1]).operations.append(_due(arrivals[request_id], step))
        if cancelled:
            groups[-1].operations.append(Cancel(step, request_id))
    return [group for group in groups if group.operations or group.limited]


def _due(arrival: Arrival, step: int) -> Arrival:
    return Arrival(step, arrival.request_id, arrival.prompt_tokens, arrival.output_tokens_max, arrival.eos_at)


def _steps(rows: Rows) -> dict[int, _Step]:
    """Times by step, of the steps that launched a graph."""
    event, step, t_ns = rows["event"], rows["step"], rows["t_ns"]

    def by_step(chosen: np.ndarray[tuple[int], np.dtype[np.bool_]], *, last: bool) -> dict[int, int]:
        steps, times = step[chosen].tolist(), t_ns[chosen].tolist()
        pairs = list(zip(steps, times, strict=True))
        return dict(pairs if last else reversed(pairs))

    begun = by_step(~np.isin(event, _TIMED) & (event != Event.RESUME), last=False)
    launched = by_step(event == Event.GRAPH_LAUNCHED, last=False)
    claimed = launched | by_step(event == Event.CLAIM, last=False)
    done = by_step(event == Event.GRAPH_DONE, last=True)
    stored = by_step(np.isin(event, _TIMED[1:]), last=True)
    resumed = by_step(event == Event.RESUME, last=True)
    found = {}
    for k in launched:
        if k in done:
            stored_ns = stored.get(k, done[k])
            found[k] = _Step(begun[k], claimed[k], done[k], stored_ns, resumed.get(k, stored_ns))
    return found


# --- playing it back ---


def replay(recording: Recording, machine: Machine) -> Rows:
    """The rows of the simulator's scheduler under what the recorded one saw, no further than the recording goes."""
    timing = Timing()
    stepper = LockStep(machine, timing=timing, slots=_GivenSlots(recording.slots))
    groups = deque(recording.groups)
    rows_most = recording.rows["event"].size
    while (groups or stepper.in_ring_count) and stepper.rows.count <= rows_most:
        applied = _apply_due(stepper, groups)
        step = recording.steps.get(stepper.step_number)
        if stepper.gpu.running_count:
            stepper.wait_until(recording.boundary_ns(stepper.step_number))
        else:
            stepper.wait_until(applied.t_ns if applied else step.begun_ns if step else 0)
        _set_times(timing, stepper, recording, step)
        decision = stepper.step_now()
        if decision.action is Action.IDLE and not applied:
            break  # it waits for something that never came
    stream = stepper.rows
    return {name: stream.columns[name][: stream.count].astype(np.int64) for name in ("t_ns", *DECIDED)}


def _apply_due(stepper: LockStep, groups: deque[_Group]) -> _Group | None:
    """Write the next group into the ring if its boundary has come."""
    if groups and (groups[0].step, groups[0].instance) <= (stepper.step_number, stepper.gpu.instance):
        group = groups.popleft()
        stepper.apply([op for op in group.operations if isinstance(op, Arrival)])
        stepper.apply([op for op in group.operations if isinstance(op, Cancel)])
        return group
    return None


def _set_times(timing: Timing, stepper: LockStep, recording: Recording, step: _Step | None) -> None:
    """The parts of the iteration that comes: from now to the claim, the graph, the publishing; or to the relaunch."""
    now = stepper.now_ns
    relaunched_ns = recording.relaunched_ns.get(stepper.gpu.instance + 1, now)
    timing.relaunch_ns = max(0, relaunched_ns - now)
    if step is not None:
        kind = _kind_at(recording, stepper.step_number)
        start = max(now, step.claimed_ns) if kind is GraphKind.PREFILL else now
        timing.claim_ns = start - now
        timing.graph_ns = max(0, step.done_ns - start)
        timing.publish_ns = max(0, step.stored_ns - step.done_ns)


def _kind_at(recording: Recording, step: int) -> GraphKind:
    rows = recording.rows
    first = int(np.searchsorted(rows["step"], step))
    launched = first + int(np.argmax(rows["event"][first:] == Event.GRAPH_LAUNCHED))
    return GraphKind(int(rows["graph"][launched]))


# --- comparing ---


def first_difference(recorded: Rows, replayed: Rows) -> int | None:
    """The first row that differs, None if the whole run is the same."""
    count = min(recorded["event"].size, replayed["event"].size)
    unequal = np.zeros(count, np.bool_)
    for name in DECIDED:
        unequal |= recorded[name][:count] != replayed[name][:count]
    timed = np.isin(recorded["event"][:count], _TIMED)
    unequal |= timed & (recorded["t_ns"][:count] != replayed["t_ns"][:count])
    found = np.flatnonzero(unequal)
    if not found.size and recorded["event"].size == replayed["event"].size:
        return None
    return int(found[0]) if found.size else count


def compare_rows(names: tuple[str, str], recorded: Rows, replayed: Rows) -> Difference | None:
    """What differs first, None if the whole run is the same."""
    row = first_difference(recorded, replayed)
    if row is None:
        return None
    step = [int(rows["step"][row]) if row < rows["step"].size else -1 for rows in (recorded, replayed)]
    what = f"step {max(step)}: {_row_words(names[0], recorded, row)}, {_row_words(names[1], replayed, row)}"
    since = max(step) - STEPS_BEFORE
    columns = [list(_by_step(rows, since, row)) for rows in (recorded, replayed)]
    return Difference(what, tuple(side_by_side(names, columns[0], columns[1])))


def _row_words(name: str, rows: Rows, row: int) -> str:
    if row >= rows["event"].size:
        return f"{name} is over"
    return f"{name} has {_line(rows, row)}"


def _line(rows: Rows, row: int) -> str:
    values = [int(rows[name][row]) for name in ("event", "slot", "request_id", "token_count", "status")]
    words = event_words(*values)
    if rows["graph"][row] >= 0:
        shape = GraphKind(int(rows["graph"][row])).label, int(rows["batch"][row]), int(rows["sequence"][row])
        words += f" {shape[0]} {shape[1]} x {shape[2]} of {int(rows['live'][row])}"
    return f"{words} at {int(rows['t_ns'][row])} ns"


def _by_step(rows: Rows, since: int, until_row: int) -> Iterator[list[str]]:
    """Rows of the steps from `since` to that of the row that differs, one list of lines a step."""
    steps = rows["step"]
    last = min(until_row, steps.size - 1)
    if last < 0:
        return
    for step in range(max(since, 0), int(steps[last]) + 1):
        chosen = np.flatnonzero(steps[: last + 1] == step).tolist()
        if chosen:
            yield [f"step {step}", *(f"  {_line(rows, row)}" for row in chosen)]
