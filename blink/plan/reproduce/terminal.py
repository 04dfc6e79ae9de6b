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
        lines.append("Quick: few rates and short runs. It shows that the command works; its figures are not to be quoted.")
    if found.partial:
        lines.append("PARTIAL: stopped before every run was made. The figures cover those that were.")
    return lines


def _print_fact(verdicts: list[Verdict], console: Console) -> None:
    fact = verdicts[0].fact
    console.print()
    console.print(Text(fact.id, style="bold"))
    console.print(Padding(Text(fact.says, style="dim"), (0, 0, 0, 2)))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for width, justify in ((24, "left"), (18, "left"), (18, "left"), (5, "left")):
        table.add_column(min_width=min(width, 12), max_width=width, justify=justify)  # type: ignore[arg-type]
    for verdict in verdicts:
        sign = words.mark(verdict)
        table.add_row(
            words.name(fact, verdict.quantity) or "published, twin",
            words.published(verdict.quantity),
            words.predicted(verdict),
            Text(f"{verdict.word}, {verdict.use} ").append(sign, style=STYLES[sign]),
        )
    console.print(Padding(table, (0, 0, 0, 2)))
    for text in _explanations(verdicts):
        console.print(Padding(text, (0, 0, 0, 4)))


def _explanations(verdicts: list[Verdict]) -> list[Text]:
    lines: dict[str, str] = {}
    for verdict in verdicts:
        if verdict.prediction.absent:
            lines[verdict.prediction.absent] = "dim"
        if words.each(verdict):
            lines[words.each(verdict)] = "dim"
        if verdict.prediction.note:
            lines[verdict.prediction.note] = "dim"
        if verdict.reason:
            lines[f"Most likely: {verdict.reason}"] = ""
    return [Text(line, style=style) for line, style in lines.items()]
