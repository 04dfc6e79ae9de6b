"""Random runs of the protocol's model, from the start until the ring is idle again."""

from __future__ import annotations

import numpy as np

from blink.prove.configurations import Configuration
from blink.prove.explorer import Step
from blink.prove.model import moves
from blink.prove.rules import Rules
from blink.prove.state import initial, is_idle

_STEPS_MAX = 4_000


def random_path(configuration: Configuration, choices: np.random.Generator, length: int) -> list[Step]:
    """Any event for `length` steps, then only those that drain, until all is idle."""
    rules, state, steps = Rules.of(configuration), initial(configuration), list[Step]()
    while len(steps) < _STEPS_MAX:
        possible = moves(rules, state)
        if len(steps) >= length:
            if is_idle(state):
                return steps
            possible = [move for move in possible if move[0].drains]
        if not possible:
            break
        action, place = possible[int(choices.integers(len(possible)))]
        after = action.effect(rules, state, place)
        steps.append(Step(state, action, place, after))
        state = after
    assert is_idle(state), f"not drained after {len(steps)} events"
    return steps
