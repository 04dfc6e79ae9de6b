"""What a sweep asks: scenario, grid, objectives; and the same as plain data, which the results file carries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from blink.common.config import Scenario, relocated
from blink.plan.sweep.grid import Grid
from blink.plan.sweep.point import WARMUP_PARTS, SweepPoint
from blink.plan.sweep.slo import SloClass

SERVICEABLE_SHARE = 0.95
"""A rate is serviceable if so much of what was asked is delivered, as the publication of Blink has it."""
ATTAINMENT = 0.99
"""Share of requests that must keep an objective, unless the user says otherwise: as for a P99."""


@dataclass(frozen=True)
class Question:
    """A sweep to make."""

    scenario: Scenario
    grid: Grid
    classes: tuple[SloClass, ...] = ()
    attainment: float = ATTAINMENT

    @cached_property
    def points(self) -> list[SweepPoint]:
        """Every run, all variants checked."""
        return self.grid.points(self.scenario, self.classes)

    @property
    def operating_rate(self) -> float | None:
        """The scenario's own mean request rate, of which the verdict speaks; None for a load that has none."""
        rate = getattr(self.scenario.workload.arrivals, "rate", None)
        return None if rate is None else float(rate)

    def definition(self, folder: Path | None = None) -> dict[str, Any]:
        """The question as plain data; paths in the scenario relative to the folder that keeps the results."""
        document = self.scenario.resolved()
        return {
            "version": 1,
            "scenario": relocated(document, folder) if folder else document,
            "axes": self.grid.axes(),
            "seeds": list(self.grid.seeds(self.scenario)),
            "classes": [one.plain() for one in self.classes],
            "attainment": self.attainment,
            "warmup_share": 1 / WARMUP_PARTS,
            "serviceable_share": SERVICEABLE_SHARE,
        }
