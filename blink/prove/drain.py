"""L2: once faults have stopped, everything drains within a bounded number of steps, under weak fairness.

The graph is that of the events which L1 may rely on: no new request, cancel, crash, relaunch, error or pause. Its
strongly connected components are ranked: 0 for the goal, and otherwise one more than the highest rank that an event
leads to. An event that leaves its component makes progress, since there is no way back; so a run makes at most `rank`
such events, whatever order they come in. Events within a component undo one another: the frontend polls and finds
nothing new. A run cannot go on with those alone if one and the same event is possible in every state of the component
and always leaves it: weak fairness says that what is possible all the while happens in the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Nodes = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Drain:
    """The largest rank, the size of the largest component, and a state that a fair run may never leave (-1: none)."""

    bound: int
    loop_states: int
    trap: int


def drain_of(goal: NDArray[np.bool_], sources: Nodes, targets: Nodes, labels: Nodes) -> Drain:
    """Rank a graph with the edges sources[i] -> targets[i], ascending in `sources`; goal is (n,).

    labels[i] names the event of an edge. A state has at most one edge of a label.
    """
    begin = np.searchsorted(sources, np.arange(goal.size + 1)).tolist()
    component = np.array(components(begin, targets.tolist()), np.int32)
    inside = component[sources] == component[targets]
    trap = _trap(goal, component, sources, labels, inside)
    ranks = _ranks(goal.size, component, sources[~inside], targets[~inside])
    return Drain(int(ranks.max(initial=0)), int(np.bincount(component).max()), trap)


def components(begin: list[int], targets: list[int]) -> list[int]:
    """The strongly connected component of each node, numbered so that an edge never leads to a higher number.

    The successors of node v are targets[begin[v] : begin[v + 1]]. Tarjan (1972), with a stack of its own.
    """
    count = len(begin) - 1
    component, low, order = [-1] * count, [0] * count, [-1] * count
    at = begin[:-1]  # the next edge of each node to look at
    open_nodes: list[int] = []
    found = visited = 0
    for root in range(count):
        if order[root] >= 0:
            continue
        path = [root]
        while path:
            node = path[-1]
            if order[node] < 0:
                order[node] = low[node] = visited
                visited += 1
                open_nodes.append(node)
            descend, end = -1, begin[node + 1]
            while at[node] < end:
                target = targets[at[node]]
                if order[target] < 0:
                    descend = target
                    break
                if component[target] < 0 and low[target] < low[node]:
                    low[node] = low[target]
                at[node] += 1
            if descend >= 0:
                path.append(descend)
                continue
            path.pop()
            if low[node] == order[node]:
                while component[node] < 0:
                    component[open_nodes.pop()] = found
                found += 1
    return component


def _trap(goal: NDArray[np.bool_], component: Nodes, sources: Nodes, labels: Nodes, inside: NDArray[np.bool_]) -> int:
    """A state that is no goal and that nothing leaves, or whose component a run may circle in and be fair."""
    count = int(component.max()) + 1
    sizes = np.bincount(component, minlength=count)
    circles = np.zeros(count, np.bool_)
    circles[component[sources[inside]]] = True
    circles |= sizes == np.bincount(component[_without_edges(component.size, sources)], minlength=count)
    width = int(labels.max(initial=0)) + 1
    exits = component[sources[~inside]].astype(np.int64) * width + labels[~inside]
    keys, times = np.unique(exits, return_counts=True)
    certain = keys[times == sizes[keys // width]] // width  # this label leaves the component from each of its states
    circles[certain] = False
    trapped = np.flatnonzero(circles[component] & ~goal)
    return int(trapped[0]) if trapped.size else -1


def _without_edges(count: int, sources: Nodes) -> Nodes:
    return np.flatnonzero(np.bincount(sources, minlength=count) == 0).astype(np.int32)


def _ranks(count: int, component: Nodes, sources: Nodes, targets: Nodes) -> Nodes:
    """The longest way down from each component, in edges between components; those lead to lower numbers alone."""
    ranks = [0] * (int(component.max(initial=-1)) + 1)
    above, below = component[sources], component[targets]
    order = np.argsort(above, kind="stable")
    for high, low in zip(above[order].tolist(), below[order].tolist(), strict=True):
        if ranks[low] >= ranks[high]:
            ranks[high] = ranks[low] + 1
    return np.array(ranks, np.int32)
