"""Whole runs through the command line: traces of every dialect, repeatability, bursts, refusals, interruption."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from blink.cli import main
from blink.common.checker import check_trace
from blink.common.events import Event
from blink.common.trace import read_trace
from blink.report.rundir import REQUESTS_NAME, SUMMARY_NAME, read_run
from tests.shared import ROOT, SHARED, shared_path

SCENARIO = str(ROOT / "scenarios" / "llama3-8b-h100.toml")
BURST = str(ROOT / "scenarios" / "burst-5000.toml")
AZURE = "traces/AzureLLMInferenceTrace_conv.csv"
MOONCAKE = "traces/mooncake_conversation_trace.jsonl"
DIALECTS = SHARED / "traces" / "dialects"
TRACE_NAME = "trace.parquet"
KEPT = (SUMMARY_NAME, REQUESTS_NAME, TRACE_NAME)


def run(*arguments: str, out: Path) -> dict[str, Any]:
    """`blink run` that must succeed and `blink check` that must find nothing; the summary."""
    assert main(["run", *arguments, "--out", str(out)]) == 0
    assert main(["check", str(out)]) == 0
    return read_run(out).summary


def digests(out: Path) -> dict[str, str]:
    """The hash of each file of a run."""
    return {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in KEPT}


def outcomes(summary: dict[str, Any]) -> int:
    """Requests over all outcomes."""
    return sum(summary["blink"]["outcomes"].values())


@pytest.fixture
def azure(tmp_path: Path) -> Path:
    """Forty requests in the columns of the Azure 2023 trace: CRLF, seven digits, equal timestamps."""
    rng = np.random.default_rng(7)
    ticks = np.sort(rng.integers(0, 8 * 10**7, 40))
    ticks[20] = ticks[21]
    rows = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for tick, prompt, output in zip(ticks, rng.integers(1, 3000, 40), rng.integers(1, 200, 40), strict=True):
        rows.append(f"2023-11-16 18:15:{tick // 10**7:02d}.{tick % 10**7:07d},{prompt},{output}")
    path = tmp_path / "azure.csv"
    path.write_bytes("\r\n".join(rows).encode())
    return path


def test_a_trace_runs_conforms_and_names_its_rows(azure: Path, tmp_path: Path) -> None:
    summary = run(SCENARIO, "--trace", str(azure), out=tmp_path / "run")
    assert (summary["num_prompts"], summary["completed"], summary["failed"]) == (40, 40, 0)
    requests = read_run(tmp_path / "run").requests
    given = [line.split(",") for line in azure.read_text(encoding="utf-8").splitlines()[1:]]
    assert requests["source_row"].tolist() == list(range(2, 42))
    assert requests["prompt_tokens"].tolist() == [int(row[1]) for row in given]
    assert requests["output_tokens"].tolist() == [int(row[2]) for row in given]
    trace = read_trace(tmp_path / "run")
    for event in (Event.SUBMIT, Event.CLAIM, Event.RECYCLE):
        assert np.count_nonzero(trace.columns["event"] == event) == 40


def test_the_seed_alone_decides_the_bytes(tmp_path: Path) -> None:
    drawn = (SCENARIO, "--set", "workload.duration_s=8")
    for name, seed in (("one", "1"), ("again", "1"), ("other", "2")):
        run(*drawn, "--seed", seed, out=tmp_path / name)
    one, again, other = (digests(tmp_path / name) for name in ("one", "again", "other"))
    assert one == again
    assert all(one[name] != other[name] for name in KEPT)


def test_another_process_makes_the_same_bytes(azure: Path, tmp_path: Path) -> None:
    """Neither the hash seed of strings, nor the time of day, nor the working directory reaches a file."""
    for name, hash_seed in (("one", "0"), ("two", "4711")):
        folder = tmp_path / f"from-{name}"
        folder.mkdir()
        command = [sys.executable, "-m", "blink.cli", "run", SCENARIO, "--trace", str(azure), "--out", f"../{name}"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT), "TZ": f"UTC+{hash_seed[0]}"}
        subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")


def test_the_azure_trace(tmp_path: Path) -> None:
    trace = ("--trace", str(shared_path(AZURE)), "--limit", "300")
    for name, seed in (("one", "1"), ("again", "1"), ("other", "2")):
        summary = run(SCENARIO, *trace, "--seed", seed, out=tmp_path / name)
        assert (summary["num_prompts"], summary["completed"]) == (300, 300)
    one, again, other = (digests(tmp_path / name) for name in ("one", "again", "other"))
    assert one == again
    assert all(one[name] != other[name] for name in KEPT)


@pytest.mark.parametrize("name", sorted(path.name for path in DIALECTS.glob("*")) or ["absent"])
def test_every_dialect_runs(name: str, tmp_path: Path) -> None:
    arguments = [SCENARIO, "--trace", str(shared_path(f"traces/dialects/{name}"))]
    summary = run(*arguments, out=tmp_path / "run")
    assert summary["num_prompts"] >= 1
    assert outcomes(summary) == summary["num_prompts"]
    assert all(summary["blink"]["refusals"].values())
    assert summary["completed"] + sum(summary["blink"]["refusals"].values()) == summary["num_prompts"]


def test_prompts_that_do_not_fit_are_refused_one_by_one(tmp_path: Path) -> None:
    """Mooncake's prompts reach six digits: each runs, or is refused with a reason, and no other suffers for it."""
    summary = run(SCENARIO, "--trace", str(shared_path(MOONCAKE)), "--limit", "200", out=tmp_path / "run")
    requests = pq.read_table(tmp_path / "run" / REQUESTS_NAME).to_pydict()
    assert len(requests["outcome"]) == 200
    refused = [index for index, outcome in enumerate(requests["outcome"]) if outcome == "refused"]
    served = [index for index, outcome in enumerate(requests["outcome"]) if outcome == "completed"]
    assert len(refused) + len(served) == 200
    assert refused
    assert served
    assert all(requests["refusal"][index] for index in refused)
    assert not any(requests["refusal"][index] for index in served)
    assert sum(summary["blink"]["refusals"].values()) == len(refused)
    assert max(requests["prompt_tokens"][i] for i in served) < min(requests["prompt_tokens"][i] for i in refused)


def test_five_thousand_at_once_are_all_served_once(tmp_path: Path) -> None:
    summary = run(BURST, out=tmp_path / "run")
    assert (summary["num_prompts"], summary["completed"]) == (5000, 5000)
    assert summary["blink"]["slots_in_use_max"] == 4096
    requests = read_run(tmp_path / "run").requests
    assert requests["request_id"].tolist() == list(range(5000))
    assert np.unique(np.stack((requests["slot"], requests["generation"])), axis=1).shape[1] == 5000
    trace = read_trace(tmp_path / "run").columns
    for event in (Event.SUBMIT, Event.CLAIM, Event.RECYCLE):
        ids = trace["request_id"][trace["event"] == event]
        assert np.array_equal(np.sort(ids), np.arange(5000)), event
    reads = trace["event"] == Event.TOKENS_READ
    read_count = np.zeros(5000, np.int64)
    np.add.at(read_count, trace["request_id"][reads], (trace["token_count"] - trace["token_from"])[reads])
    assert np.array_equal(read_count, requests["output_tokens"])
    assert summary["total_output_tokens"] == int(read_count.sum())


def test_a_folder_with_files_is_refused_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "mine.txt").write_text("keep", encoding="utf-8")
    start = time.monotonic()
    # A day of traffic: had it begun to simulate, this would take minutes.
    assert main(["run", SCENARIO, "--set", "workload.duration_s=86400", "--out", str(out)]) == 2
    assert time.monotonic() - start < 20
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"blink: error: --out {out}: is not empty; allowed: a new or an empty folder\n"
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_an_interrupt_keeps_what_there_is(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a day of traffic: partial results, marked as such, a trace that is not called whole."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "blink.cli", "run", SCENARIO, "--set", "workload.duration_s=86400"]
    process = subprocess.Popen(
        [*command, "--out", str(out)], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        _wait_for_rows(out, process)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, errors) == (130, "")
    assert "Stopped before its end" in printed
    assert sorted(path.name for path in out.iterdir()) == sorted(["PARTIAL", "scenario.toml", *KEPT])
    summary = read_run(out).summary
    assert summary["blink"]["partial"] is True
    assert 0 < summary["completed"] < 8 * 86400
    assert outcomes(summary) == summary["num_prompts"]
    assert summary["blink"]["outcomes"]["unfinished"] > 0
    verdict = check_trace(out)
    assert verdict.code in (0, 3), verdict.report()
    assert "ended before" in verdict.reason, verdict.reason
    assert not verdict.violations
    assert main(["check", str(out)]) == verdict.code
    trace = read_trace(out)
    assert trace.footer is not None
    assert not trace.footer.complete


def _wait_for_rows(out: Path, process: subprocess.Popen[str]) -> None:
    """Until the run has written some of its trace, which it does under another name."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        if out.is_dir() and sum(path.stat().st_size for path in out.iterdir()) > 100_000:
            return
        time.sleep(0.05)
    pytest.fail(f"no row of the trace after two minutes; {json.dumps([path.name for path in out.glob('*')])}")
