"""blink.run, blink.sweep and blink.plan: the page of the docs cell by cell; the same as the commands; cheap import."""

from __future__ import annotations

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import blink
from blink.cli import main
from blink.common.config import load_scenario
from tests.shared import ROOT

TINY = str(ROOT / "scenarios" / "ci-tiny.toml")
PAGE = ROOT / "docs" / "python.md"


def test_every_cell_of_the_page_gives_what_stands_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("pandas", "polars"):
        pytest.importorskip(package, reason="needs the extra frames")
    monkeypatch.chdir(ROOT)
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    cells = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert len(cells) >= 6
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner()
    for cell in cells:
        line = text[: cell.start(1)].count("\n")
        test = parser.get_doctest(cell[1], names, "docs/python.md", str(PAGE), line)
        assert test.examples
        runner.run(test, clear_globs=False)
        names.update(test.globs)
    assert runner.summarize(verbose=False).failed == 0


def test_a_run_is_that_of_the_command(tmp_path: Path) -> None:
    run = blink.run(TINY, trace=tmp_path / "trace.parquet")
    assert main(["run", TINY, "--out", str(tmp_path / "r")]) == 0
    assert json.loads((tmp_path / "r" / "summary.json").read_text()) == run.summary
    assert (tmp_path / "trace.parquet").read_bytes() == (tmp_path / "r" / "trace.parquet").read_bytes()


def test_a_sweep_is_that_of_the_command(tmp_path: Path) -> None:
    found = blink.sweep(TINY, rates=[50, 200], systems=["blink", "vllm"], seeds=2, workers=1, out=tmp_path / "a")
    options = ("--rate", "50,200", "--systems", "blink,vllm", "--seeds", "2", "--workers", "1")
    assert main(["sweep", TINY, *options, "--out", str(tmp_path / "b")]) == 0
    for name in ("results.parquet", "scenario.toml", "sweep.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert [curve.sentence for curve in found.curves] == [
        curve["verdict"]["sentence"] for curve in json.loads((tmp_path / "b" / "sweep.json").read_text())["curves"]
    ]


def test_a_plan_is_that_of_the_command(tmp_path: Path) -> None:
    question = f"""
name = "one"
scenario = "{ROOT / "scenarios" / "llama3-8b-h100.toml"}"
traffic = {{ rate = 4, window_s = 10 }}
slo = {{ p99_ttft_ms = 500 }}
search = {{ seeds = 2 }}
"""
    (tmp_path / "ask.toml").write_text(question, encoding="utf-8")
    found = blink.plan(tmp_path / "ask.toml", workers=1, out=tmp_path / "a")
    assert main(["plan", str(tmp_path / "ask.toml"), "--workers", "1", "--out", str(tmp_path / "b")]) == 0
    for name in ("plan.json", "question.toml"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert json.loads((tmp_path / "b" / "plan.json").read_text()) == json.loads(json.dumps(found.data))
    assert isinstance(found.best, blink.Fleet)
    assert found.best.gpus == 1


def test_a_scenario_comes_as_path_data_or_object() -> None:
    scenario = load_scenario(TINY, ["seed=7"])
    assert blink.load(scenario) == blink.load(scenario.resolved()) == blink.load(TINY, ["seed=7"])
    with pytest.raises(blink.InputError, match="seed"):
        blink.load(scenario, ["seed=x"])


def test_importing_the_package_brings_in_no_simulator() -> None:
    code = "import sys, blink; print([name for name in sys.modules if name.startswith(('blink.', 'simpy', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "[]\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = blink.walk
