"""`blink conform` from the command line: what it prints, its exit codes, one-line refusals, an interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from blink.cli import main
from blink.conform.mutants import MUTANTS
from tests.conformance.bodies import SCENARIO, needs_compiler

FEW = ("--scripts", "5")


@needs_compiler
def test_the_small_scenario_conforms_at_every_level(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "--backends", "sim,native", str(SCENARIO), *FEW]) == 0
    table = capsys.readouterr().out
    rows = [line.split()[:1] + line.split()[-1:] for line in table.splitlines() if "conforms" in line]
    assert rows == [[level, "conforms"] for level in ("legal", "legal", "equivalent", "lockstep", "replay")]
    assert "6 scripts" in table
    assert "First difference" not in table


@needs_compiler
def test_a_mutant_ends_with_2_and_the_first_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", "--backends", "sim,native", str(SCENARIO), *FEW, "--mutant", "claim-without-cas"]) == 2
    assert "First difference, legal: I4: native: in " in capsys.readouterr().out


@needs_compiler
def test_lock_step_shows_the_steps_before_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--level", "lockstep", "--mutant", "NEVER_RESUME", *FEW)
    assert main(["conform", str(SCENARIO), *options]) == 2
    lines = capsys.readouterr().out.splitlines()
    context = lines[lines.index("  script:") :]
    assert any(line.startswith("    step 0: submit r") for line in context)
    assert any(line.startswith("  > ") and "resume" in line for line in context)
    steps = [line for line in context if line[4:].startswith("step ") and "|" in line]
    assert len(steps) == 4, "three before the difference, and the one with it"


@needs_compiler
def test_json_is_all_that_standard_output_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", str(SCENARIO), *FEW, "--json", "--time-scale", "0", "--seed", "3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["level"] for row in found["levels"]] == ["legal", "legal", "equivalent", "lockstep", "replay"]
    assert {row["verdict"] for row in found["levels"]} == {"conforms"}


def test_the_simulator_alone_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", str(SCENARIO), "--backends", "sim", "--level", "legal"]) == 0
    assert "conforms" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--backends", "sim,cuda9"), "--backends: 'cuda9' does not exist; allowed: sim, native, cuda, native-rdma"),
        (
            ("--backends", "sim,sim"),
            "--backends: 'sim,sim' is not allowed; allowed: different names, such as sim,native",
        ),
        (("--backends", "sim"), "--backends: 'sim' alone can be compared with nothing; allowed: two, or --level legal"),
        (("--scripts", "-1"), "--scripts: '-1' is not allowed; allowed: a whole number from 0"),
        (("--time-scale", "x"), "--time-scale: 'x' is not allowed; allowed: a number from 0 (as fast as it goes)"),
        (("--mutant", "no"), f"--mutant: 'no' does not exist; allowed: {', '.join(MUTANTS)}"),
        (
            ("--mutant", "never-resume", "--backends", "sim", "--level", "legal"),
            "--mutant: is compiled into the backends native and cuda; allowed: with one of them among --backends",
        ),
    ],
)
def test_bad_input_is_one_line(options: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conform", str(SCENARIO), *options]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"blink: error: {line}\n"
    assert captured.out == ""


def test_a_backend_that_cannot_run_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["conform", str(SCENARIO)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("blink: error: backend native: needs a C++17 compiler")
    assert "apt install g++" in captured.err
    assert captured.err.count("\n") == 1


@needs_compiler
def test_ctrl_c_ends_it_without_a_traceback_and_leaves_nothing(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "blink.cli", "conform", str(SCENARIO), "--scripts", "1000000"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(6.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, "", "blink: stopped\n")
    assert list(tmp_path.iterdir()) == []
