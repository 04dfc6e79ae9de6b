"""The search: breadth first, so that the first counterexample is a shortest one; L1 and L2 over the stored graph."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blink.prove.action import Action
from blink.prove.drain import drain_of
from blink.prove.model import ACTIONS, moves
from blink.prove.properties import Breach, breach_of, state_breach
from blink.prove.rules import Rules
from blink.prove.state import State, initial, is_idle

Progress = Callable[[int, int], None]
"""Called now and then with (states found, depth)."""
_REPORT_EVERY = 1 << 12
_PLACES = 1 << 8  # more than a slot or a place in the FIFO can be
_LABEL = {action: number * _PLACES for number, action in enumerate(ACTIONS)}


@dataclass(frozen=True, slots=True)
class Step:
    """One event of a path."""

    before: State
    action: Action
    place: int
    after: State


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A breach and a shortest path to it.

    For L1 the path ends in a state from which there is no way to idle; for L2 in one from which a fair run may never
    take it.
    """

    breach: Breach
    steps: tuple[Step, ...]


Accept = Callable[[Counterexample], bool]
Observe = Callable[[State, Action, int, State], None]
"""Called with (before, action, place, after)."""


@dataclass(slots=True)
class Search:
    """What a search found. `transitions` counts events, those that lead to known states included.

    `depth` is the largest distance from the initial state, in events; `drain_depth` the largest distance from any state
    to all-idle, over events that L1 may rely on. `drain_bound`: how many events at most make progress on the longest of
    all ways to all-idle, over the same events. `counterexample` None: every invariant holds.
    """

    rules: Rules
    states: int = 0
    transitions: int = 0
    depth: int = 0
    drain_depth: int = 0
    drain_bound: int = 0
    counterexample: Counterexample | None = None


def search(
    rules: Rules,
    progress: Progress | None = None,
    accept: Accept | None = None,
    observe: Observe | None = None,
) -> Search:
    """Look at every reachable state, or stop at the first counterexample that `accept` takes (None: the first of all).

    `observe` gets every event. Beyond a breach nothing is explored: what follows a broken invariant proves nothing.
    """
    with _without_collector():
        return _Explorer(rules, progress, accept, observe).run()


@contextmanager
def _without_collector() -> Iterator[None]:
    """States hold no cycles; looking for some among millions of tuples would take most of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Explorer:
    """Numbers the states in the order of their discovery and keeps how each was reached."""

    def __init__(self, rules: Rules, progress: Progress | None, accept: Accept | None, observe: Observe | None) -> None:
        self.rules = rules
        self.progress = progress
        self.accept = accept
        self.observe = observe
        self.found = Search(rules)
        self.number: dict[State, int] = {}
        self.states: list[State] = []
        self.parents = array("i")
        self.choices = array("h")  # which of the parent's moves led here
        self.sources, self.targets, self.labels = array("i"), array("i"), array("i")  # events on which L1 may rely

    def run(self) -> Search:
        start = initial(self.rules.configuration)
        self.number[start] = 0
        self._add(start, -1, 0)
        begin = 0
        while begin < len(self.states) and self.found.counterexample is None:
            end = len(self.states)
            for index in range(begin, end):
                if self._expand(index):
                    break
            if len(self.states) > end:
                self.found.depth += 1
            begin = end
        if self.found.counterexample is None:
            self._check_liveness()
        self.found.states = len(self.states)
        return self.found

    def _add(self, state: State, parent: int, choice: int) -> None:
        index = len(self.states)
        self.states.append(state)
        self.parents.append(parent)
        self.choices.append(choice)
        if self.progress is not None and not index % _REPORT_EVERY:
            self.progress(index, self.found.depth)

    def _expand(self, index: int) -> bool:
        """Take every move of a state; whether the search is over."""
        rules, state, number = self.rules, self.states[index], self.number
        for choice, (action, place) in enumerate(moves(rules, state)):
            after = action.effect(rules, state, place)
            self.found.transitions += 1
            if self.observe is not None:
                self.observe(state, action, place, after)
            breach = breach_of(rules, state, action, place, after)
            if breach is None:
                new = len(self.states)
                target = number.setdefault(after, new)  # one hash for look-up and insertion: it is the dearest part
                if target == new:
                    breach = state_breach(after)
                    if breach is None:
                        self._add(after, index, choice)
                    else:
                        del number[after]
            if breach is not None:
                if self._report(breach, index, Step(state, action, place, after)):
                    return True
            elif action.drains:
                self.sources.append(index)
                self.targets.append(target)
                self.labels.append(_LABEL[action] + place)
        return False

    def _report(self, breach: Breach, index: int, last: Step) -> bool:
        counterexample = Counterexample(breach, (*self._path(index), last))
        if self.accept is not None and not self.accept(counterexample):
            return False
        self.found.counterexample = counterexample
        return True

    def _path(self, index: int) -> list[Step]:
        """The events from the initial state to a state."""
        steps = []
        while index > 0:
            parent = self.parents[index]
            action, place = moves(self.rules, self.states[parent])[self.choices[index]]
            steps.append(Step(self.states[parent], action, place, self.states[index]))
            index = parent
        return steps[::-1]

    def _check_liveness(self) -> None:
        idle = np.fromiter((is_idle(state) for state in self.states), np.bool_, len(self.states))
        sources, targets = np.array(self.sources, np.int32), np.array(self.targets, np.int32)
        self._check_l1(distances(idle, sources, targets))
        if self.found.counterexample is not None:
            return
        drain = drain_of(idle, sources, targets, np.array(self.labels, np.int32))
        self.found.drain_bound = drain.bound
        if drain.trap >= 0:
            breach = Breach("L2", "from here a run may go on for ever, though nothing that is possible is left out")
            counterexample = Counterexample(breach, tuple(self._path(drain.trap)))
            if self.accept is None or self.accept(counterexample):
                self.found.counterexample = counterexample

    def _check_l1(self, distance: NDArray[np.int32]) -> None:
        self.found.drain_depth = int(distance.max())
        stuck = np.flatnonzero(distance < 0)
        for index in stuck.tolist():
            breach = Breach("L1", "from here no chain of events leads back to the all-idle state")
            counterexample = Counterexample(breach, tuple(self._path(index)))
            if self.accept is None or self.accept(counterexample):
                self.found.counterexample = counterexample
                return


def distances(goal: NDArray[np.bool_], sources: NDArray[np.int32], targets: NDArray[np.int32]) -> NDArray[np.int32]:
    """Edges (sources[i] -> targets[i]) from each node to the nearest of `goal` (n,); (n,) int32, -1: no way."""
    order = np.argsort(targets, kind="stable")
    sources = sources[order]
    begin = np.searchsorted(targets[order], np.arange(goal.size + 1))
    distance = np.where(goal, 0, -1).astype(np.int32)
    frontier = np.flatnonzero(goal)
    level = 0
    while frontier.size:
        level += 1
        counts = begin[frontier + 1] - begin[frontier]
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        before = np.unique(sources[np.repeat(begin[frontier], counts) + offsets])
        frontier = before[distance[before] < 0].astype(np.int64)
        distance[frontier] = level
    return distance
