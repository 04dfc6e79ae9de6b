"""`blink reproduce` from the command line: every fact is printed, the same bytes, bad input, a stopped run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import blink.commands.reproduce as command
from blink.cli import main
from blink.plan.reproduce.facts import load_facts

FILES = {"curves.svg", "sweep.svg", "facts.json", "points.csv", "points.json", "report.html", "report.md"}


def test_facts_that_need_no_run_are_printed_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--facts", "launch.*,ring.*,micro*", "--workers", "1"]) == 0
    printed = capsys.readouterr().out
    assert "launch.fire_and_forget_us" in printed
    assert "Calibrated facts within 10 %" in printed


def test_the_same_bytes_for_any_number_of_workers(tmp_path: Path) -> None:
    for workers in ("1", "2"):
        arguments = ["reproduce", "--quick", "--facts", "motivation.*", "--workers", workers]
        assert main([*arguments, "--out", str(tmp_path / workers)]) == 0
    ours, theirs = (sorted((tmp_path / workers).iterdir()) for workers in ("1", "2"))
    assert [path.name for path in ours] == [path.name for path in theirs]
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]


@pytest.mark.slow
def test_quick_prints_and_keeps_every_fact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--quick", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "not to be quoted" in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    kept = json.loads((tmp_path / "out" / "facts.json").read_text(encoding="utf-8"))
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    for fact in load_facts():
        assert fact.id in printed
        assert fact.id in page
        assert {row["quantity"] for row in kept["facts"] if row["id"] == fact.id} == {
            quantity.name for quantity in fact.quantities
        }
    assert "http" not in page.replace("http-equiv", "")
    assert kept["quick"]


def test_what_is_done_is_kept_and_marked_when_it_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped:
        """Ctrl-C before the first run."""

        def __enter__(self) -> Stopped:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def asked(self) -> bool:
            return True

    monkeypatch.setattr(command, "stop_on_interrupt", Stopped)
    arguments = ["reproduce", "--quick", "--facts", "motivation.*,launch.*", "--out", str(tmp_path / "out")]
    assert main(arguments) == 130
    assert "PARTIAL" in capsys.readouterr().out
    assert (tmp_path / "out" / "PARTIAL").is_file()
    kept = json.loads((tmp_path / "out" / "facts.json").read_text(encoding="utf-8"))
    assert kept["partial"]
    assert any(row["predicted"] for row in kept["facts"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--facts", "no.such"], "--facts no.such: matches no fact"),
        (["--seeds", "0"], "--seeds: '0' is not allowed; allowed: a whole number from 1 to 100"),
        (["--workers", "two"], "--workers: 'two' is not allowed"),
        (["--duration", "nan"], "--duration: 'nan' is not allowed; allowed: 1 to 3600 s"),
        (["--facts", "launch.*", "--splitwise", "absent.csv"], "absent.csv"),
        (["--facts", "launch.*", "--measured", "absent.toml"], "absent.toml"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    assert main(["reproduce", "--facts", "launch.*", "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
