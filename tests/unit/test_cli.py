"""The command line: what it prints where, its exit codes, and that bad input ends in one line with nothing written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import blink.sim.run
from blink.cli import main
from blink.common.config import load_scenario, to_toml
from blink.common.results import RunResult
from blink.report import machine
from tests.runs import SCENARIO, made_up_run
from tests.shared import ROOT

TINY = str(ROOT / "scenarios" / "ci-tiny.toml")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A valid scenario in an otherwise empty working directory."""
    monkeypatch.chdir(tmp_path)
    path = Path("scenario.toml")
    path.write_text(to_toml(SCENARIO), encoding="utf-8")
    return path


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the simulator; returns what it was given."""
    given: dict[str, Any] = {}

    def simulate(scenario: Any, requests: Any, *, trace_path: Any, progress: Any, stop: Any) -> RunResult:
        given.update(scenario=scenario, requests=requests, trace_path=trace_path, progress=progress)
        if trace_path is not None:
            trace_path.write_text("trace", encoding="utf-8")
        for action in given.get("actions", ()):
            action()
        result = made_up_run()
        result.scenario = scenario.resolved()
        result.partial = stop()
        result.notes = list(given.get("notes", ()))
        return result

    monkeypatch.setattr(blink.sim.run, "simulate", simulate)
    return given


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a refusal; nothing else was printed and nothing was written into the working directory."""
    before = sorted(Path().rglob("*"))
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("blink: error: ")
    assert err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
    return err.removeprefix("blink: error: ").rstrip("\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND (see blink --help)"),
        (["fly"], "argument COMMAND: invalid choice: 'fly'"),
        (["run"], "SCENARIO is missing; allowed: a scenario file, or none with"),
        (["run", "x.toml", "--wings"], "unrecognized arguments: --wings"),
        (["run", "nowhere.toml"], "nowhere.toml: cannot be read: No such file or directory"),
        (["run", "."], ".: cannot be read: Is a directory"),
        (
            ["run", "scenario.toml", "--set", "limits.batch_max=0"],
            "--set: limits.batch_max = 0: must be a whole number",
        ),
        (["run", "scenario.toml", "--set", "limits"], "--set limits: must have the form table.key=value"),
        (["run", "scenario.toml", "--seed", "x"], '--seed: seed = "x": must be a whole number between 0 and'),
        (["run", "scenario.toml", "--limit", "5"], "--limit: scenario.toml has no trace: give --trace FILE as well"),
        (["run", "scenario.toml", "--trace", "gone.csv"], "gone.csv: no such file"),
        (
            ["run", "scenario.toml", "--trace", "gone.csv", "--rate-scale", "0"],
            "--rate-scale: workload.trace.rate_scale = 0: must be a number above 0",
        ),
        (["run", "scenario.toml", "--trace", "scenario.toml", "--dialect", "papyrus"], "dialect 'papyrus' is unknown"),
        (["run", "scenario.toml", "--trace", "gone.csv", "--out", "a/b"], "gone.csv: no such file"),
        (["run", "scenario.toml", "--out", "."], "--out .: is not empty; allowed: a new or an empty folder"),
        (["run", "scenario.toml", "--out", "scenario.toml"], "--out scenario.toml: cannot be written: "),
        (["run", "scenario.toml", "--set", "gpu.profile=abacus"], "abacus"),
        (["run", "scenario.toml", "--set", "gpu.profile=abacus", "--out", "a/b"], "abacus"),
        (["run", "scenario.toml", "--set", "links.background.wire=0.5"], "links.background.wire: no such hop"),
        (["check", "nowhere"], "nowhere: no such file"),
        (["check", "scenario.toml"], "scenario.toml: suffix is '.toml'; allowed: .ndjson, .parquet"),
        (["check", "."], ".: no trace in this folder"),
        (["plot", "nowhere"], "nowhere: no such folder"),
        (["plot", "."], "summary.json: no such file"),
        (["scenario", "show", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["profiles", "list", "spoon"], "spoon"),
        (["profiles", "show", "gpu", "abacus"], "abacus"),
    ],
)
def test_a_refusal_is_one_line(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in refused(capsys, *arguments)


def test_a_run_prints_its_table(file: Path, fake: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "scenario.toml"]) == 0
    out, err = capsys.readouterr()
    assert "made-up  llama-3-8b, seed 1" in out
    assert "P99.9" in out
    assert err == ""
    assert fake["trace_path"] is fake["progress"] is None
    assert len(fake["requests"]) == 200


def test_json_is_the_summary_and_nothing_else(
    file: Path, fake: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "scenario.toml", "--json", "--out", "run"]) == 0
    out, err = capsys.readouterr()
    assert out == Path("run/summary.json").read_text(encoding="utf-8")
    assert json.loads(out)["label"] == "made-up"
    assert err == ""


def test_options_override_the_scenario(file: Path, fake: dict[str, Any]) -> None:
    Path("t.csv").write_text("num_prefill_tokens,num_decode_tokens\n30,3\n40,4\n50,5\n", encoding="utf-8")
    overrides = ["--seed", "9", "--set", "limits.batch_max=64", "--set", "trace.format=ndjson"]
    trace = ["--trace", "t.csv", "--dialect", "vidur-lengths", "--limit", "2"]
    assert main(["run", "scenario.toml", *overrides, *trace, "--out", "run"]) == 0
    scenario = fake["scenario"]
    assert (scenario.seed, scenario.limits.batch_max) == (9, 64)
    assert fake["requests"].prompt_tokens.tolist() == [30, 40]
    assert fake["trace_path"] == Path("run/trace.ndjson")
    kept = load_scenario("run/scenario.toml")
    assert kept.workload.trace is not None
    assert Path(kept.workload.trace.file).resolve() == Path("t.csv").resolve()
    assert main(["run", "run/scenario.toml"]) == 0


def test_notes_of_the_trace_reach_the_reader(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,0\n2023-11-16 18:17:04,5,2\n"
    Path("t.csv").write_text(text, encoding="utf-8")
    assert main(["run", "scenario.toml", "--trace", "t.csv", "--json"]) == 0
    assert any("1 of 2 rows left out" in note for note in json.loads(capsys.readouterr().out)["blink"]["notes"])


def test_strict_refuses_what_was_not_measured(
    file: Path, fake: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fake["notes"] = ["t.csv: something else", "outside a profile's range: one", "outside a profile's range: two"]
    message = refused(capsys, "run", "scenario.toml", "--strict", "--out", "run")
    assert message == "--strict: outside a profile's range: one (and 1 more)"
    fake["notes"] = ["t.csv: something else"]
    assert main(["run", "scenario.toml", "--strict", "--out", "run"]) == 0


def test_strict_knows_the_simulators_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused(capsys, "run", TINY, "--strict", "--out", "run")
    assert message.startswith("--strict: outside a profile's range: h200: ")


def test_an_interrupted_run_keeps_what_it_has(
    file: Path, fake: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    fake["actions"] = [lambda: os.kill(os.getpid(), signal.SIGINT)]
    before = signal.getsignal(signal.SIGINT)
    assert main(["run", "scenario.toml", "--out", "run"]) == 130
    assert "Stopped before its end" in capsys.readouterr().out
    assert json.loads(Path("run/summary.json").read_text(encoding="utf-8"))["blink"]["partial"] is True
    assert Path("run/PARTIAL").exists()
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_does_not_ask(file: Path, fake: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    fake["actions"] = [lambda: os.kill(os.getpid(), signal.SIGINT)] * 2
    assert main(["run", "scenario.toml"]) == 130
    assert capsys.readouterr() == ("", "blink: stopped\n")


def test_a_fault_of_the_program_is_not_hidden(file: Path, fake: dict[str, Any]) -> None:
    def fault() -> None:
        raise RuntimeError("a bug")

    fake["actions"] = [fault]
    with pytest.raises(RuntimeError, match="a bug"):
        main(["run", "scenario.toml"])


def test_progress_is_for_terminals(
    file: Path, fake: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fake["actions"] = [lambda: fake["progress"](3, 10, 5_000_000_000)]
    assert main(["run", "scenario.toml", "--json"]) == 0
    json.loads(capsys.readouterr().out)
    fake["actions"] = []
    assert main(["run", "scenario.toml", "--no-progress"]) == 0
    assert fake["progress"] is None


def test_a_real_run_is_kept_checked_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        assert main(["run", TINY, "--out", name]) == 0
    names = sorted(path.name for path in Path("one").iterdir())
    assert names == ["requests.parquet", "scenario.toml", "summary.json", "trace.parquet"]
    assert all((Path("one") / name).read_bytes() == (Path("two") / name).read_bytes() for name in names)
    capsys.readouterr()
    assert main(["check", "one"]) == 0
    assert capsys.readouterr().out.startswith("conforms")
    assert main(["check", "one", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "conforms"
    pytest.importorskip("matplotlib")
    assert main(["plot", "one"]) == 0
    assert main(["plot", "one", "--out", "again.svg", "--json"]) == 0
    assert capsys.readouterr().out.endswith('{\n  "figure": "again.svg"\n}\n')
    assert Path("again.svg").read_bytes() == Path("one/plot.svg").read_bytes()
    assert b"<dc:date>" not in Path("again.svg").read_bytes()
    assert main(["plot", "one", "--out", "figure.png"]) == 0
    assert Path("figure.png").read_bytes().startswith(b"\x89PNG")
    capsys.readouterr()
    assert "suffix is '.pdf'; allowed: .svg, .png" in refused(capsys, "plot", "one", "--out", "figure.pdf")
    assert "cannot be written" in refused(capsys, "plot", "one", "--out", "gone/figure.svg")


def test_a_plot_without_matplotlib_says_what_to_install(
    file: Path, fake: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "scenario.toml", "--out", "run"])
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'blink-twin[plot]'" in refused(capsys, "plot", "run")


def test_a_broken_trace_is_told_by_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", TINY, "--set", "trace.format=ndjson", "--out", "run"]) == 0
    lines = Path("run/trace.ndjson").read_text(encoding="utf-8").splitlines(keepends=True)
    Path("cut.ndjson").write_text("".join(lines[:-1]), encoding="utf-8")
    assert main(["check", "cut.ndjson"]) == 3
    claim = next(index for index, line in enumerate(lines) if json.loads(line).get("event") == "claim")
    forged = lines[claim].replace('"prefill_processing"', '"decode_paused"')
    assert forged != lines[claim]
    Path("forged.ndjson").write_text("".join([*lines[:claim], forged, *lines[claim + 1 :]]), encoding="utf-8")
    capsys.readouterr()
    assert main(["check", "forged.ndjson"]) == 2
    assert capsys.readouterr().out.startswith("violates")


def test_scenarios_are_validated_one_by_one(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.toml").write_text(to_toml({**SCENARIO, "gpu": {"profile": "abacus"}}), encoding="utf-8")
    assert main(["scenario", "validate", "scenario.toml"]) == 0
    assert capsys.readouterr() == ("scenario.toml: valid\n", "")
    assert main(["scenario", "validate", "bad.toml", "scenario.toml", "gone.toml"]) == 2
    out, err = capsys.readouterr()
    assert out == "scenario.toml: valid\n"
    assert [line.split(": ")[:2] for line in err.splitlines()] == [["blink", "error"]] * 2
    assert main(["scenario", "validate", "bad.toml", "scenario.toml", "--json"]) == 2
    files = json.loads(capsys.readouterr().out)["files"]
    assert [found["valid"] for found in files] == [False, True]
    assert "abacus" in files[0]["error"]


def test_a_scenario_is_shown_with_its_defaults(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenario", "show", "scenario.toml", "--set", "limits.window=7"]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    assert shown["limits"]["window"] == 7
    assert main(["scenario", "show", "scenario.toml", "--set", "limits.window=7", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == shown


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenario", "schema"]) == 0
    assert "limits" in json.loads(capsys.readouterr().out)["properties"]


def test_profiles_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profiles", "list"]) == 0
    assert "h100-96gb" in capsys.readouterr().out
    assert main(["profiles", "list", "link", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["link"]
    assert main(["profiles", "show", "link", "separate-dpu"]) == 0
    assert "client-dpu.latency_ns" in capsys.readouterr().out
    assert main(["profiles", "show", "gpu", "h200", "--json"]) == 0
    constants = json.loads(capsys.readouterr().out)["constants"]
    assert all({"value", "unit", "kind", "source"} <= set(constant) for constant in constants.values())


def test_the_doctor_reports_what_it_finds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    findings = {found["name"]: found for found in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["numpy"]["found"] is True
    assert {"matplotlib", "c++", "nvcc", "gpu", "torch", "cuda", "rdma", "qemu"} <= set(findings)
    assert all(found["enables"] and found["install"] for found in findings.values())
    assert main(["doctor"]) == 0
    assert "yes numpy" in capsys.readouterr().out


def test_the_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(machine, "RDMA_DEVICES", Path("/nowhere"))
    monkeypatch.setattr(machine, "NEEDED_PACKAGES", ("numpy", "no_such_package"))
    assert main(["doctor"]) == 2
    out = capsys.readouterr().out
    for name in ("no_such_package", "c++", "nvcc", "gpu", "rdma", "qemu"):
        assert f"no  {name}" in out
    assert "install: pip install no_such_package" in out


def piped(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "blink.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        **options,
    )


def test_a_closed_pipe_is_no_error() -> None:
    process = piped("scenario", "schema")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait() in (0, 141)  # 0 if all was written before the pipe closed


def test_a_terminal_without_the_characters_gets_others() -> None:
    process = piped("run", TINY, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "????" in out


def test_the_help_needs_no_heavy_package() -> None:
    code = "import sys; from blink.cli import parser; parser(); print([m for m in sys.modules if m in HEAVY])"
    heavy = "('numpy', 'pydantic', 'rich', 'pyarrow', 'simpy', 'matplotlib')"
    done = subprocess.run(
        [sys.executable, "-c", code.replace("HEAVY", heavy)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
