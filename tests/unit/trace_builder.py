"""Builds small valid traces: each method records one event and keeps just enough state to fill its columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blink.common.events import COLUMNS, EVIDENCE_OF, Event, GraphKind, Phase
from blink.common.layout import layout_hash, next_generation
from blink.common.ring_model import Record
from blink.common.states import Actor, SlotState, SlotStatus
from blink.common.trace import Trace, TraceFooter, TraceHeader

S = SlotState
F, G = Actor.FRONTEND, Actor.GPU
SLOTS = 8


@dataclass
class Place:
    """A slot as the builder sees it."""

    state: SlotState = S.EMPTY
    generation: int = 0
    epoch: int = 0
    request_id: int = -1
    count: int = 0
    read: int = 0
    status: SlotStatus = SlotStatus.NONE


@dataclass
class TraceBuilder:
    """Events in the order of the calls; `t_ns` is the number of the call. `evidence` names what is recorded beside."""

    generation: int = 0
    evidence: tuple[str, ...] = ()
    records: list[Record] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    epoch: int = 0
    instance: dict[Actor, int] = field(default_factory=lambda: {F: 0, G: 0})
    seq: dict[Actor, int] = field(default_factory=lambda: {F: 0, G: 0})
    next_request: int = 0
    graph: dict[str, int] = field(default_factory=dict)
    step: int = 0

    def place(self, slot: int) -> Place:
        return self.places.setdefault(slot, Place(generation=self.generation))

    def add(self, event: Event, actor: Actor, **columns: Any) -> None:
        """One record with the columns that every event has."""
        row = len(self.records)
        base = {"row": row, "seq": self.seq[actor], "actor": int(actor), "instance": self.instance[actor], "t_ns": row}
        columns = {**self._evidence(event, columns), **columns}
        columns = {name: int(value) for name, value in columns.items()}
        self.records.append(Record(**base, event=int(event), **columns))  # type: ignore[arg-type]
        self.seq[actor] += 1

    def _evidence(self, event: Event, columns: dict[str, Any]) -> dict[str, int]:
        """What a run in which nothing is wrong gives as evidence."""
        found = {
            "prompt_tag": columns.get("request_id", 0) + 1,
            "stored_count": columns.get("token_count", 0),
            "wrong_count": 0,
        }
        return {name: found[name] for name in self.evidence if event in EVIDENCE_OF[name].events}

    def _of(self, slot: int) -> dict[str, int]:
        place = self.place(slot)
        return {
            "slot": slot,
            "generation": place.generation,
            "epoch": place.epoch,
            "request_id": place.request_id,
        }

    def _move(
        self,
        event: Event,
        actor: Actor,
        slot: int,
        target: SlotState,
        tokens: int = 0,
        status: SlotStatus = SlotStatus.NONE,
        **more: int,
    ) -> None:
        place = self.place(slot)
        source, place.state, place.status = place.state, target, status
        place.count += tokens
        if actor == G:
            more["step"] = self.step
        moved = {"source": source, "target": target, "token_count": place.count, "status": status}
        self.add(event, actor, **self._of(slot), **moved, **more)

    # --- frontend ---

    def post(self, slot: int, tokens: int = 8, prompt: int = 10, **more: int) -> None:
        """prompt_posted of a new request; its areas are those of the slot unless `more` says otherwise."""
        place = self.place(slot)
        place.epoch, place.request_id = self.epoch, self.next_request
        place.count = place.read = 0
        self.next_request += 1
        columns = {
            "prompt_offset": 1000 * slot,
            "prompt_tokens": prompt,
            "output_offset": 500 * slot,
            "output_capacity": 100,
            "output_tokens_max": tokens,
        }
        self.add(Event.PROMPT_POSTED, F, **self._of(slot), **{**columns, **more})

    def submit(self, slot: int, tokens: int = 8, prompt: int = 10, **more: int) -> None:
        """prompt_posted and submit."""
        self.post(slot, tokens, prompt, **more)
        self._move(Event.SUBMIT, F, slot, S.PREFILL_PENDING)

    def cancel(self, slot: int) -> None:
        self.add(Event.CANCEL_POSTED, F, **self._of(slot))

    def status_read(self) -> None:
        """A READ of the status array, posted and done."""
        self.add(Event.STATUS_READ, F, phase=Phase.POSTED)
        self.add(Event.STATUS_READ, F, phase=Phase.DONE)

    def read(self, slot: int, count: int | None = None) -> None:
        """tokens_read up to `count`, or to all that are published."""
        place = self.place(slot)
        count = place.count if count is None else count
        self.add(Event.TOKENS_READ, F, **self._of(slot), token_from=place.read, token_count=count)
        place.read = count

    def recycle(self, slot: int) -> None:
        place = self.place(slot)
        place.generation = next_generation(place.generation)
        place.epoch = self.epoch
        self._move(Event.RECYCLE, F, slot, S.EMPTY, -place.count)

    def drain(self, slot: int) -> None:
        """A status READ, the tokens left, and the recycling."""
        self.status_read()
        if self.place(slot).read < self.place(slot).count:
            self.read(slot)
        self.recycle(slot)

    def crash(self) -> None:
        self.add(Event.CRASHED, F)

    def restart(self, *, landed: bool = True) -> None:
        """With the next epoch; with the last one once more if the WRITE that told of it had not `landed`."""
        self.epoch = (self.epoch + landed) % 256
        self.instance[F] += 1
        self.add(Event.RESTARTED, F, epoch=self.epoch)

    # --- gpu ---

    def claim(self, slot: int) -> None:
        self._move(Event.CLAIM, G, slot, S.PREFILL_PROCESSING, kv_block_count=3)

    def reject(self, slot: int, status: SlotStatus) -> None:
        self._move(Event.REJECT, G, slot, S.DECODE_COMPLETED, 0, status)

    def launch(self, kind: GraphKind, live: int | None = None) -> None:
        covered = S.PREFILL_PROCESSING if kind == GraphKind.PREFILL else S.DECODE_PROCESSING
        live = len(self.in_state(covered)) if live is None else live
        self.graph = {"graph": kind, "batch": 8, "sequence": 64, "live": live}
        self.add(Event.GRAPH_LAUNCHED, G, **self.graph, step=self.step)

    def done(self) -> None:
        self.add(Event.GRAPH_DONE, G, **self.graph, step=self.step)
        self.step += 1

    def run(self, kind: GraphKind) -> None:
        """A graph from launch to done."""
        self.launch(kind)
        self.done()

    def first_token(self, slot: int) -> None:
        self._move(Event.FIRST_TOKEN, G, slot, S.DECODE_PROCESSING, 1)

    def finish_at_prefill(self, slot: int, status: SlotStatus = SlotStatus.STOP) -> None:
        self._move(Event.FINISH_AT_PREFILL, G, slot, S.DECODE_COMPLETED, 1, status)

    def token(self, slot: int) -> None:
        self._move(Event.TOKEN, G, slot, S.DECODE_PROCESSING, 1)

    def finish(self, slot: int, status: SlotStatus = SlotStatus.STOP) -> None:
        self._move(Event.FINISH, G, slot, S.DECODE_COMPLETED, 1, status)

    def pause(self, slot: int) -> None:
        self._move(Event.PAUSE, G, slot, S.DECODE_PAUSED)

    def resume(self, slot: int) -> None:
        self._move(Event.RESUME, G, slot, S.DECODE_PROCESSING)

    def abort(self, slot: int, status: SlotStatus) -> None:
        self._move(Event.ABORT, G, slot, S.DECODE_COMPLETED, 0, status)

    def cancel_seen(self, slot: int, status: SlotStatus = SlotStatus.CANCELLED) -> None:
        self.add(Event.CANCEL_SEEN, G, **self._of(slot), status=status, step=self.step)

    def relaunch(self) -> None:
        self.instance[G] += 1
        self.add(Event.RELAUNCHED, G, step=self.step)

    # --- whole requests and results ---

    def in_state(self, state: SlotState) -> list[int]:
        return sorted(slot for slot, place in self.places.items() if place.state == state)

    def start(self, slot: int, tokens: int = 8) -> None:
        """Submit, claim, prefill and first token."""
        self.submit(slot, tokens)
        self.claim(slot)
        self.run(GraphKind.PREFILL)
        self.first_token(slot)

    def decode(self, *finishing: int) -> None:
        """One decode step of all that decode: `finishing` end, the others get a token."""
        self.run(GraphKind.DECODE)
        for slot in self.in_state(S.DECODE_PROCESSING):
            if slot in finishing:
                self.finish(slot)
            else:
                self.token(slot)

    def trace(self, **footer: Any) -> Trace:
        return trace_of(self.records, generation=self.generation, evidence=self.evidence, **footer)


def trace_of(records: list[Record], generation: int = 0, evidence: tuple[str, ...] = (), **footer: Any) -> Trace:
    """The records as a trace with a footer that fits them; keywords override the footer's fields."""
    values = np.array([record[1:] for record in records], np.int64).reshape(len(records), len(COLUMNS))
    columns = {column.name: values[:, at].astype(column.dtype) for at, column in enumerate(COLUMNS)}
    header = TraceHeader("test", "builder", 0, layout_hash(), SLOTS, generation=generation, evidence=evidence)
    counts = {actor.label: int((columns["actor"] == actor).sum()) for actor in Actor}
    return Trace("built", header, TraceFooter(**{"events": counts, **footer}), columns)


def random_run(choices: np.random.Generator, steps: int = 60, evidence: tuple[str, ...] = ()) -> TraceBuilder:
    """A valid run that drains: a small scheduler and a small frontend, whose every choice is drawn."""
    b = TraceBuilder(evidence=evidence)
    cancelled: set[tuple[int, int]] = set()
    for number in range(steps * 4):
        if number >= steps and all(place.state == S.EMPTY for place in b.places.values()):
            break
        _frontend_turn(b, choices, cancelled, number < steps)
        _gpu_turn(b, choices, cancelled)
    return b


def _frontend_turn(b: TraceBuilder, choices: np.random.Generator, cancelled: set[Any], may_submit: bool) -> None:
    if may_submit and choices.random() < 0.04:
        b.crash()
        b.restart()
    for slot in range(4):
        place = b.place(slot)
        if place.state == S.EMPTY and may_submit and choices.random() < 0.4:
            b.submit(slot, tokens=int(choices.integers(1, 7)))
        elif place.state == S.DECODE_COMPLETED and choices.random() < 0.7:
            if place.epoch == b.epoch and (slot, place.generation) not in cancelled:
                b.drain(slot)
            else:
                b.recycle(slot)
        elif place.state != S.EMPTY and place.epoch == b.epoch:
            if place.read < place.count and choices.random() < 0.3:
                b.read(slot)
            if choices.random() < 0.05:
                b.cancel(slot)
                cancelled.add((slot, place.generation))


def _gpu_turn(b: TraceBuilder, choices: np.random.Generator, cancelled: set[Any]) -> None:
    if choices.random() < 0.1:
        b.relaunch()
    for slot in sorted(b.places):
        if b.place(slot).state not in (S.EMPTY, S.DECODE_COMPLETED):
            _stop_if_asked(b, choices, cancelled, slot)
    waiting = b.in_state(S.PREFILL_PENDING)
    if waiting and choices.random() < 0.6:
        paused = b.in_state(S.DECODE_PROCESSING)
        for slot in paused:
            b.pause(slot)
        for slot in waiting[:2]:
            b.claim(slot)
        b.run(GraphKind.PREFILL)
        for slot in b.in_state(S.PREFILL_PROCESSING):
            if _limit(b, slot) == 1:
                b.finish_at_prefill(slot, SlotStatus.LENGTH)
            else:
                b.first_token(slot)
        for slot in paused:
            b.resume(slot)
    if b.in_state(S.DECODE_PROCESSING):
        ending = [s for s in b.in_state(S.DECODE_PROCESSING) if b.place(s).count + 1 == _limit(b, s)]
        b.decode(*ending)


def _stop_if_asked(b: TraceBuilder, choices: np.random.Generator, cancelled: set[Any], slot: int) -> None:
    place = b.place(slot)
    if place.epoch != b.epoch:
        status = SlotStatus.FENCED
    elif (slot, place.generation) in cancelled:
        status = SlotStatus.CANCELLED
    elif place.state != S.PREFILL_PENDING and choices.random() < 0.02:
        status = SlotStatus.TIME_LIMIT
    else:
        return
    if status != SlotStatus.TIME_LIMIT:
        b.cancel_seen(slot, status)
    if place.state == S.PREFILL_PENDING:
        b.reject(slot, status)
    else:
        b.abort(slot, status)


def _limit(b: TraceBuilder, slot: int) -> int:
    posts = [r for r in b.records if r.event == Event.PROMPT_POSTED and r.slot == slot]
    return posts[-1].output_tokens_max
