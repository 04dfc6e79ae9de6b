"""A comparison on the terminal: 80 columns hold the figures, wider ones their intervals too."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from blink.report.comparison_sections import Cell, Column, Section, findings, legend, remarks, sections, setting

WIDTH_MAX = 140
WIDTH_WITH_INTERVALS = 100
NOT_SIGNIFICANT = "~"
HALF_WIDTH = 5


def print_comparison(comparison: dict[str, Any], console: Console) -> None:
    """Print the tables, no wider than the console."""
    width = min(WIDTH_MAX, console.width)
    console.print(Padding(comparison_table(comparison, width), (1, 0)), width=width)


def comparison_table(comparison: dict[str, Any], width: int) -> RenderableType:
    """The whole comparison as a rich renderable of that width."""
    parts: list[RenderableType] = [Text.assemble((comparison["scenario"], "bold"), "  ", setting(comparison))]
    if comparison["partial"]:
        parts.append(Text("Stopped before its end: the figures cover the runs that were done.", style="bold"))
    intervals = width >= WIDTH_WITH_INTERVALS and len(comparison["seeds"]) > 1
    for section in sections(comparison):
        parts += [_rule(section.title), _table(section, width, intervals)]
    said = findings(comparison)
    if said:
        parts += [_rule("Largest change beside other jobs"), *(_bullet(line) for line in said)]
    more = " ±: half of the interval." if intervals else ""
    parts += [Text(), Text(legend(comparison) + more, style="dim")]
    parts += [Text(f"Note: {line}", style="dim") for line in remarks(comparison)]
    return Group(*parts)


def _rule(words: str) -> RenderableType:
    return Padding(Rule(Text(words, style="bold"), align="left", style="dim"), (1, 0, 0, 0))


def _bullet(line: str) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_row("-", Text(line))
    return table


def _table(section: Section, width: int, intervals: bool) -> RenderableType:
    """With intervals if they are wanted and fit, without if not."""
    lines = [[_cell(value, column, intervals) for value, column in _pairs(section, row)] for row in section.rows]
    if intervals and _width(section, lines) > width:
        return _table(section, width, intervals=False)
    table = Table.grid(padding=(0, 1), expand=True)
    with_group = not section.nested
    with_label = any(label for _, label, _ in section.rows)
    for _ in range(with_group + with_label):
        table.add_column(no_wrap=True, overflow="ellipsis")
    for _ in section.columns:
        table.add_column(justify="right", no_wrap=True)
    heads = [Text("\n".join(column.heading), style="dim", justify="right") for column in section.columns]
    table.add_row(*([""] * (with_group + with_label)), *heads)
    groups = [group for group, _, _ in section.rows]
    grouped = len(groups) > len(set(groups))
    for (before, group), (_, label, _), cells in zip(pairwise(["", *groups]), section.rows, lines, strict=True):
        name = Text("" if group == before else group, style="bold")
        if grouped and before not in ("", group):
            table.add_row()
        if section.nested and name:
            table.add_row(name)
        table.add_row(*([name] if with_group else []), *([Text(label)] if with_label else []), *cells)
    return table


def _pairs(section: Section, row: tuple[str, str, list[Cell]]) -> Iterator[tuple[Cell, Column]]:
    return zip(row[2], section.columns, strict=True)


def _width(section: Section, lines: list[list[Text]]) -> int:
    """Columns of the terminal that the table needs."""
    labels = max(len(label) if section.nested else len(f"{group} {label}") for group, label, _ in section.rows)
    cells: list[int] = [max(cell.cell_len for cell in column) + 1 for column in zip(*lines, strict=True)]
    return labels + sum(cells)


def _cell(value: Cell, column: Column, intervals: bool) -> Text:
    if value is None:
        return Text("-", style="dim")
    if not isinstance(value, dict):
        return Text(column.write(value))
    is_ratio, unsure = "ratio" in value, value.get("significant") is False
    estimate = value["ratio"] if is_ratio else value["mean"]
    mark = NOT_SIGNIFICANT if unsure else " " if is_ratio else ""
    text = Text(column.write(estimate) + mark, style="dim" if unsure else "")
    if intervals:
        text.append(_half(value, estimate), style="dim")
    return text


def _half(value: dict[str, Any], estimate: float) -> str:
    """Half the interval over the estimate, such as "±3%"; of one width, so that figures stand below each other."""
    if value["low"] is None or not estimate:
        return " " * HALF_WIDTH
    share = 50 * (value["high"] - value["low"]) / abs(estimate)
    return (">99%" if share > 99.5 else f"±{share:.0f}%" if share >= 0.5 else "<1%").rjust(HALF_WIDTH)
