"""A drill: one seeded run under faults, and the judgement on what it left behind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blink.common.checker import check_trace
from blink.common.coverage import Coverage
from blink.common.faults import FaultPlan
from blink.common.request import Request
from blink.common.results import Outcome
from blink.common.states import SLOT_COUNT, SlotStatus
from blink.common.verdict import CONFORMS


@dataclass(frozen=True, slots=True)
class Life:
    """One ring from the start of its gpu side to its end.

    `slots` are the frontend's counts at the end: free, in_use, recovering. `ended_by` is empty for the last ring of a
    drill, which must have drained; else it says why the ring was given up, and `drains` whether it had to drain first.
    """

    trace: Path
    slots: dict[str, int]
    ended_by: str = ""
    drains: bool = True


@dataclass(slots=True)
class Drill:
    """Everything that one seed led to. `complaints` are what was seen to be wrong while it ran."""

    seed: int
    plan: FaultPlan
    load: str  # the workload in words
    rows: list[Request]
    probes: frozenset[int]  # requests that were sent after the faults had ended: they must be served
    lives: list[Life] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    coverage: list[Coverage] = field(default_factory=list)
    duration_ns: int = 0  # on the run's own clock

    def judge(self) -> list[str]:
        """What is wrong, in sentences that name the check; empty if nothing is."""
        found = list(self.complaints)
        if not self.lives:
            found.append("hang: no ring was ever brought to its end")
        for number, life in enumerate(self.lives):
            where = f"ring {number}" if len(self.lives) > 1 else "the ring"
            found += self._judge_life(life, where, last=number == len(self.lives) - 1)
        found += [
            f"heal: request {row.request_id}, sent after the faults had ended, was {row.outcome.label} "
            f"(status {SlotStatus(row.status).label if row.status >= 0 else 'unknown'})"
            for row in self.rows
            if row.request_id in self.probes and row.outcome is not Outcome.COMPLETED
        ][:3]
        return found

    def _judge_life(self, life: Life, where: str, *, last: bool) -> list[str]:
        verdict = check_trace(life.trace)
        self.coverage.append(verdict.coverage)
        for status in (SlotStatus.BAD_DESCRIPTOR, SlotStatus.TIME_LIMIT):
            name = f"requests ended as {status.label}"
            self.counts[name] = self.counts.get(name, 0) + verdict.coverage["statuses"][status.label]
        found = []
        if verdict.code != CONFORMS:
            found.append(f"trace of {where}: {verdict.name}: {verdict.reason}")
        counts = ", ".join(f"{name} {count}" for name, count in life.slots.items())
        if sum(life.slots.values()) != SLOT_COUNT:
            found.append(f"I9: {where}: {counts}: together not {SLOT_COUNT}")
        if (last or life.drains) and life.slots["free"] != SLOT_COUNT:
            found.append(f"leak: {where}: {counts}: not every slot came back")
        if last and life.ended_by:
            found.append(f"heal: {where} was given up ({life.ended_by}) and no other took its place")
        return found

    def outcomes(self) -> dict[str, int]:
        """Requests by what became of them."""
        found = Counter(row.outcome.label for row in self.rows)
        return {outcome.label: found[outcome.label] for outcome in Outcome}

    def to_json(self) -> dict[str, Any]:
        """A JSON object, without the judgement."""
        return {
            "seed": self.seed,
            "load": self.load,
            "plan": [fault.text().strip() for fault in self.plan],
            "rings": [{"ended_by": life.ended_by, **life.slots} for life in self.lives],
            "requests": self.outcomes(),
            "happened": dict(sorted(self.counts.items())),
            "duration_ns": self.duration_ns,
        }
