"""The table at the end of a run: what it says, and that it fits."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from blink.common.results import RunResult
from blink.common.summary import summarize
from blink.report.table import print_table
from tests.runs import made_up_run


def printed(run: RunResult, width: int = 80, terminal: bool = False) -> str:
    stream = io.StringIO()
    print_table(summarize(run), Console(file=stream, width=width, force_terminal=terminal))
    return stream.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_it_fits_the_terminal_and_80_columns(width: int) -> None:
    assert max(cell_len(line) for line in printed(made_up_run(), width).splitlines()) <= min(width, 80)


def test_no_figure_is_cut_short_in_80_columns() -> None:
    assert "…" not in printed(made_up_run())


def test_there_is_colour_on_a_terminal_only() -> None:
    assert "\x1b[" not in printed(made_up_run())
    assert "\x1b[" in printed(made_up_run(), terminal=True)


def test_it_answers_what_a_planner_asks() -> None:
    run = made_up_run()
    summary, text = summarize(run), printed(run)
    for words in (
        "made-up  llama-3-8b, seed 1",
        "200 requests in",
        "offered at 8 requests/s",
        f"{summary['completed']} completed",
        f"{len(run.refusals)}: prompt longer than the prompt area",
        f"{summary['request_throughput']:.2f} requests/s",
        "within the SLO",
        "mean      P50      P90     P99  P99.9",
        f"Where the first token's {summary['mean_ttft_ms']:.1f} ms go, on average",
        "16 sequences on average (12.5%), 29 at most, limit 128",
        "900 blocks on average (4.5%), 2,100 at most, limit 20,000",
        "4,180: 4,000 decode, 180 prefill; 35 relaunches",
        "7.7% of decode rows, 13.0% of prefill tokens",
        "Requests waited for KV blocks during 20% of the run.",
        "- step times at batch 16 are outside the range of the profile (1 to 8)",
    ):
        assert words in text, words
    for name, value in summary["blink"]["ttft_parts_mean_ms"].items():
        assert any(line.startswith(name) and f"{value:.2f}" in line for line in text.splitlines()), name


def test_a_stopped_run_says_so_first() -> None:
    run = made_up_run()
    assert "Stopped before its end" not in printed(run)
    run.partial = True
    assert printed(run).splitlines()[2].startswith("Stopped before its end")


def test_a_run_of_nothing_has_a_table() -> None:
    text = printed(made_up_run(0))
    assert "nan" not in text
    assert "None" not in text
    assert "Where the first token" not in text


def test_markup_in_names_is_printed_as_it_is() -> None:
    run = made_up_run()
    run.scenario["name"] = "[bold]x[/bold]"
    run.notes = ["[red]note"]
    assert "[bold]x[/bold]" in printed(run)
    assert "[red]note" in printed(run)
