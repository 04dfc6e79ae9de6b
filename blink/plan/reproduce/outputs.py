"""Prints a reproduction, and keeps it: report.html, report.md, the figures, every run's figures, facts.json."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blink.plan.reproduce import words
from blink.plan.reproduce.carry_out import Reproduction
from blink.plan.reproduce.figures import draw_curves, draw_sweep
from blink.plan.reproduce.markdown import to_markdown
from blink.plan.reproduce.other_runs import NOT_COMPARED
from blink.plan.reproduce.page import to_html
from blink.plan.reproduce.terminal import print_reproduction
from blink.plan.reproduce.verdict import Tally, Verdict, totals
from blink.report.comparison_folder import to_csv
from blink.report.rundir import PARTIAL_NAME, PARTIAL_TEXT, RunDir, put, to_json

CURVES = ("curves.svg", "Latency and throughput over load")
SWEEP = ("sweep.svg", "Other jobs on the host, from none to every thread")


def show(found: Reproduction, sections: Mapping[str, str], *, as_json: bool) -> None:
    """To standard output: tables, or facts.json."""
    from rich.console import Console

    if as_json:
        sys.stdout.write(to_json(to_data(found)))
        return
    console = Console(file=sys.stdout, soft_wrap=False, highlight=False)
    print_reproduction(found, console)
    for title, text in sections.items():
        if text in NOT_COMPARED.values():
            continue
        console.print(f"\n[bold]{title}[/bold]")
        print(text)  # a table of its own width


def write(found: Reproduction, folder: RunDir, sections: Mapping[str, str]) -> None:
    """Every file beside its place and renamed, facts.json last: where it stands, the rest is whole."""
    if found.partial:
        _text(folder.path / PARTIAL_NAME, PARTIAL_TEXT)
    points = list(_points(found))
    _text(folder.path / "points.csv", to_csv(points))
    _text(folder.path / "points.json", to_json({"points": points}))
    _text(folder.path / "report.md", to_markdown(found))
    figures = {caption: path.read_text(encoding="utf-8") for caption, path in _draw(found, folder.path)}
    _text(folder.path / "report.html", to_html(found, figures, sections))
    _text(folder.path / "facts.json", to_json(to_data(found)))


def to_data(found: Reproduction) -> dict[str, Any]:
    """The facts as plain data."""
    sums = totals(found.verdicts)
    return {
        "partial": found.partial,
        "quick": found.bed.quick,
        "runs": found.run_count,
        "seeds": found.bed.seeds,
        "duration_s": found.bed.duration_s,
        "calibrated_facts": _tally(sums.calibrated_facts),
        "predicted_facts": _tally(sums.predicted_facts),
        "calibrated_quantities": _tally(sums.calibrated_quantities),
        "predicted_quantities": _tally(sums.predicted_quantities),
        "facts": [_fact(verdict) for verdict in found.verdicts],
    }


def _fact(verdict: Verdict) -> dict[str, Any]:
    quantity = verdict.quantity
    return {
        "id": verdict.fact.id,
        "quantity": quantity.name,
        "unit": quantity.unit,
        "published": [None if quantity.is_bound else quantity.low, quantity.high],
        "predicted": dict(verdict.prediction.values),
        "error": verdict.error,
        "use": verdict.use,
        "verdict": words.mark(verdict),
        "note": verdict.prediction.note or verdict.prediction.absent,
        "reason": verdict.reason,
    }


def _tally(tally: Tally) -> dict[str, int]:
    return {"met": tally.met, "of": tally.count}


def _points(found: Reproduction) -> Iterator[dict[str, Any]]:
    for at, seeds in found.evidence.runs.items():
        for figures in seeds:
            yield {"run": " ".join(at), **figures}


def _draw(found: Reproduction, folder: Path) -> Iterator[tuple[str, Path]]:
    kinds = {at[0] for at in found.evidence.runs}
    if found.partial:
        return
    for kind, draw, (name, caption) in (("load", draw_curves, CURVES), ("sweep", draw_sweep, SWEEP)):
        if kind in kinds:
            draw(found.evidence, folder / name)
            yield caption, folder / name


def _text(path: Path, text: str) -> None:
    put(path, lambda part: part.write_text(text, encoding="utf-8"))
