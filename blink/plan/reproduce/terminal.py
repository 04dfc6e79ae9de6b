"""The facts on a terminal: published, predicted, how far off, and why where they miss."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from blink.plan.reproduce import words
from blink.plan.reproduce.carry_out import Reproduction
from blink.plan.reproduce.verdict import Verdict, totals

COLUMN_WIDTHS = (19, 16, 14, 10, 4, 10)
STYLES = {"ok": "green", "miss": "bold red", "-": "dim"}


def print_reproduction(found: Reproduction, console: Console) -> None:
    """Every fact in the order of the file, then the sums."""
    for warning in warnings(found):
        console.print(Text(warning, style="bold yellow"))
    for _, group in groupby(found.verdicts, lambda verdict: verdict.fact.id):
        _print_fact(list(group), console)
    console.print()
    for line in words.summary(totals(found.verdicts)):
        console.print(Text(line, style="bold"))


def warnings(found: Reproduction) -> list[str]:
    """What a reader must know before the figures."""
    lines = []
    if found.bed.quick:
        lines.append(
            "Quick: few rates and short runs. It shows that the command works; its figures are not to be quoted."
        )
    if found.partial:
        lines.append("PARTIAL: stopped before every run was made. The figures cover those that were.")
    return lines


def _print_fact(verdicts: list[Verdict], console: Console) -> None:
    fact = verdicts[0].fact
    console.print()
    console.print(Text(fact.id, style="bold"))
    console.print(Padding(Text(fact.says, style="dim"), (0, 0, 0, 2)))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    for width in COLUMN_WIDTHS:
        table.add_column(width=width)
    for verdict in verdicts:
        sign = words.mark(verdict)
        table.add_row(
            words.name(fact, verdict.quantity) or "published, twin",
            words.published(verdict.quantity),
            words.predicted(verdict),
            words.short(verdict),
            Text(sign, style=STYLES[sign]),
            Text(verdict.use, style="dim"),
        )
    console.print(Padding(table, (0, 0, 0, 2)))
    for text in _explanations(verdicts):
        console.print(Padding(text, (0, 0, 0, 4)))


def _explanations(verdicts: list[Verdict]) -> list[Text]:
    """Below the table, each sentence once: values by label, what was evaluated, why it misses."""
    lines: dict[str, str] = {}
    for verdict in verdicts:
        about = words.name(verdict.fact, verdict.quantity)
        values = words.each(verdict)
        if values:
            lines[f"{about}: {values}" if about else values] = "dim"
        for text in (verdict.prediction.note, verdict.prediction.absent):
            if text:
                lines[f"{about}: {text}" if about else text] = "dim"
        if verdict.reason:
            lines[f"Most likely: {verdict.reason}"] = ""
    return [Text(line, style=style) for line, style in lines.items()]
