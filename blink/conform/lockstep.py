"""The third level: scripts in lock-step, every decision of one backend equal to that of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from blink.common.lockstep import Machine, StepDecision, Stepper, iterate
from blink.common.states import SlotStatus
from blink.conform.compare import STEPS_BEFORE, Difference, decision_lines, first_difference, side_by_side
from blink.conform.script import Script, SeededChoices, draw_script

Opener = Callable[[Machine], Stepper]
"""Makes a scheduler that goes in lock-step."""


@dataclass(slots=True)
class Compared:
    """How much was compared so far."""

    scripts: int = 0
    requests: int = 0
    decisions: int = 0
    events: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    """Decisions by action and by what waits, events by label and by status."""
    script: Script | None = None  # the last one

    def add(self, decision: StepDecision) -> None:
        """One more decision that is the same on both sides."""
        self.decisions += 1
        self.events += len(decision.events)
        self.kinds[decision.action.value] += 1
        self.kinds[f"waits for {decision.blocked.value}"] += 1
        self.kinds.update(event.label for event, *_ in decision.events)
        self.kinds.update(SlotStatus(status).label for *_, status in decision.events if status > 0)


def random_scripts(seed: int, count: int) -> Iterator[Script]:
    """`count` scripts, the same for the same seed."""
    for child in np.random.SeedSequence(seed).spawn(count):
        yield draw_script(SeededChoices(np.random.Generator(np.random.PCG64(child))))


def compare_script(names: tuple[str, str], openers: tuple[Opener, Opener], script: Script, tally: Compared) -> (
    Difference | None
):  # fmt: skip
    """The first difference between two backends on one script, None if there is none.

    Both go step by step and the comparison ends at the first difference, so a backend that would go on for ever does
    no harm as long as the other comes to an end.
    """
    tally.scripts += 1
    tally.script = script
    tally.requests += script.request_count
    with closing(openers[0](script.machine)) as left, closing(openers[1](script.machine)) as right:
        before: list[StepDecision] = []
        for ours, theirs in zip_longest(iterate(left, script.operations), iterate(right, script.operations)):
            if ours != theirs:
                return _difference(names, script, before, ours, theirs)
            tally.add(ours)
            before = [*before[1 - STEPS_BEFORE :], ours]
    return None


def _difference(
    names: tuple[str, str],
    script: Script,
    before: list[StepDecision],
    ours: StepDecision | None,
    theirs: StepDecision | None,
) -> Difference:
    if ours is None:
        what = f"{names[0]} is done where {names[1]} goes on"
    elif theirs is None:
        what = f"step {ours.step}: {names[1]} is done where {names[0]} goes on"
    else:
        what = f"step {ours.step}: {first_difference(ours, theirs)} of {names[0]} and {names[1]} differ"
    common = [decision_lines(decision) for decision in before]
    columns = [[*common, *([decision_lines(decision)] if decision else [])] for decision in (ours, theirs)]
    context = ["script:", *(f"  {line}" for line in script.lines()), *side_by_side(names, columns[0], columns[1])]
    return Difference(what, tuple(context))


def compare_scripts(
    names: tuple[str, str],
    openers: tuple[Opener, Opener],
    scripts: Iterable[Script],
    progress: Callable[[int], None] | None = None,
) -> tuple[Compared, Difference | None]:
    """Scripts until the first that differs."""
    tally = Compared()
    for script in scripts:
        found = compare_script(names, openers, script, tally)
        if progress:
            progress(tally.scripts)
        if found is not None:
            return tally, found
    return tally, None
