"""`blink compare`: what it prints and keeps, that bytes depend on scenario and options alone, and what it refuses."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import blink.plan.point
from blink.cli import main
from blink.common.config import load_scenario
from blink.plan.variant import SYSTEM_KINDS
from tests.shared import ROOT, shared_path

TINY = str(ROOT / "scenarios" / "ci-tiny.toml")
SCENARIO = str(ROOT / "scenarios" / "llama3-8b-h100.toml")
MEASURED = str(ROOT / "scenarios" / "vllm-rtx4090-measured.toml")
SMALL = (TINY, "--limit", "12", "--workers", "1", "--seeds", "2")
KEPT = ["comparison.json", "figure.svg", "points.csv", "scenario.toml", "summaries.json", "table.md"]


def compare(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `blink compare` prints; it must succeed."""
    assert main(["compare", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def compared(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(compare(capsys, *arguments, "--json"))
    return found


def test_all_systems_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    out = compare(capsys, *SMALL, "--systems", ",".join(SYSTEM_KINDS))
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    rows = [line.split() for line in out.splitlines()]
    for kind in SYSTEM_KINDS:
        assert sum(1 for row in rows if row[:2] == [kind, "isolated"]) >= 2
    assert "Ratio over blink under the same condition" in out
    assert "Ratio over the same system without other jobs" in out
    assert "Largest change beside other jobs" in out


def test_a_wide_terminal_shows_the_intervals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "±" not in compare(capsys, *SMALL)
    monkeypatch.setenv("COLUMNS", "120")
    out = compare(capsys, *SMALL)
    assert "±" in out
    assert "…" not in out
    assert all(len(line) <= 120 for line in out.splitlines())


def test_the_same_scenario_and_options_keep_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the number of workers, and whichever folder it is called from."""
    compare(capsys, *SMALL, "--systems", "blink,vllm", "--out", str(tmp_path / "one"))
    monkeypatch.chdir(tmp_path)
    again = [TINY, "--limit", "12", "--workers", "2", "--seeds", "2", "--systems", "blink,vllm", "--out", "again"]
    assert compare(capsys, *again).endswith("Kept in again\n")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == KEPT
    for name in KEPT:
        one, other = ((tmp_path / folder / name).read_bytes() for folder in ("one", "again"))
        assert one == other, name


def test_what_is_kept_holds_every_points_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "kept"
    compare(capsys, *SMALL, "--systems", "vllm,blink", "--out", str(out))
    with (out / "points.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["system"], row["interference"], row["seed"]) for row in rows][:3] == [
        ("vllm", "none", "1"),
        ("vllm", "none", "2"),
        ("vllm", "colocated", "1"),
    ]
    found = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    summaries = json.loads((out / "summaries.json").read_text(encoding="utf-8"))["points"]
    assert len(rows) == len(summaries) == 8
    cell = found["cells"][1]
    assert cell["key"] == {"system": "vllm", "interference": "colocated"}
    values = cell["figures"]["p99_ttft_ms"]["values"]
    assert values == [float(row["p99_ttft_ms"]) for row in rows[2:4]]
    assert values == [point["summary"]["p99_ttft_ms"] for point in summaries[2:4]]
    assert cell["figures"]["p99_ttft_ms"]["mean"] == pytest.approx(sum(values) / 2, rel=1e-5)
    assert cell["over_first"] is None
    assert cell["over_isolated"]["p99_ttft_ms"]["ratio"] > 0
    assert load_scenario(out / "scenario.toml").workload.requests == 12
    assert "(" in (out / "table.md").read_text(encoding="utf-8")


def test_one_run_can_be_repeated_from_what_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The Blink points are those that `blink run` makes of the kept scenario."""
    out = tmp_path / "kept"
    compare(capsys, *SMALL, "--systems", "blink", "--interference", "none", "--out", str(out))
    point = json.loads((out / "summaries.json").read_text(encoding="utf-8"))["points"][0]
    assert main(["run", str(out / "scenario.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == point["summary"]


def test_markdown_gives_ratios_with_their_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    out = compare(capsys, *SMALL, "--systems", "blink,vllm", "--format", "markdown")
    assert out.startswith("# ci-tiny: comparison of systems\n")
    assert "| vllm | isolated |" in out
    assert " to " in out


def test_one_seed_claims_no_significance(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (TINY, "--limit", "12", "--workers", "1", "--seeds", "1", "--systems", "blink,vllm")
    found = compared(capsys, *arguments)
    assert {ratio["significant"] for cell in found["cells"][2:] for ratio in cell["over_first"].values() if ratio} == {
        None
    }
    out = compare(capsys, *arguments)
    assert "One seed: there are no confidence intervals" in out
    assert "~" not in out


def test_rates_threads_and_mitigations_are_axes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    axes = ("--rate", "20,40,80", "--threads", "0,90", "--mitigations", "none,cat=4+pinning")
    figure = tmp_path / "lines.png"
    found = compared(capsys, *SMALL, "--systems", "vllm", *axes, "--figure", str(figure))
    assert len(found["cells"]) == 12
    assert found["cells"][-1]["key"] == {
        "system": "vllm",
        "rate": 80.0,
        "threads": 90,
        "mitigations": "cat=4+pinning",
    }
    assert found["cells"][-1]["over_unmitigated"]["p99_ttft_ms"] is not None
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert "vllm, 80 req/s, 90 threads" in compare(capsys, *SMALL, "--systems", "vllm", *axes)


def test_a_host_driven_scenario_and_a_recorded_trace(capsys: pytest.CaptureFixture[str]) -> None:
    shared_path("traces/measured/RTX4090_Llama-3.1-8B.requests.jsonl")
    isolated = ("--interference", "none", "--limit", "20", "--seeds", "1", "--workers", "1")
    found = compared(
        capsys, MEASURED, "--systems", "vllm,blink,trtllm", *isolated, "--set", "limits.context_tokens=8192"
    )
    assert [cell["figures"]["completed"]["mean"] for cell in found["cells"]] == [20.0, 20.0, 20.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--systems", "blink,tgi"), "system 'tgi' is not known; allowed: blink, cpu-resident, trtllm, vllm, sglang"),
        (("--systems", "blink,vllm,blink"), "--systems: blink is given twice"),
        (("--systems", ""), "--systems: '' is not allowed"),
        (("--interference", "none,some"), "interference 'some' is not known; allowed: none, colocated"),
        (("--threads", "0,91"), "91 interferer threads are not allowed; allowed: 0 to 90"),
        (("--threads", "many"), "--threads: 'many' is not allowed; allowed: whole numbers"),
        (("--threads", "0", "--interference", "none"), "--threads: gives the levels of interference itself"),
        (("--mitigations", "prayer"), "mitigation 'prayer' is not known"),
        (("--mitigations", "cat=13"), "cat_ways = 13: must be between 1 and 12"),
        (("--rate", "0"), "workload.arrivals.rate = 0"),
        (("--seeds", "0"), "--seeds: '0' is not allowed; allowed: a whole number from 1 to 100"),
        (("--limit", "-3"), "--limit: '-3' is not allowed"),
        (("--workers", "no"), "--workers: 'no' is not allowed"),
        (("--figure", "figure.pdf"), "--figure figure.pdf: suffix is '.pdf'; allowed: .svg, .png"),
        (("--set", "limits.batch_max=0"), "limits.batch_max = 0"),
        (("--set", "gpu.profile=abacus", "--workers", "1"), "system blink, interference none, seed 1: profile: gpu"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["compare", TINY, "--limit", "5", *arguments, "--out", "kept"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("blink: error: ")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_files_is_refused_before_any_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_text("keep", encoding="utf-8")
    monkeypatch.setattr(blink.plan.point, "run_points", None)
    assert main(["compare", TINY, "--out", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_stop_keeps_what_was_done_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = blink.plan.point.run_points
    monkeypatch.setattr(blink.plan.point, "run_points", lambda points, **options: whole(points[:3], **options))
    out = tmp_path / "kept"
    assert main(["compare", *SMALL, "--systems", "blink,vllm", "--out", str(out)]) == 130
    assert "Stopped before its end" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == sorted([*KEPT, "PARTIAL"])
    found = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    assert found["partial"] is True
    assert found["cells"][2]["figures"]["p99_ttft_ms"] is None
    assert len((out / "points.csv").read_text(encoding="utf-8").splitlines()) == 4


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_interrupt_ends_in_order(tmp_path: Path, workers: str) -> None:
    """Runs of a day each: Ctrl-C comes while the first is under way, so nothing is done and nothing is kept."""
    out = tmp_path / "kept"
    command = [sys.executable, "-m", "blink.cli", "compare", SCENARIO, "--set", "workload.duration_s=86400"]
    process = subprocess.Popen(
        [*command, "--workers", workers, "--out", str(out)],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not out.is_dir() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(3.0)
        os.killpg(process.pid, signal.SIGINT)
        printed, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, printed, errors) == (130, "", "blink: stopped\n")
    assert not out.exists()


def test_help_names_every_system_and_gives_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    out = capsys.readouterr().out
    assert all(kind in out for kind in SYSTEM_KINDS)
    assert "examples:" in out
