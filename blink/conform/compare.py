"""What two backends did, side by side, from three steps before the first difference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from blink.common.events import Event
from blink.common.lockstep import StepDecision
from blink.common.policy import Blocked, GraphShape
from blink.common.states import SlotStatus

STEPS_BEFORE = 3
_WIDTH = 46
_SAME, _OTHER = " ", ">"
OVER = ("(over)",)
"""What stands where one side has nothing more to say."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference: what it is in one line, and the lines around it."""

    what: str
    context: tuple[str, ...]

    def lines(self) -> list[str]:
        """All of it as text."""
        return [self.what, *self.context]


def side_by_side(
    names: tuple[str, str], left: Sequence[Sequence[str]], right: Sequence[Sequence[str]]
) -> Iterator[str]:
    """Two columns of steps, each of several lines; lines that differ begin with `>`."""
    yield f"  {names[0]:<{_WIDTH}}| {names[1]}"
    for ours, theirs in zip_longest(left, right, fillvalue=OVER):
        for a, b in zip_longest(_folded(ours), _folded(theirs), fillvalue=""):
            mark = _SAME if a == b else _OTHER
            yield f"{mark} {a:<{_WIDTH}}| {b}".rstrip()


def _folded(lines: Sequence[str]) -> Iterator[str]:
    """Lines no wider than a column; what is cut off goes on in the next line, indented."""
    for line in lines:
        while len(line) > _WIDTH:
            cut = line.rfind(" ", 8, _WIDTH)
            cut = cut if cut > 0 else _WIDTH
            yield line[:cut]
            line = "    " + line[cut:].lstrip()
        yield line


# --- decisions in words ---


def decision_lines(decision: StepDecision) -> list[str]:
    """One iteration: what was decided, then what followed, one line each."""
    why = "" if decision.blocked is Blocked.NOT else f", the next waits for {decision.blocked.value}"
    lines = [f"step {decision.step}: {decision.action.value}{why}"]
    lines += [f"  r{it.request_id} in slot {it.slot}, blocks {_numbers(it.blocks)}" for it in decision.claimed]
    if decision.graph is not None:
        lines.append(f"  {graph_words(decision.graph)}: slots {_numbers(decision.members)}")
    lines += [f"  {event_words(*event)}" for event in decision.events]
    return lines


def graph_words(graph: GraphShape) -> str:
    """A captured shape."""
    return f"{graph.kind.label} graph {graph.batch} x {graph.sequence}"


def event_words(event: int, slot: int, request_id: int, token_count: int, status: int) -> str:
    """One event of the trace."""
    words = Event(event).label
    if slot >= 0:
        words += f" r{request_id} slot {slot}"
    if token_count > 0:
        words += f" count {token_count}"
    if status > 0:
        words += f" {SlotStatus(status).label}"
    return words


def _numbers(values: Sequence[int]) -> str:
    return " ".join(map(str, values))


def first_difference(a: StepDecision, b: StepDecision) -> str:
    """Which part of two iterations differs first, in words."""
    for name, ours, theirs in (
        ("step", a.step, b.step),
        ("action", a.action.value, b.action.value),
        ("what the next waits for", a.blocked.value, b.blocked.value),
        ("claims and KV blocks", a.claimed, b.claimed),
        ("graph", a.graph, b.graph),
        ("batch membership", a.members, b.members),
    ):
        if ours != theirs:
            return name
    for ours_event, theirs_event in zip_longest(a.events, b.events):
        if ours_event != theirs_event:
            seen = [event_words(*event) if event else "nothing" for event in (ours_event, theirs_event)]
            return f"events ({seen[0]}, {seen[1]})"
    return "nothing"
