"""The executable specification: `step(model, event) -> model`, or a Violation that names the invariant.

Two more pure functions complete it: `waits` says that an event belongs after something the other actor has yet to do
(a hand-over of ownership), which is how a checker orders the two actors without comparing clocks; and `advance` is
`step` without the copy of the slots, for a caller that keeps them itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from operator import itemgetter

from blink.common.events import EVENT_RULES, EVIDENCE, NOTHING, Event, GraphKind, Phase
from blink.common.layout import EPOCH_MODULUS, next_generation
from blink.common.ring_model import FIELD_OF_COLUMN, Area, Graph, Model, Record, Ring, Slot
from blink.common.states import OWNER, Actor, SlotState, SlotStatus
from blink.common.transitions import LEGAL_TRIPLES, TRANSITIONS, CountRule, Transition


class Violation(Exception):  # noqa: N818  # it is the specification's word
    """An event that the specification does not allow; `invariant` is its id in protocol.md."""

    def __init__(self, invariant: str, message: str) -> None:
        super().__init__(f"{invariant}: {message}")
        self.invariant = invariant
        self.message = message


TRANSITION_OF: dict[int, Transition] = {int(Event[row.name.upper()]): row for row in TRANSITIONS}
FRONTEND, GPU = int(Actor.FRONTEND), int(Actor.GPU)
EMPTY, PENDING = int(SlotState.EMPTY), int(SlotState.PREFILL_PENDING)
PREFILLING, DECODING = int(SlotState.PREFILL_PROCESSING), int(SlotState.DECODE_PROCESSING)
COMPLETED = int(SlotState.DECODE_COMPLETED)
CANCELLED, FENCED, ENGINE = int(SlotStatus.CANCELLED), int(SlotStatus.FENCED), int(SlotStatus.ENGINE)
CLAIM, RECYCLE, TOKENS_READ = int(Event.CLAIM), int(Event.RECYCLE), int(Event.TOKENS_READ)
CANCEL_SEEN, CRASHED, RESTARTED = int(Event.CANCEL_SEEN), int(Event.CRASHED), int(Event.RESTARTED)
GPU_OWNS = tuple(OWNER[state] == Actor.GPU for state in SlotState)

Outcome = tuple[Ring, Slot | None]  # the ring after the event, and its slot after the event if it has one
Slots = Mapping[int, Slot]


def step(model: Model, event: Record) -> Model:
    """The model after the event. Raises Violation if the specification does not allow the event here."""
    ring, slot = advance(model.ring, model.slots, event)
    return Model(ring, model.slots if slot is None else {**model.slots, event.slot: slot})


def advance(ring: Ring, slots: Slots, event: Record) -> Outcome:
    """What `step` does, on parts: (ring, the event's slot or None) after the event. Raises Violation."""
    check_form(event, ring.slot_count)
    _check_incarnation(ring, event)
    if ring.evidence:
        _check_evidence(ring, event)
    if not ring.epoch_used and event.actor == FRONTEND and event.event not in (CRASHED, RESTARTED):
        ring = ring._replace(epoch_used=True)
    return _RULES[event.event](ring, slots, event)


def waits(ring: Ring, slots: Slots, event: Record) -> bool:
    """Whether the event belongs after something that the other actor, which owns the slot now, has yet to do."""
    slot = slots.get(event.slot)
    if slot is None:
        slot = ring.slot_of(slots, event.slot)
    if event.actor == FRONTEND:
        if not GPU_OWNS[slot.state]:
            return False
        if event.event == RECYCLE:  # waits for the completion of the generation that it ends
            return event.generation == next_generation(slot.generation)
        return (  # waits for the tokens that it read
            event.event == TOKENS_READ and event.generation == slot.generation and event.token_count > slot.token_count
        )
    if event.event not in TRANSITION_OF and event.event != CANCEL_SEEN:
        return False
    if slot.state == EMPTY:  # waits for the submission
        return event.generation == slot.generation
    if slot.state == COMPLETED:  # waits for the recycling, and then for the submission
        return event.generation == next_generation(slot.generation)
    if event.status == CANCELLED:
        return event.generation == slot.generation and not slot.cancel_posted
    return event.status == FENCED and event.generation == slot.generation and slot.epoch == ring.epoch


# --- the form of a record -------------------------------------------------------------------------------------------

_REQUIRED = {
    int(event): (
        tuple(FIELD_OF_COLUMN.get(name, name) for name in rule.required),
        itemgetter(*(Record._fields.index(FIELD_OF_COLUMN.get(name, name)) for name in (*rule.required, "event"))),
    )
    for event, rule in EVENT_RULES.items()
}
_RULE_OF = {int(event): (rule.actor, rule.invariant) for event, rule in EVENT_RULES.items()}


def check_form(event: Record, slot_count: int) -> None:
    """What a record must obey by itself, whatever came before it. Raises Violation."""
    actor, invariant = _RULE_OF[event.event]
    label = Event(event.event).label
    if actor is not None and event.actor != actor:
        raise Violation(invariant, f"{label} was done by the {Actor(event.actor).label}; only the {actor.label} may")
    names, getter = _REQUIRED[event.event]
    values = getter(event)
    if NOTHING in (values if isinstance(values, tuple) else (values,)):
        missing = [name for name in names if getattr(event, name) == NOTHING]
        raise Violation(invariant, f"{label} does not record {', '.join(missing)}")
    if event.slot >= slot_count:
        raise Violation("I9", f"{label} names slot {event.slot}; the ring has slots 0 to {slot_count - 1}")
    row = TRANSITION_OF.get(event.event)
    if row is not None:
        _check_triple(row, event)


def _check_triple(row: Transition, event: Record) -> None:
    source, target, actor = SlotState(event.source), SlotState(event.target), Actor(event.actor)
    if (source, target, actor) not in LEGAL_TRIPLES:
        raise Violation("I1", f"the {actor.label} may not move a slot from {source.label} to {target.label}")
    if source not in row.sources or target != row.target:
        raise Violation("I1", f"{row.name} does not lead from {source.label} to {target.label}")
    if event.status not in row.statuses:
        allowed = ", ".join(status.label for status in row.statuses)
        raise Violation("I1", f"{row.name} with status {SlotStatus(event.status).label}; allowed: {allowed}")


def _check_incarnation(ring: Ring, event: Record) -> None:
    """A crashed actor is silent until it restarts, and every record carries the instance that is alive."""
    alive = ring.frontend_alive if event.actor == FRONTEND else ring.gpu_alive
    instance = ring.frontend_incarnation if event.actor == FRONTEND else ring.gpu_instance
    if event.event in (Event.RESTARTED, Event.RELAUNCHED):
        alive = alive or event.event == Event.RESTARTED
        instance += 1
    if not alive:
        raise Violation("I1", f"the {Actor(event.actor).label} acts after it crashed and before it restarted")
    if event.instance not in (NOTHING, instance):
        raise Violation(
            "I1", f"instance {event.instance} of the {Actor(event.actor).label} acts; instance {instance} is alive"
        )


def _check_evidence(ring: Ring, event: Record) -> None:
    """What the header promises stands in every event that it is about: a gap would be a pass that nothing earned."""
    for row in EVIDENCE:
        if row.column in ring.evidence and event.event in row.events and getattr(event, row.column) == NOTHING:
            raise Violation(
                row.invariants[0],
                f"{Event(event.event).label} does not record {row.column}, which the header says the trace has",
            )


# --- transitions ----------------------------------------------------------------------------------------------------


def _move(ring: Ring, slots: Slots, event: Record) -> Outcome:
    """T1 to T10."""
    row = TRANSITION_OF[event.event]
    slot = _slot_for(ring, slots, event, row.sources[0])
    _check_generation(slot, event, next_generation(slot.generation) if row.generation_step else slot.generation)
    if event.event == CLAIM and slot.claimed:
        raise Violation("I4", f"slot {event.slot} generation {event.generation} is claimed a second time")
    if event.source != slot.state:
        raise Violation(
            "I1",
            f"{row.name} of slot {event.slot} starts from {SlotState(event.source).label}, "
            f"the slot is {SlotState(slot.state).label}",
        )
    _check_request(slot, event)
    _check_count(row, slot, event)
    _check_status(ring, slot, event)
    guard = _GUARDS.get(event.event)
    if guard is not None:
        guard(ring, slot, event)
    _check_stored(event)
    return _moved(ring, slot, event)


def _moved(ring: Ring, slot: Slot, event: Record) -> Outcome:
    """Ring and slot after a transition that was found to be allowed."""
    ring = recount(ring, event)
    if event.event == RECYCLE:
        ring = ring._replace(
            prompt_areas=_without(ring.prompt_areas, slot.prompt_area),
            output_areas=_without(ring.output_areas, slot.output_area),
        )
        return ring, Slot(
            generation=event.generation, epoch=event.epoch, written_by=ring.frontend_incarnation, undo=slot
        )
    by_frontend = event.actor == FRONTEND
    return ring, slot._replace(
        state=event.target,
        token_count=event.token_count,
        status=event.status,
        epoch=event.epoch,
        claimed=slot.claimed or event.event == CLAIM,
        moved_at=ring.launches,
        written_by=ring.frontend_incarnation if by_frontend else slot.written_by,
        undo=slot if by_frontend else None,  # the gpu acted on it, so every WRITE before has arrived
    )


def recount(ring: Ring, event: Record) -> Ring:
    """How many slots are in the states that graphs cover; a doomed slot that completes is no longer doomed."""
    source, target = event.source, event.target
    if source == target or not (source in (PREFILLING, DECODING) or target in (PREFILLING, DECODING, COMPLETED)):
        return ring
    return ring._replace(
        decoding=ring.decoding + (target == DECODING) - (source == DECODING),
        prefilling=ring.prefilling + (target == PREFILLING) - (source == PREFILLING),
        doomed=ring.doomed - {event.slot} if target == COMPLETED and ring.doomed else ring.doomed,
    )


def _slot_for(ring: Ring, slots: Slots, event: Record, needed: int) -> Slot:
    """The event's slot; for a restarted frontend, as it was before WRITEs that may never have arrived.

    A WRITE posted just before a crash may be lost. The new incarnation sees the ring as it is, so if it acts on a slot
    as if such a WRITE had not happened, that WRITE did not happen.
    """
    slot = slots.get(event.slot)
    if slot is None:
        return ring.slot_of(slots, event.slot)
    if event.actor != FRONTEND or slot.undo is None or slot.state == needed:
        return slot
    found: Slot | None = slot
    while found is not None and found.written_by < ring.frontend_incarnation:
        found = found.undo
        if found is not None and found.state == needed:
            return found
    return slot


def _check_generation(slot: Slot, event: Record, expected: int) -> None:
    if event.generation != expected:
        label = Event(event.event).label
        raise Violation("I3", f"{label} of slot {event.slot} has generation {event.generation}, it must be {expected}")


def _check_request(slot: Slot, event: Record) -> None:
    """The request is the one whose prompt was posted."""
    if slot.request_id != event.request_id and slot.posted_epoch != NOTHING:
        raise Violation(
            "I2",
            f"{Event(event.event).label} of slot {event.slot} is for request {event.request_id}, "
            f"the prompt posted in this generation is of request {slot.request_id}",
        )


def _check_count(row: Transition, slot: Slot, event: Record) -> None:
    expected = {
        CountRule.ZERO: 0,
        CountRule.SAME: slot.token_count,
        CountRule.ONE: 1,
        CountRule.PLUS_ONE: slot.token_count + 1,
    }[row.count]
    if event.token_count != expected:
        raise Violation(
            "I5",
            f"{row.name} of slot {event.slot} leaves token count {event.token_count} after {slot.token_count}, "
            f"it must be {expected}",
        )
    if expected > slot.limit and row.count in (CountRule.ONE, CountRule.PLUS_ONE):
        raise Violation("I6", f"slot {event.slot} has token count {event.token_count}, its limit is {slot.limit}")


def _check_stored(event: Record) -> None:
    """A count announces tokens that are there. After a completion what is missing would be stored into an area that is
    the frontend's by then.
    """
    if NOTHING < event.stored_count < event.token_count:
        late = event.target == COMPLETED
        raise Violation(
            "I2" if late else "I7",
            f"{Event(event.event).label} of slot {event.slot} publishes token count {event.token_count} with "
            f"{event.stored_count} of them stored"
            + (": the rest can only be written into an area that is the frontend's" if late else ""),
        )


def _check_status(ring: Ring, slot: Slot, event: Record) -> None:
    if event.status == CANCELLED and not slot.cancel_posted:
        raise Violation(
            "I8", f"slot {event.slot} generation {slot.generation} is cancelled, but no cancel was posted for it"
        )
    if event.status == FENCED and slot.epoch == ring.epoch:
        raise Violation("I8", f"slot {event.slot} is fenced, but its epoch {slot.epoch} is the frontend's")
    if event.actor == GPU and event.epoch != slot.epoch:
        raise Violation("I8", f"slot {event.slot} has epoch {event.epoch}, it was submitted under {slot.epoch}")


# --- guards of single transitions -----------------------------------------------------------------------------------


def _guard_submit(ring: Ring, slot: Slot, event: Record) -> None:
    if event.epoch != ring.epoch:
        raise Violation("I8", f"submit under epoch {event.epoch}, the frontend's is {ring.epoch}")
    if slot.posted_epoch != ring.epoch:
        raise Violation("I2", f"slot {event.slot} is submitted before the prompt of generation {event.generation}")


def _guard_claim(ring: Ring, slot: Slot, event: Record) -> None:
    if NOTHING not in (event.prompt_tag, slot.prompt_tag) and event.prompt_tag != slot.prompt_tag:
        raise Violation(
            "I2",
            f"the claim of slot {event.slot} does not see the prompt of generation {event.generation}: it found tag "
            f"{event.prompt_tag}, {slot.prompt_tag} was posted",
        )


def _guard_recycle(ring: Ring, slot: Slot, event: Record) -> None:
    if event.epoch not in (ring.epoch, slot.epoch):
        raise Violation("I8", f"recycle under epoch {event.epoch}, the frontend's is {ring.epoch}")
    if ring.reads_in_flight:
        raise Violation("I7", f"slot {event.slot} is recycled while a READ of the status array is in flight")
    excused = slot.status in (CANCELLED, FENCED) or slot.cancel_posted or slot.epoch != ring.epoch
    if slot.read_count != slot.token_count and not excused:
        raise Violation(
            "I7", f"slot {event.slot} is recycled with {slot.read_count} of its {slot.token_count} tokens read"
        )


def _guard_between_steps(ring: Ring, slot: Slot, event: Record) -> None:
    engine_error = event.status == ENGINE  # a graph that fails or is overdue is still running
    if ring.graph is not None and ring.graph.running and not engine_error:
        raise Violation("I10", f"{Event(event.event).label} of slot {event.slot} while a graph runs")


def _guard_graph_done(kind: GraphKind) -> Callable[[Ring, Slot, Record], None]:
    def guard(ring: Ring, slot: Slot, event: Record) -> None:
        graph = ring.graph
        if graph is None or graph.running or graph.kind != kind or slot.moved_at >= ring.launches:
            raise Violation(
                "I10",
                f"{Event(event.event).label} of slot {event.slot} without a {kind.label} graph that was launched "
                f"for it and is done",
            )

    return guard


_GUARDS: dict[int, Callable[[Ring, Slot, Record], None]] = {
    int(Event.SUBMIT): _guard_submit,
    int(Event.CLAIM): _guard_claim,
    int(Event.FIRST_TOKEN): _guard_graph_done(GraphKind.PREFILL),
    int(Event.FINISH_AT_PREFILL): _guard_graph_done(GraphKind.PREFILL),
    int(Event.TOKEN): _guard_graph_done(GraphKind.DECODE),
    int(Event.FINISH): _guard_graph_done(GraphKind.DECODE),
    int(Event.PAUSE): _guard_between_steps,
    int(Event.RESUME): _guard_between_steps,
    int(Event.ABORT): _guard_between_steps,
    int(Event.RECYCLE): _guard_recycle,
}


# --- the frontend's other events ------------------------------------------------------------------------------------


def _prompt_posted(ring: Ring, slots: Slots, event: Record) -> Outcome:
    slot = _slot_for(ring, slots, event, EMPTY)
    if slot.state != EMPTY:
        raise Violation(
            "I2", f"the prompt of slot {event.slot} is written while the slot is {SlotState(slot.state).label}"
        )
    _check_generation(slot, event, slot.generation)
    if event.epoch != ring.epoch:
        raise Violation("I8", f"prompt posted under epoch {event.epoch}, the frontend's is {ring.epoch}")
    prompt = (event.prompt_offset, event.prompt_offset + event.prompt_tokens, event.slot)
    output = (event.output_offset, event.output_offset + event.output_capacity, event.slot)
    ring = ring._replace(
        prompt_areas=_with(_without(ring.prompt_areas, slot.prompt_area), prompt, "prompt"),
        output_areas=_with(_without(ring.output_areas, slot.output_area), output, "output"),
    )
    return ring, slot._replace(
        posted_epoch=event.epoch,
        request_id=event.request_id,
        prompt_tag=event.prompt_tag,
        limit=min(event.output_tokens_max, event.output_capacity),
        prompt_area=prompt,
        output_area=output,
    )


def _with(areas: tuple[Area, ...], area: Area, name: str) -> tuple[Area, ...]:
    """The areas with one more; they are disjoint, so only its neighbours can overlap it."""
    start, end, slot = area
    if start == end:
        return areas
    at = bisect_right(areas, area)
    for other in areas[max(at - 1, 0) : at + 1]:
        if start < other[1] and other[0] < end:
            raise Violation("I6", f"the {name} areas of slots {slot} and {other[2]} overlap")
    return (*areas[:at], area, *areas[at:])


def _without(areas: tuple[Area, ...], area: Area | None) -> tuple[Area, ...]:
    if area is None:
        return areas
    at = bisect_left(areas, area)
    return areas[:at] + areas[at + 1 :] if areas[at : at + 1] == (area,) else areas


def _cancel_posted(ring: Ring, slots: Slots, event: Record) -> Outcome:
    slot = ring.slot_of(slots, event.slot)
    if slot.state == EMPTY or event.generation != slot.generation:
        raise Violation("I8", f"a cancel of slot {event.slot} generation {event.generation}, which is not in the ring")
    _check_request(slot, event)
    return ring, slot._replace(cancel_posted=True)


def _status_read(ring: Ring, slots: Slots, event: Record) -> Outcome:
    if event.phase == Phase.POSTED:
        return ring._replace(reads_in_flight=ring.reads_in_flight + 1), None
    if not ring.reads_in_flight:
        raise Violation("I7", "a READ of the status array is done that was not posted")
    return ring._replace(reads_in_flight=ring.reads_in_flight - 1), None


def _tokens_read(ring: Ring, slots: Slots, event: Record) -> Outcome:
    slot = ring.slot_of(slots, event.slot)
    _check_generation(slot, event, slot.generation)
    _check_request(slot, event)
    if event.token_from != slot.read_count or event.token_count <= event.token_from:
        raise Violation(
            "I7",
            f"tokens {event.token_from} to {event.token_count - 1} of slot {event.slot} are read after "
            f"{slot.read_count}; each must be read once and in order",
        )
    if event.token_count > slot.token_count:
        raise Violation(
            "I7", f"{event.token_count} tokens of slot {event.slot} are read, {slot.token_count} are published"
        )
    if event.wrong_count > 0:
        raise Violation(
            "I7",
            f"{event.wrong_count} of the tokens {event.token_from} to {event.token_count - 1} of slot {event.slot} "
            f"are not those of request {event.request_id}",
        )
    return ring, slot._replace(read_count=event.token_count)


# --- the gpu's other events -----------------------------------------------------------------------------------------


def _cancel_seen(ring: Ring, slots: Slots, event: Record) -> Outcome:
    slot = ring.slot_of(slots, event.slot)
    _check_generation(slot, event, slot.generation)
    if not GPU_OWNS[slot.state]:
        raise Violation("I10", f"the gpu looks at slot {event.slot}, which is {SlotState(slot.state).label}")
    if event.status not in (CANCELLED, FENCED):
        raise Violation("I10", f"cancel_seen with status {SlotStatus(event.status).label}; allowed: cancelled, fenced")
    _check_request(slot, event)
    _check_status(ring, slot, event)
    return ring._replace(doomed=ring.doomed | {event.slot}), slot


def _graph_launched(ring: Ring, slots: Slots, event: Record) -> Outcome:
    kind = GraphKind(event.graph)
    if ring.graph is not None and ring.graph.running:
        raise Violation("I10", f"a {kind.label} graph is launched while another runs")
    covered = PREFILLING if kind == GraphKind.PREFILL else DECODING
    for index in sorted(ring.doomed):
        if ring.slot_of(slots, index).state == covered:
            raise Violation(
                "I10", f"a {kind.label} graph is launched for slot {index} after its cancel or fence was seen"
            )
    members = ring.prefilling if kind == GraphKind.PREFILL else ring.decoding
    if event.live != members or event.live > event.batch:
        raise Violation(
            "I10",
            f"a {kind.label} graph of batch {event.batch} is launched for {event.live} sequences, "
            f"{members} slots are {SlotState(covered).label}",
        )
    graph = Graph(event.graph, event.batch, event.sequence, event.live, running=True)
    return ring._replace(graph=graph, launches=ring.launches + 1), None


def _graph_done(ring: Ring, slots: Slots, event: Record) -> Outcome:
    done = Graph(event.graph, event.batch, event.sequence, event.live, running=True)
    if ring.graph != done:
        raise Violation("I10", "a graph is done that is not the one that was launched last")
    return ring._replace(graph=done._replace(running=False)), None


def _relaunched(ring: Ring, slots: Slots, event: Record) -> Outcome:
    if ring.graph is not None and ring.graph.running:
        raise Violation("I10", "the scheduler is relaunched while a graph runs")
    return ring._replace(gpu_instance=ring.gpu_instance + 1), None


# --- crashes --------------------------------------------------------------------------------------------------------


def _crashed(ring: Ring, slots: Slots, event: Record) -> Outcome:
    if event.actor == FRONTEND:
        return ring._replace(frontend_alive=False), None
    return ring._replace(gpu_alive=False), None


def _restarted(ring: Ring, slots: Slots, event: Record) -> Outcome:
    if event.actor == GPU:  # a new scheduler on the memory of the old one; the graph it ran is gone
        return ring._replace(gpu_alive=True, gpu_instance=ring.gpu_instance + 1, graph=None), None
    # The epoch follows the one that stands in the ring. That is the predecessor's unless its WRITE was lost, and then
    # the predecessor has done nothing: it acts only after the completion of that WRITE.
    expected = (ring.epoch + 1) % EPOCH_MODULUS
    if event.epoch != expected and (ring.epoch_used or event.epoch != ring.epoch):
        raise Violation("I8", f"the frontend restarts with epoch {event.epoch}, it must be {expected}")
    uncertain = {
        index
        for index, slot in slots.items()
        if slot.state == EMPTY or (slot.undo is not None and slot.written_by == ring.frontend_incarnation)
    }
    return ring._replace(
        epoch=event.epoch,
        epoch_used=False,
        frontend_alive=True,
        frontend_incarnation=ring.frontend_incarnation + 1,
        reads_in_flight=0,  # the connection that carried them is destroyed
        prompt_areas=tuple(area for area in ring.prompt_areas if area[2] not in uncertain),
        output_areas=tuple(area for area in ring.output_areas if area[2] not in uncertain),
    ), None


_RULES: dict[int, Callable[[Ring, Slots, Record], Outcome]] = {
    **dict.fromkeys(TRANSITION_OF, _move),
    int(Event.PROMPT_POSTED): _prompt_posted,
    int(Event.CANCEL_POSTED): _cancel_posted,
    int(Event.STATUS_READ): _status_read,
    int(Event.TOKENS_READ): _tokens_read,
    int(Event.CANCEL_SEEN): _cancel_seen,
    int(Event.GRAPH_LAUNCHED): _graph_launched,
    int(Event.GRAPH_DONE): _graph_done,
    int(Event.RELAUNCHED): _relaunched,
    int(Event.CRASHED): _crashed,
    int(Event.RESTARTED): _restarted,
}
