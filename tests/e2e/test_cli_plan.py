"""`blink plan`: what it prints and keeps, and its exit codes: answered, cannot be done, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blink.cli import main
from tests.shared import ROOT

SMALL = {"traffic": "rate = 30\nwindow_s = 10", "slo": "p99_ttft_ms = 400\np99_tpot_ms = 25", "search": "seeds = 2"}


def ask(folder: Path, *more: str, **tables: str) -> tuple[str, ...]:
    """The command for a question with these tables; `more` are its options."""
    head = f'name = "small"\nscenario = "{ROOT / "scenarios" / "llama3-8b-h100.toml"}"\n'
    text = "".join(f"[{name}]\n{table}\n" for name, table in {**SMALL, **tables}.items())
    (folder / "ask.toml").write_text(head + text, encoding="utf-8")
    return ("plan", str(folder / "ask.toml"), "--workers", "1", "--no-progress", *more)


def said(text: str) -> str:
    """What was printed, on one line."""
    return " ".join(text.split())


def test_an_answer_is_printed_kept_and_made_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curve = "curve = [[6, 10], [12, 30]]\ngrowth_per_month = 0.2\nmonths = 1\nwindow_s = 10"
    asked = ask(tmp_path, "--out", str(tmp_path / "out"), traffic=curve, autoscale="lag_s = 10")
    assert main(list(asked)) == 0
    printed = said(capsys.readouterr().out)
    data = json.loads((tmp_path / "out" / "plan.json").read_text(encoding="utf-8"))
    best = data["best"]
    assert f"{best['replicas']} replicas of blink, llama-3-8b on h100-96gb" in printed
    assert f"with one replica less {data['binds']['runs_met']} of 2, with one more 2 of 2" in printed
    assert data["binds"]["runs_met"] < 2
    for part in (
        "Run once at each hour",
        "Autoscaling at",
        "While the traffic grows",
        "What binds",
        "The price of isolation",
    ):
        assert part in printed
    assert said(data["day"]["sentence"]) in printed and said(data["months"]["sentence"]) in printed
    assert all(moment["meets"] for moment in data["day"]["moments"])
    assert main(["report", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Over the day" in page and "Wall power of the fleet, kW" in page and "While the traffic grows" in page


@pytest.mark.parametrize("width", [80, 120])
def test_no_figure_is_cut_off_on_a_terminal_of_usual_width(
    width: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    from blink.plan.capacity.question import load_question
    from blink.plan.capacity.run import plan
    from blink.report.plan_table import print_plan

    ask(tmp_path)
    data = _ANSWERS.setdefault("small", plan(load_question(tmp_path / "ask.toml"), workers=1))
    print_plan(data, Console(width=width, highlight=False, force_terminal=False))
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= width
    margins = [f"({one['margin']:+.0%})" for one in data["best"]["objectives"]]
    assert all(margin in printed for margin in margins)


_ANSWERS: dict[str, dict[str, object]] = {}


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"traffic": "rate = 4000\nwindow_s = 10", "limits": "gpus_max = 16"}, "and limits.gpus_max leaves 16"),
        ({"slo": "p99_ttft_ms = 5"}, "is below the physical floor of "),
        ({"slo": "p99_tpot_ms = 2"}, "is below the physical floor of 6.9 ms"),
        ({"candidates": 'models = ["llama-3-70b"]'}, "the largest part is weights"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_1(
    tables: dict[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(ask(tmp_path, "--json", **tables))) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["best"] is None
    assert data["answer"].startswith("small cannot be done: ") and says in data["answer"]
    assert "bound" in data["answer"] or "largest part" in data["answer"], "what binds is named"


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"traffic": "rat = 3"}, "ask.toml: traffic.rat: unknown key; did you mean rate?"),
        ({"autoscale": "lag_s = 3"}, "autoscale: is given without traffic.curve"),
        ({"limits": "gpus_max = 0"}, "limits.gpus_max = 0: must be a whole number between 1"),
    ],
)
def test_a_question_that_cannot_be_asked_is_a_line_and_exit_code_2(
    tables: dict[str, str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(list(ask(tmp_path, **tables)))
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2
    printed = capsys.readouterr().err
    assert says in printed and printed.count("\n") == 1
