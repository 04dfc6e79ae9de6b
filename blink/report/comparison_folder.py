"""The folder of a comparison: tables, figure, every point's values and summary, the scenario; PARTIAL if stopped."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blink.common.config import Scenario, relocated, to_toml
from blink.report.comparison_markdown import to_markdown
from blink.report.comparison_plot import plot_comparison
from blink.report.rundir import PARTIAL_NAME, PARTIAL_TEXT, RunDir, put, to_json

COMPARISON_NAME = "comparison.json"
POINTS_NAME = "points.csv"
SUMMARIES_NAME = "summaries.json"
TABLE_NAME = "table.md"
FIGURE_NAME = "figure.svg"
SCENARIO_NAME = "scenario.toml"

Row = Mapping[str, Any]


def write_comparison(
    folder: RunDir, comparison: dict[str, Any], scenario: Scenario, rows: Sequence[Row], summaries: Sequence[Row]
) -> None:
    """Keep a comparison: `rows` are the points' keys and figures for the CSV file, `summaries` their whole summaries.

    comparison.json comes last: where it stands, the rest is whole. The bytes depend on scenario and options alone.
    """
    path = folder.path
    if comparison["partial"]:
        _text(path / PARTIAL_NAME, PARTIAL_TEXT)
    _text(path / SCENARIO_NAME, to_toml(relocated(scenario.resolved(), path)))
    _text(path / POINTS_NAME, to_csv(rows))
    _text(path / SUMMARIES_NAME, to_json({"points": list(summaries)}))
    _text(path / TABLE_NAME, to_markdown(comparison))
    plot_comparison(comparison, path / FIGURE_NAME)
    _text(path / COMPARISON_NAME, to_json(comparison))


def to_csv(rows: Sequence[Row]) -> str:
    """One line a row under the names of the first; None is empty."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def _text(path: Path, text: str) -> None:
    put(path, lambda part: part.write_text(text, encoding="utf-8"))
