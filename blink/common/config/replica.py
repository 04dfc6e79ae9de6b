"""What a backend with one ring can serve of all that a scenario can describe."""

from __future__ import annotations

from blink.common.config.scenario import Scenario
from blink.common.errors import InputError


def require_replica(scenario: Scenario, who: str, kinds: tuple[str, ...] = ("blink",)) -> None:
    """Raises InputError unless the scenario is one replica of one of these kinds of system; `who` asks."""
    if scenario.system.kind not in kinds:
        allowed = ", ".join(map(repr, kinds))
        raise InputError(f"{who}: system.kind = {scenario.system.kind!r} is not allowed; allowed: {allowed}")
    if scenario.fleet is not None:
        raise InputError(f"{who}: [fleet] is not allowed; allowed: one replica (fleets are simulated by blink run)")
