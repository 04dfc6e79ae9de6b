"""An action of the model: one event, with the state that follows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blink.common.states import Actor
from blink.prove.rules import Rules
from blink.prove.state import State

Effect = Callable[[Rules, State, int], State]
"""(rules, state, place) -> the next state; `place` is a slot, or an index into the FIFO."""


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """A named effect. `actor` None: the wire does it.

    `drains` says that L1 may rely on it: it is neither a fault nor a new wish of a client nor a choice that a scheduler
    might never take. `stores`: it may write a control word.
    """

    name: str
    actor: Actor | None
    effect: Effect
    drains: bool = True
    stores: bool = False


Move = tuple[Action, int]
"""An action that is possible now, and its place."""
