"""The facts as Markdown: one table, and the reasons of the misses below it."""

from __future__ import annotations

from collections.abc import Sequence

from blink.plan.reproduce import words
from blink.plan.reproduce.carry_out import Reproduction
from blink.plan.reproduce.terminal import warnings
from blink.plan.reproduce.verdict import Verdict, totals


def to_markdown(found: Reproduction) -> str:
    """The whole report as Markdown."""
    parts = [*(f"**{line}**" for line in warnings(found)), *words.summary(totals(found.verdicts))]
    parts += [facts_table(found.verdicts), "## Misses", misses(found.verdicts)]
    return "\n\n".join(parts) + "\n"


def facts_table(verdicts: Sequence[Verdict]) -> str:
    """One row a quantity."""
    lines = ["| fact | published | twin | error | use | |", "|---|---|---|---|---|---|"]
    for verdict in verdicts:
        name = words.name(verdict.fact, verdict.quantity)
        cells = (
            f"`{verdict.fact.id}`{': ' if name else ''}{name}",
            words.published(verdict.quantity),
            words.predicted(verdict),
            verdict.word,
            verdict.use,
            words.mark(verdict),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def misses(verdicts: Sequence[Verdict]) -> str:
    """The most likely reason of each miss; misses with the same reason together."""
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        if words.mark(verdict) == "miss" or verdict.prediction.absent:
            name = words.name(verdict.fact, verdict.quantity)
            text = verdict.reason or verdict.prediction.absent or "No reason is known."
            reasons.setdefault(text, []).append(f"`{verdict.fact.id}`{f' ({name})' if name else ''}")
    return "\n".join(f"- {', '.join(names)}: {text}" for text, names in reasons.items()) or "None."
