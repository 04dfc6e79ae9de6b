"""A plan on the terminal: the answer, the runner-up, the frontier, what binds, isolation, and every candidate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from blink.report import plan_words as words

WIDTH_MAX = 120
FIRST_MIN = 14
"""Columns of a fleet's name, which is broken between words."""
Data = dict[str, Any]


def print_plan(data: Data, console: Console) -> None:
    """Print it, no wider than the console."""
    console.print(Padding(plan_table(data), (1, 0)), width=min(WIDTH_MAX, console.width))


def plan_table(data: Data) -> RenderableType:
    """The whole plan as a rich renderable."""
    head = Text.assemble((data["name"], "bold"), "  ", (words.setting(data), "dim"))
    style = "bold" if data["best"] else "bold red"
    parts: list[RenderableType] = [head, Text(), Text(data["answer"], style=style)]

    if data["best"]:
        parts += [Text(), Text(data["simulated"], style="dim")]
        fleets = [data["best"], *([data["runner_up"]] if data["runner_up"] else [])]
        parts += [_rule("Cheapest, and the runner-up"), _fleets(data, [words.fleet_row(one, data) for one in fleets])]
        if data["runner_up"]:
            parts.append(Text(f"Why it lost: {data['runner_up']['sentence']}"))
        parts += [_rule("What binds"), Text(data["binds"]["sentence"])]
        if rows := words.relief_rows(data):
            parts.append(_table(("one replica less, with", "as much", "figure", ""), rows, ("left", "right", "right")))
        parts += [_rule("The price of isolation"), Text(data["isolation"]["sentence"])]
        for title, found in words.over_time(data):
            parts += [_rule(title), Text(found["sentence"])]
        parts += [_rule("Frontier of cost, power and latency"), _fleets(data, words.frontier_rows(data))]
    rows = [words.candidate_row(one) for one in data["candidates"]]
    alignment = ("left", "left", "right", "right", "right", "left")
    parts += [_rule("Candidates"), _table(words.CANDIDATE_COLUMNS, rows, alignment)]
    parts.append(Text(f"{data['run_count']} runs. Notes: {len(data['notes'])}, in plan.json.", style="dim"))
    return Group(*parts)


def _fleets(data: Data, rows: Sequence[Sequence[str]]) -> Table:
    columns = [*words.FLEET_COLUMNS, *words.objective_columns(data)]
    if rows and len(rows[0]) > len(columns):
        columns.append("")
    return _table(columns, rows, ("left", *["right"] * (len(columns) - 1)))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], alignment: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for index, name in enumerate(columns):
        justify: Any = alignment[index] if index < len(alignment) else "left"
        table.add_column(name, justify=justify, overflow="fold", min_width=0 if index else FIRST_MIN)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _rule(title: str) -> RenderableType:
    return Padding(Rule(Text(title, style="bold"), align="left", style="dim"), (1, 0, 0, 0))
