"""What the checker says of a trace: an exit code, the violations with the events that show them, and the coverage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from blink.common.bulk import Fetch, Rows
from blink.common.events import COLUMNS, NOTHING, Column
from blink.common.states import Actor

CONFORMS, VIOLATES, INCONCLUSIVE, STUCK = 0, 2, 3, 4
NAMES = {CONFORMS: "conforms", VIOLATES: "violates", INCONCLUSIVE: "inconclusive", STUCK: "stuck"}
_CONTEXT_EVENTS = 6


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach: the invariant, one sentence, where it is, and the events around it, one line each.

    `row` counts the trace's events from 0 in the order of the file; it is -1 for what no single event shows.
    """

    invariant: str
    message: str
    row: int = NOTHING
    seq: int = NOTHING
    actor: str | None = None
    slot: int = NOTHING
    context: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The finding as text."""
        place = f" (event {self.row}: seq {self.seq} of the {self.actor})" if self.row >= 0 else ""
        return [f"{self.invariant}: {self.message}{place}", *(f"    {line}" for line in self.context)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check. `code` is the exit code: 0 conforms, 2 violates, 3 inconclusive, 4 stuck.

    `reason` is one sentence; `counts` says how much was looked at; `coverage` which transitions, statuses, system
    events and races occurred (invariant S is about a whole suite, so one trace alone never breaks it). `unjudged` says
    what the trace has no evidence for, one clause each: of that the verdict says nothing.
    """

    code: int
    reason: str
    violations: tuple[Finding, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    coverage: dict[str, dict[str, int]] = field(default_factory=dict)
    unjudged: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The exit code in one word."""
        return NAMES[self.code]

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"verdict": self.name, **asdict(self)}

    def report(self) -> str:
        """The verdict as text: what, why, and the events that matter."""
        lines = [f"{self.name}: {self.reason}"]
        for finding in self.violations:
            lines += ["", *finding.lines()]
        if self.unjudged:
            lines += [""] * bool(self.violations) + ["not judged, for the trace has no evidence of it:"]
            lines += [f"    {clause}" for clause in self.unjudged]
        return "\n".join(lines)


def of_all(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on several traces of one run, such as those of replicas: the worst, and how many share it."""
    worst = next(code for code in (VIOLATES, STUCK, INCONCLUSIVE, CONFORMS) if any(v.code == code for v in verdicts))
    count = sum(verdict.code == worst for verdict in verdicts)
    reason = f"{count} of {len(verdicts)} traces" if count < len(verdicts) else f"all {count} traces"
    return Verdict(worst, reason, unjudged=tuple(dict.fromkeys(one for v in verdicts for one in v.unjudged)))


def with_contexts(fetch: Fetch, findings: list[Finding]) -> list[Finding]:
    """The findings with the events that matter.

    Those are the last few of the slot up to the row at fault, or of the actor if no slot has to do with it, in the
    columns that apply to the row at fault. Every column is fetched once: a large trace reads it from the file.
    """
    shown = [_rows_before(fetch, finding) for finding in findings]
    tables: list[list[list[str]]] = [[["event", *map(str, rows)]] for rows in shown]
    for column in COLUMNS:
        values = fetch(column.name)
        for table, rows in zip(tables, shown, strict=True):
            if rows.size and values[rows[-1]] != NOTHING:
                heading = "name" if column.name == "event" else column.name
                table.append([heading, *(_text(column, int(value)) for value in values[rows])])
    return [
        replace(finding, context=tuple(_aligned(table))) if rows.size else finding
        for finding, table, rows in zip(findings, tables, shown, strict=True)
    ]


def _rows_before(fetch: Fetch, finding: Finding) -> Rows:
    if finding.row < 0 or finding.actor is None:
        return np.empty(0, np.int64)
    key, wanted = ("slot", finding.slot) if finding.slot >= 0 else ("actor", Actor[finding.actor.upper()])
    return np.flatnonzero(fetch(key)[: finding.row + 1] == wanted)[-_CONTEXT_EVENTS:]


def _aligned(table: list[list[str]]) -> list[str]:
    """Lines of a table that is given by columns."""
    widths = [max(len(cell) for cell in cells) for cells in table]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*table, strict=True)
    ]


def _text(column: Column, value: int) -> str:
    if value == NOTHING:
        return "-"
    return str(value) if column.labels is None else column.labels(value).name.lower()
