"""Two runs on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from blink.report.comparison_sections import milliseconds, number, ratio
from blink.report.runs.measured import LATENCIES, STATISTICS
from blink.report.table import LATENCIES as WORDS

WIDTH_MAX = 100
SETTINGS_MAX = 12
LABELS = {
    "completed": "requests completed",
    "failed": "requests not completed",
    "duration": "duration, s",
    "total_input_tokens": "prompt tokens",
    "total_output_tokens": "output tokens",
    "request_rate": "offered requests/s",
    "request_throughput": "requests/s",
    "request_goodput": "goodput, requests/s",
    "output_throughput": "output tokens/s",
    "total_token_throughput": "tokens/s in all",
    "energy_mj_per_token": "mJ an output token",
    "cost_usd_per_million_tokens": "$ a million output tokens",
}
COUNTED = ("completed", "failed", "total_input_tokens", "total_output_tokens")
SHORT = {"mean": "mean", "median": "P50", "p90": "P90", "p99": "P99", "p999": "P99.9"}

Data = dict[str, Any]


def print_difference(found: Data, console: Console) -> None:
    """Print the tables, no wider than the console."""
    console.print(Padding(difference_table(found), (1, 0)), width=min(WIDTH_MAX, console.width))


def difference_table(found: Data) -> RenderableType:
    """Two runs as a rich renderable."""
    parts: list[RenderableType] = [_names(found)]
    if found["settings"] is not None:
        parts += [_rule("What differs in their scenarios"), _settings(found["settings"])]
    parts += [_rule("Load and throughput"), _figures(found, LABELS)]
    labels = {f"{stat}_{name}_ms": f"{_word(name)} {SHORT[stat]}, ms" for name in LATENCIES for stat in STATISTICS}
    parts += [_rule("Latency"), _figures(found, labels)]
    if found["distributions"]:
        parts += [_rule("How far the distributions are apart"), *(Text(line) for line in _distances(found))]
    if found["paired"]:
        parts += [_rule("Request by request"), *(Text(line) for line in _pairs(found["paired"]))]
    parts += [Text(f"Note: {side.upper()}: {note}", style="dim") for side in "ab" for note in found[side]["notes"]]
    return Group(*parts)


def _names(found: Data) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for side in "ab":
        table.add_row(Text(side.upper(), style="bold"), found[side]["name"], Text(found[side]["made_by"], style="dim"))
    return table


def _settings(rows: list[Data]) -> RenderableType:
    if not rows:
        return Text("Nothing.")
    table = Table.grid(padding=(0, 2))
    for row in rows[:SETTINGS_MAX]:
        table.add_row(row["option"], _value(row["a"]), Text("->", style="dim"), _value(row["b"]))
    if len(rows) > SETTINGS_MAX:
        table.add_row(Text(f"and {len(rows) - SETTINGS_MAX} more; --json has all", style="dim"))
    return table


def _value(value: Any) -> str:
    return "-" if value is None else str(value)


def _figures(found: Data, labels: dict[str, str]) -> RenderableType:
    table = Table.grid(padding=(0, 3))
    table.add_column(min_width=26)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", *(Text(heading, style="dim") for heading in ("A", "B", "B / A")))
    for name, label in labels.items():
        row = found["figures"].get(name)
        if row is None:
            continue
        write = milliseconds if name.endswith("_ms") else _count if name in COUNTED else number
        cells = ["-" if row[side] is None else write(row[side]) for side in "ab"]
        table.add_row(label, *cells, "-" if row["ratio"] is None else ratio(row["ratio"]))
    return table


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _distances(found: Data) -> list[str]:
    return [
        f"{_word(name)}: {one['distance']:.1%} at most, at {milliseconds(one['at_ms'])} ms: within it are "
        f"{one['a']:.1%} of A, {one['b']:.1%} of B"
        for name, one in found["distributions"].items()
    ]


def _pairs(paired: Data) -> list[str]:
    lines = [f"{paired['requests']:,} requests are the same on both sides."]
    for name in ("ttft", "e2el"):
        one = paired[name]
        low, middle, high = (f"{one[f'{label}_change_ms']:+,.3g}" for label in ("p1", "median", "p99"))
        lines.append(
            f"{_word(name)}: B is sooner for {one['sooner']:.1%}, equal for {one['same']:.1%}; the change is "
            f"{middle} ms in the median, {low} to {high} ms for 98 % of them"
        )
    return lines


def _word(name: str) -> str:
    return next(label for key, label, _ in WORDS if key == name)


def _rule(words: str) -> RenderableType:
    return Padding(Rule(Text(words, style="bold"), align="left", style="dim"), (1, 0, 0, 0))
