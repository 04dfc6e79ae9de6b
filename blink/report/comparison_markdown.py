"""A comparison as Markdown, every ratio with its interval."""

from __future__ import annotations

from typing import Any

from blink.report.comparison_sections import Cell, Column, Section, findings, legend, remarks, sections, setting


def to_markdown(comparison: dict[str, Any]) -> str:
    """The whole comparison; ends with a newline."""
    parts = [f"# {_text(comparison['scenario'])}: comparison of systems", _text(setting(comparison)) + "."]
    if comparison["partial"]:
        parts.append("**Stopped before its end: the figures cover the runs that were done.**")
    for section in sections(comparison):
        parts += [f"## {section.title}", _table(section)]
    said = findings(comparison)
    if said:
        parts += ["## Largest change beside other jobs", "\n".join(f"- {_text(line)}" for line in said)]
    parts.append(_text(legend(comparison)))
    found = remarks(comparison)
    if found:
        parts.append("\n".join(f"- {_text(line)}" for line in found))
    return "\n\n".join(parts) + "\n"


def _table(section: Section) -> str:
    heads = ["system", "condition", *(" ".join(part for part in column.heading if part) for column in section.columns)]
    lines = [heads, ["---", "---", *("---:" for _ in section.columns)]]
    for system, condition, values in section.rows:
        cells = [_cell(value, column) for value, column in zip(values, section.columns, strict=True)]
        lines.append([system, condition or "-", *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Cell, column: Column) -> str:
    if value is None:
        return "-"
    if not isinstance(value, dict):
        return column.write(value)
    estimate = column.write(value["ratio"] if "ratio" in value else value["mean"])
    if value.get("significant") is False:
        estimate += "~"
    if "ratio" not in value or value["low"] is None:
        return estimate
    return f"{estimate} ({column.write(value['low'])} to {column.write(value['high'])})"


def _text(words: str) -> str:
    """Words in which nothing is taken for markup."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in words)
