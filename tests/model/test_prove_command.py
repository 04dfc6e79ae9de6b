"""`blink prove` on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from blink.cli import main
from blink.prove import explorer
from blink.prove.configurations import CONFIGURATION_BY_NAME
from blink.prove.mutants import MUTANT_BY_LABEL


def test_a_configuration_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--config", "one-slot", "--config", "one-request"]) == 0
    out, err = capsys.readouterr()
    assert "2 of 2 configurations hold: 2,081 states, 5,399 transitions" in out
    assert "all 12 hold" in out and "mutant" not in out
    assert "at most 33 events of progress drain the ring (L2)" in out
    assert err == ""


def test_a_mutant_by_name_tells_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--mutant", "no-epoch-fence"]) == 0
    out = capsys.readouterr().out
    assert "  1  frontend  submits request 0 in slot 0" in out
    assert "I10: a graph is launched for slot 0, whose fence was visible before" in out
    assert "1 of 1 mutants are killed" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--config", "two-requests", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["configurations"]
    assert (found["states"], found["holds"], found["broken"], found["drift"]) == (119, True, None, None)
    assert main(["prove", "--mutant", "never-resume", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["mutants"]
    assert (found["killed_by"], found["story_length"], found["as_expected"]) == ("L1", 12, True)
    assert len(found["story"]) == 14


def test_a_survivor_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--config", "one-request", "--mutant", "never-resume"]) == 2
    assert "never-resume: survives where it was tried" in capsys.readouterr().out


def test_an_equivalent_mutant_exits_0_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--config", "one-slot", "--mutant", "claim-without-cas"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "0 of 1 mutants are killed" in out
    assert "claim-without-cas is equivalent: between the look and the store" in out


def test_drift_exits_2(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # A model that grows by one fault is another model: the counts no longer fit.
    row = CONFIGURATION_BY_NAME["one-request"]
    grown = replace(row, crashes=1)
    monkeypatch.setitem(CONFIGURATION_BY_NAME, row.name, grown)
    assert main(["prove", "--config", "one-request"]) == 2
    assert "the model has drifted" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--config", "huge"], ["--config", "'huge'", *CONFIGURATION_BY_NAME]),
        (["--mutant", "huge"], ["--mutant", "'huge'", *MUTANT_BY_LABEL]),
        (["--save", "x.ndjson"], ["--save x.ndjson", "with one --mutant"]),
        (["--save", "x.txt", "--mutant", "never-resume"], ["'.txt'", ".ndjson, .parquet"]),
        (["--save", "no/x.ndjson", "--mutant", "never-resume"], ["no is no folder"]),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["prove", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.startswith("blink: error: ")
    assert all(word in err for word in words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mutant", "suffix", "code", "invariant"),
    [
        ("old-connection-left-alive", ".ndjson", 2, "I9"),
        ("no-generation-check", ".parquet", 2, "I7"),
        ("relaxed-write-order", ".ndjson", 2, "I2"),
        ("count-published-before-token", ".parquet", 2, "I2"),
        ("never-resume", ".ndjson", 4, "L1"),
    ],
)
def test_a_saved_counterexample_is_rejected_by_check(
    mutant: str, suffix: str, code: int, invariant: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / f"trace{suffix}"
    assert main(["prove", "--mutant", mutant, "--save", str(path)]) == 0
    assert f"wrote {path}: {invariant} after" in capsys.readouterr().err
    assert main(["check", str(path)]) == code
    assert f": {invariant}: " in capsys.readouterr().out.splitlines()[0]


def test_nothing_is_saved_where_nothing_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["prove", "--config", "one-request", "--save", str(tmp_path / "trace.ndjson")]) == 0
    assert "there is no counterexample" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_ends_in_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(explorer, "moves", interrupted)
    assert main(["prove"]) == 130
    out, err = capsys.readouterr()
    assert (out, err) == ("", "blink: stopped\n")


def test_the_list_searches_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prove", "--list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in (*CONFIGURATION_BY_NAME, *MUTANT_BY_LABEL))
