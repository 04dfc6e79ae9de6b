"""A path of the model as a trace: the events that the two actors would have recorded on the way.

What a trace cannot hold (a WRITE that lands, the capture of a word, the store of a token, the look of a scan) leaves no
row of its own; what the model knows of it stands as evidence in the rows that rely on it. A look at a cancel word
records what was there to be seen, whether or not the scheduler goes on to care.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blink.common.checker import check_trace
from blink.common.events import COLUMNS, EVIDENCE_OF, NOTHING, Event, GraphKind, Phase
from blink.common.layout import layout_hash
from blink.common.ring_model import FIELD_OF_COLUMN, Record
from blink.common.states import Actor, SlotState, SlotStatus
from blink.common.trace import Trace, TraceFooter, TraceHeader, open_writer
from blink.common.verdict import STUCK, VIOLATES, Verdict
from blink.prove import frontend, gpu, wire
from blink.prove.action import Action
from blink.prove.explorer import Counterexample, Step
from blink.prove.properties import row_of
from blink.prove.rules import SWITCHES, Rules
from blink.prove.state import (
    EMPTY,
    Kind,
    Look,
    Running,
    Stage,
    State,
    Write,
    count_of,
    epoch_of,
    generation_of,
    state_of,
    status_of,
)
from blink.prove.state import Phase as Belief

FRONTEND, GPU = Actor.FRONTEND, Actor.GPU
LIVENESS = ("L1", "L2")
_CLOCK = {"name": "order", "unit": "events"}


class Recorder:
    """Turns the steps of a path into rows; `t_ns` is the row's number, for the model has no clock."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._records: list[Record] = []
        self._next_seq = {FRONTEND: 0, GPU: 0}
        self._instance = {FRONTEND: 0, GPU: 0}
        self._step_number = 0
        self._graph: dict[str, int] = {}
        self._last: State | None = None

    def record(self, step: Step) -> None:
        """Append the rows of one step."""
        self._last = step.after
        writer = _WRITERS.get(step.action)
        if writer is not None:
            writer(self, step)

    def trace(self, *, drained: bool) -> Trace:
        """The rows so far; `drained` claims that all came back, which is what a stuck run would claim wrongly."""
        rules, c = self._rules, self._rules.configuration
        on = sorted(name for name in SWITCHES if getattr(rules, name))
        header = TraceHeader(
            run=c.name,
            backend="model",
            seed=0,
            layout_hash=layout_hash(),
            slot_count=c.slots,
            generation=c.first_generation,
            configuration={"configuration": c.name, "mutants": on},
            clock={"frontend": _CLOCK, "gpu": _CLOCK, "shared": True},
            token_reads="each",
            evidence=tuple(EVIDENCE_OF),
        )
        values = np.array([record[1:] for record in self._records], np.int64).reshape(-1, len(COLUMNS))
        columns = {column.name: values[:, at].astype(column.dtype) for at, column in enumerate(COLUMNS)}
        events = {actor.label: count for actor, count in self._next_seq.items()}
        footer = TraceFooter(events=events, slots=self._slots(), complete=drained)
        return Trace("model", header, footer, columns)

    def _slots(self) -> dict[str, int] | None:
        """The frontend's own count of its slots; a frontend that crashed or has not read the ring has none."""
        if self._last is None or self._last.frontend.stage != Stage.SERVING:
            return None
        phases = [view.phase for view in self._last.frontend.views]
        names = {"free": Belief.FREE, "in_use": Belief.IN_USE, "recovering": Belief.RECOVERING}
        return {name: phases.count(phase) for name, phase in names.items()}

    def _add(self, event: Event, actor: Actor, **columns: int) -> None:
        row = len(self._records)
        columns = {FIELD_OF_COLUMN.get(name, name): int(value) for name, value in columns.items()}
        if actor == GPU:
            columns["step"] = self._step_number
        seq, instance = self._next_seq[actor], self._instance[actor]
        self._records.append(Record(row, seq, int(actor), instance, row, event=int(event), **columns))
        self._next_seq[actor] += 1

    # --- the frontend's rows ---

    def submit(self, step: Step) -> None:
        """prompt_posted and submit, in the order of the posting."""
        slot, c = step.place, self._rules.configuration
        view, epoch = step.after.frontend.views[slot], step.after.frontend.epoch
        whose = {"slot": slot, "generation": view.generation, "epoch": epoch, "request_id": view.request}

        def prompt() -> None:
            areas = {"prompt_offset": slot, "prompt_tokens": 1, "output_offset": slot * c.tokens}
            limits = {"output_capacity": c.tokens, "output_tokens_max": c.tokens}
            self._add(Event.PROMPT_POSTED, FRONTEND, **whose, **areas, **limits, prompt_tag=_tag(view.request))

        def flag() -> None:
            moves = {"source": SlotState.EMPTY, "target": SlotState.PREFILL_PENDING}
            self._add(Event.SUBMIT, FRONTEND, **whose, **moves, token_count=0, status=SlotStatus.NONE)

        rows = {Kind.PROMPT: prompt, Kind.SUBMIT: flag}
        for write in step.after.wire.fifo[len(step.before.wire.fifo) :]:
            if write.kind in rows:
                rows[Kind(write.kind)]()

    def cancel(self, step: Step) -> None:
        """cancel_posted, or the abort that a mutant writes itself."""
        slot, write = step.place, step.after.wire.fifo[-1]
        view = step.before.frontend.views[slot]
        epoch = step.before.frontend.epoch
        whose = {"slot": slot, "generation": view.generation, "epoch": epoch, "request_id": view.request}
        if write.kind == Kind.CANCEL:
            self._add(Event.CANCEL_POSTED, FRONTEND, **whose)
            return
        word, source = _word(write), state_of(wire.behind(step.before, slot))
        moves = {"source": source, "target": state_of(word), "token_count": count_of(word), "status": status_of(word)}
        self._add(Event.ABORT, FRONTEND, **whose, **moves)

    def poll(self, step: Step) -> None:
        """status_read, posted."""
        self._add(Event.STATUS_READ, FRONTEND, phase=Phase.POSTED)

    def deliver(self, step: Step) -> None:
        """status_read, done."""
        self._add(Event.STATUS_READ, FRONTEND, phase=Phase.DONE)

    def serve_tokens(self, step: Step) -> None:
        """tokens_read."""
        slot, read = step.place, step.before.wire.tokens[step.place]
        view, epoch = step.before.frontend.views[slot], step.before.frontend.epoch
        if read is None or view.request != read.request:  # of a request that is gone: its recycling is what is wrong
            return
        whose = {"slot": slot, "generation": view.generation, "epoch": epoch, "request_id": view.request}
        output = step.before.memory[slot].output
        wrong = sum(owner != read.request for owner in output[read.begin : read.end])
        self._add(Event.TOKENS_READ, FRONTEND, **whose, token_from=read.begin, token_count=read.end, wrong_count=wrong)

    def recycle(self, step: Step) -> None:
        """recycle; a restarted frontend finds the request's id in the descriptor."""
        slot, word = step.place, _word(step.after.wire.fifo[-1])
        view = step.before.frontend.views[slot]
        request = step.before.memory[slot].descriptor.request if view.phase == Belief.RECOVERING else view.request
        whose = {"slot": slot, "generation": generation_of(word), "epoch": epoch_of(word), "request_id": request}
        moves = {"source": SlotState.DECODE_COMPLETED, "target": EMPTY, "token_count": 0, "status": SlotStatus.NONE}
        self._add(Event.RECYCLE, FRONTEND, **whose, **moves)

    def crash(self, step: Step) -> None:
        """crashed."""
        self._add(Event.CRASHED, FRONTEND)

    def restart(self, step: Step) -> None:
        """restarted, with the new epoch."""
        self._instance[FRONTEND] += 1
        self._add(Event.RESTARTED, FRONTEND, epoch=step.after.frontend.epoch)

    # --- the gpu's rows ---

    def _whose(self, state: State, slot: int) -> dict[str, int]:
        cell = state.memory[slot]
        return {
            "slot": slot,
            "generation": generation_of(cell.ctl),
            "epoch": epoch_of(cell.ctl),
            "request_id": cell.descriptor.request,
        }

    def store(self, step: Step) -> None:
        """The transition that a store of the control word is; nothing for a compare-and-swap that failed."""
        slot = step.place
        old, new = step.before.memory[slot].ctl, step.after.memory[slot].ctl
        row = row_of(old, new, GPU)
        if step.before.memory[slot] is step.after.memory[slot] or row is None:
            return
        event = Event[row.name.upper()]
        more = {}
        if event == Event.CLAIM:
            more = {"kv_block_count": 1, "prompt_tag": _tag(step.before.memory[slot].prompt)}
        elif event in EVIDENCE_OF["stored_count"].events:
            more = {"stored_count": _stored(step.before, slot)}
        moves = {"source": state_of(old), "target": state_of(new), "token_count": count_of(new)}
        self._add(event, GPU, **self._whose(step.after, slot), **moves, status=status_of(new), **more)
        self._seen(step, slot)

    def look(self, step: Step) -> None:
        """cancel_seen of every slot that had something to be seen."""
        for slot in range(len(step.after.memory)):
            self._seen(step, slot)

    def _seen(self, step: Step, slot: int) -> None:
        before, after = step.before.gpu.lanes[slot].look, step.after.gpu.lanes[slot].look
        if before == Look.CLEAR and after != Look.CLEAR:
            status = gpu.doomed_status(step.after, slot)
            self._add(Event.CANCEL_SEEN, GPU, **self._whose(step.after, slot), status=status)

    def launch(self, step: Step) -> None:
        """graph_launched."""
        kind = step.after.gpu.graph
        live = len(gpu.members(step.before, kind))
        graph = GraphKind.PREFILL if kind == Running.PREFILL else GraphKind.DECODE
        self._graph = {"graph": graph, "batch": len(step.after.memory), "sequence": 1, "live": live}
        self._add(Event.GRAPH_LAUNCHED, GPU, **self._graph)

    def graph_done(self, step: Step) -> None:
        """graph_done."""
        self._add(Event.GRAPH_DONE, GPU, **self._graph)
        self._step_number += 1

    def relaunch(self, step: Step) -> None:
        """relaunched, recorded by the new instance."""
        self._instance[GPU] += 1
        self._add(Event.RELAUNCHED, GPU)


def _word(write: Write) -> int:
    assert isinstance(write.value, int)
    return write.value


def _tag(request: int) -> int:
    """What stands for a prompt's bytes: 0 for none that lives."""
    return request + 1


def _stored(state: State, slot: int) -> int:
    """Tokens of the present request in the output area, up to the first that is missing."""
    cell = state.memory[slot]
    return next((at for at, owner in enumerate(cell.output) if owner != cell.descriptor.request), len(cell.output))


_WRITERS: dict[Action, Callable[[Recorder, Step], None]] = {
    frontend.SUBMIT: Recorder.submit,
    frontend.CANCEL: Recorder.cancel,
    frontend.POLL: Recorder.poll,
    frontend.DELIVER: Recorder.deliver,
    frontend.RECYCLE: Recorder.recycle,
    frontend.CRASH: Recorder.crash,
    frontend.RESTART: Recorder.restart,
    wire.SERVE_TOKENS: Recorder.serve_tokens,
    gpu.LOOK: Recorder.look,
    gpu.LAUNCH_PREFILL: Recorder.launch,
    gpu.LAUNCH_DECODE: Recorder.launch,
    gpu.GRAPH_DONE: Recorder.graph_done,
    gpu.RELAUNCH: Recorder.relaunch,
    **dict.fromkeys(
        (gpu.CLAIM, gpu.ABORT, gpu.EXPIRE, gpu.FAIL, gpu.PAUSE, gpu.RESUME, gpu.PUBLISH, gpu.PUBLISH_LAST),
        Recorder.store,
    ),
}


def trace_of(rules: Rules, steps: Sequence[Step], *, drained: bool) -> Trace:
    """The trace of a path."""
    recorder = Recorder(rules)
    for step in steps:
        recorder.record(step)
    return recorder.trace(drained=drained)


def trace_of_counterexample(rules: Rules, found: Counterexample) -> Trace:
    """The trace of a counterexample. One of L1 or L2 claims to be complete: no slot comes back any more in that run."""
    return trace_of(rules, found.steps, drained=found.breach.invariant in LIVENESS)


def verdict_on(rules: Rules, found: Counterexample) -> Verdict:
    """What the checker of traces says of a counterexample."""
    return check_trace(trace_of_counterexample(rules, found))


def is_shown(rules: Rules, found: Counterexample) -> bool:
    """Whether the checker rejects the counterexample's trace for the same invariant.

    A slot that is not back at the end is L1 to it, whether there was no way (L1) or none that had to be taken (L2).
    """
    verdict, invariant = verdict_on(rules, found), found.breach.invariant
    if invariant in LIVENESS:
        return verdict.code == STUCK
    return verdict.code == VIOLATES and verdict.violations[0].invariant == invariant


def save(path: Path, trace: Trace) -> None:
    """Write a trace; nothing is left behind if that fails."""
    writer: Any = open_writer(path, trace.header)
    try:
        writer.write(trace.columns, len(trace))
    except BaseException:
        writer.abort()
        raise
    writer.close(trace.footer)


__all__ = ["NOTHING", "Recorder", "is_shown", "save", "trace_of", "trace_of_counterexample", "verdict_on"]
