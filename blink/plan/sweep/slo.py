"""Classes of service level objectives: several named objectives, each of which has a goodput of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.common.metrics import Slo

OWN = "scenario"
"""The class of the scenario's own [slo]."""
BOUNDS = ("ttft_ms", "tpot_ms", "e2e_ms")
ALLOWED = f"allowed: NAME:BOUND=MS,... with {', '.join(BOUNDS)}, such as chat:ttft_ms=500,tpot_ms=30"

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class SloClass:
    """A named objective."""

    name: str
    slo: Slo

    def plain(self) -> dict[str, Any]:
        """As plain data, bounds that are not set left out."""
        return {"name": self.name, **{key: value for key, value in asdict(self.slo).items() if value is not None}}


def parse_class(text: str) -> SloClass:
    """`NAME:ttft_ms=500,tpot_ms=30`. Raises InputError."""
    name, separator, rest = text.partition(":")
    if not separator or not _NAME.fullmatch(name) or name == OWN:
        raise InputError(f"--slo: {text!r} is not allowed; {ALLOWED}; the name is lower case and not {OWN!r}")
    bounds: dict[str, float] = {}
    for part in rest.split(","):
        key, _, value = part.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if key not in BOUNDS or key in bounds or not 0 < number < float("inf"):
            raise InputError(f"--slo: {text!r}: {part!r} is not allowed; {ALLOWED}")
        bounds[key] = number
    return SloClass(name, Slo(**bounds))


def classes_of(scenario: Scenario, more: Sequence[SloClass]) -> tuple[SloClass, ...]:
    """The scenario's own objective, if it sets one, and these. Raises InputError for a name that stands twice."""
    own = Slo(**scenario.slo.model_dump())
    found = ((SloClass(OWN, own),) if own.is_set else ()) + tuple(more)
    names = [one.name for one in found]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"--slo: {name} is given twice")
    return found
