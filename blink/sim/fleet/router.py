"""Routers: which replica gets a request. What they see is what they know themselves, or what a replica reports."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from blink.common.config.fleet import Fleet


class Candidate(Protocol):
    """A replica that takes requests, as a router sees it."""

    @property
    def index(self) -> int:
        """Its number in the fleet."""

    @property
    def under_way(self) -> int:
        """Requests that were handed to it and are not over."""

    @property
    def waiting(self) -> int:
        """Of these, those that have no place in its batch yet."""


Choice = Callable[[Sequence[Candidate], int], int]
"""Place of the chosen one among the candidates, of which there is at least one, for a request with that affinity."""


def make_router(fleet: Fleet, rng: np.random.Generator) -> Choice:
    """The router of a fleet; `rng` is the one that it may draw from."""
    if fleet.router == "round-robin":
        return RoundRobin()
    if fleet.router == "least-outstanding":
        return lambda candidates, _: least(candidates)
    if fleet.router == "join-shortest-queue":
        return shortest_queue
    if fleet.router == "power-of-two":
        return PowerOfTwo(rng)
    return PrefixAffinity(fleet.affinity_overload)


class RoundRobin:
    """One after the other, by their numbers; a replica that is away is passed over."""

    def __init__(self) -> None:
        self._last = -1

    def __call__(self, candidates: Sequence[Candidate], affinity: int) -> int:
        """The next one behind the last."""
        place = next((i for i, replica in enumerate(candidates) if replica.index > self._last), 0)
        self._last = candidates[place].index
        return place


def least(candidates: Sequence[Candidate]) -> int:
    """The fewest under way, the first of several."""
    return min(range(len(candidates)), key=lambda place: candidates[place].under_way)


def shortest_queue(candidates: Sequence[Candidate], affinity: int) -> int:
    """The fewest that wait; of several, the fewest under way, the first of several."""
    return min(range(len(candidates)), key=lambda place: (candidates[place].waiting, candidates[place].under_way))


class PowerOfTwo:
    """Two different ones at random, the one with fewer under way; the first drawn if they are equal."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def __call__(self, candidates: Sequence[Candidate], affinity: int) -> int:
        """Draws twice, whatever the number of candidates, so that a replica that is away shifts no other draw."""
        count = len(candidates)
        first, second = self._rng.random(2)
        one = int(first * count)
        if count == 1:
            return one
        other = (one + 1 + int(second * (count - 1))) % count
        return one if candidates[one].under_way <= candidates[other].under_way else other


class PrefixAffinity:
    """Rendezvous hashing: the replica with the greatest hash of (affinity, replica) that is not overloaded.

    A replica that comes or goes moves only those prefixes that it has or had. If all are overloaded (there is but
    one, or the bound is 1) the least loaded is taken.
    """

    def __init__(self, overload: float) -> None:
        self._overload = overload

    def __call__(self, candidates: Sequence[Candidate], affinity: int) -> int:
        """The first in the affinity's own order of replicas whose load is within bounds."""
        # As in consistent hashing with bounded loads: the bound counts the request that is to be placed.
        bound = self._overload * (sum(replica.under_way for replica in candidates) + 1) / len(candidates)
        order = sorted(range(len(candidates)), key=lambda place: rendezvous(affinity, candidates[place].index))
        for place in order:
            if candidates[place].under_way < bound:
                return place
        return least(candidates)


def rendezvous(affinity: int, index: int) -> int:
    """Rank of a replica for an affinity, the smaller the better; alike on every machine."""
    digest = hashlib.blake2b(f"{affinity}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
