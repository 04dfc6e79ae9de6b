"""`blink chaos` as a user meets it: seeds, time, reports, exit codes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from blink.cli import main
from blink.commands import chaos
from blink.common.checker import check_trace
from blink.frontend.recovery import Recovery

FAILING_SEED = 11  # its plan has frontend crashes that meet slots in use


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = main(["chaos", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_range_of_seeds_says_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--seed", "1..4")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines[:4]] == [["seed", str(seed), "ok"] for seed in range(1, 5)]
    assert "What really happened:" in lines
    assert lines[-1].startswith("4 seeds on sim in ")
    assert lines[-1].endswith(", 0 failed")


def test_the_json_is_the_same_for_the_same_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    reports = []
    for _ in range(2):
        code, out, _ = run(capsys, "--seed", "2..3", "--json")
        assert code == 0
        report = json.loads(out)
        for seed in report["seeds"]:
            assert seed.pop("seconds") > 0
        reports.append(report)
    assert reports[0] == reports[1]
    assert [seed["seed"] for seed in reports[0]["seeds"]] == [2, 3]
    assert all(seed["complaints"] == [] and seed["plan"] for seed in reports[0]["seeds"])


def test_a_failure_prints_what_repeats_it_and_keeps_the_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Recovery.begin
    monkeypatch.setattr(
        Recovery, "begin", lambda self: begin(self)._replace(data=(self.epoch - 1).to_bytes(8, "little"))
    )
    code, out, _ = run(capsys, "--seed", str(FAILING_SEED), "--out", str(tmp_path / "kept"))
    assert code == 2
    assert f"seed {FAILING_SEED} " in out
    assert "FAILED" in out
    assert "frontend crash" in out
    assert "  wrong: " in out
    assert f"repeat with: blink chaos --backend sim --seed {FAILING_SEED}\n" in out
    traces = list((tmp_path / "kept").iterdir())
    assert traces
    assert any(check_trace(trace).code == 2 for trace in traces)


def test_one_seed_is_followed_by_the_next_until_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--seed", "4", "--minutes", "0.03", "--json")
    assert code == 0
    seeds = [seed["seed"] for seed in json.loads(out)["seeds"]]
    assert len(seeds) > 1
    assert seeds == list(range(4, 4 + len(seeds)))


def test_a_range_that_the_time_cuts_off_is_not_a_success(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--seed", "1..9999", "--minutes", "0.001")
    assert code == 3
    assert out.endswith("seeds 2..9999 were not run: the time was over\n")


def test_a_seed_that_hangs_is_ended(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a backend does: here it sleeps."""
    monkeypatch.setattr(chaos, "SEED_LIMIT_S", 1)
    monkeypatch.setattr(chaos, "_backend", lambda name: (10**8, lambda case, folder: time.sleep(60)))
    began = time.monotonic()
    code, out, _ = run(capsys, "--seed", "5")
    assert code == 2
    assert time.monotonic() - began < 10
    assert "wrong: hang: not over after 1 s" in out
    assert "repeat with: blink chaos --backend sim --seed 5" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "x"], "--seed: 'x' is not allowed; allowed: a number N, or a range A..B with A <= B"),
        (["--seed", "5..2"], "--seed: '5..2' is not allowed"),
        (["--seed", "1.."], "--seed: '1..' is not allowed"),
        (["--seed", "-1"], "--seed: '-1' is not allowed"),
        (["--minutes", "0"], "--minutes: '0' is not allowed; allowed: a number above 0"),
        (["--minutes", "nan"], "--minutes: 'nan' is not allowed"),
        (["--backend", "gpu"], "--backend"),
    ],
)
def test_bad_options_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("blink: error: ")
    assert err.count("\n") == 1
    assert said in err


def test_native_without_a_compiler_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, out, err = run(capsys, "--backend", "native")
    assert (code, out) == (2, "")
    assert "needs a C++17 compiler" in err
