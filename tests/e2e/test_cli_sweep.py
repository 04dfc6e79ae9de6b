"""`blink sweep`: the same bytes however it was made, killed and resumed; what it prints, keeps and refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet  # noqa: F401  # now and not while a sweep runs that is to be caught in the middle
import pytest

import blink.plan.point
import blink.plan.sweep.run
from blink.cli import main
from blink.common.errors import InputError
from blink.plan.sweep.cluster import cluster_executor
from blink.plan.sweep.store import RESULTS_NAME, read_results
from tests.shared import ROOT

TINY = str(ROOT / "scenarios" / "ci-tiny.toml")
SMALL = (TINY, "--rate", "50:400:3", "--systems", "blink,vllm", "--seeds", "2")
KEPT = ["results.parquet", "scenario.toml", "sweep.json"]


def sweep(*arguments: str) -> int:
    return main(["sweep", *arguments])


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep made in one process from beginning to end."""
    folder = tmp_path_factory.mktemp("whole") / "s"
    assert sweep(*SMALL, "--workers", "1", "--out", str(folder)) == 0
    return folder


def test_two_workers_give_the_same_bytes_from_any_folder(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sweep(*SMALL, "--workers", "2", "--out", "s") == 0
    assert capsys.readouterr().out.endswith("Kept in s\n")
    assert sorted(kept(whole)) == KEPT
    assert kept(tmp_path / "s") == kept(whole)


def test_a_killed_sweep_goes_on_and_gives_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "s"
    halted = (
        "import sys, time, blink.plan.point as point, blink.cli\n"
        "run, ran = point.run_point, []\n"
        "def stuck(*given):\n"
        "    ran.append(given)\n"
        "    return time.sleep(600) if len(ran) > 5 else run(*given)\n"
        "point.run_point = stuck\n"
        "sys.exit(blink.cli.main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", halted, "sweep", *SMALL, "--workers", "1", "--out", str(out)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        done = _rows_after(out / RESULTS_NAME, 3)
    finally:
        child.kill()
        child.wait()
    assert 3 <= len(done) <= 5
    before = read_results(out / RESULTS_NAME)[1]  # whole, whenever it was killed
    ran: list[Any] = []
    run_point = blink.plan.point.run_point
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blink.plan.point, "run_point", lambda *given: ran.append(given) or run_point(*given))
        assert sweep(*SMALL, "--workers", "1", "--out", str(out)) == 0
    assert len(ran) == 12 - len(before)
    assert kept(out) == kept(whole)


@pytest.mark.parametrize("where", [("--workers", "2"), ("--cluster", "local:2")])
def test_a_killed_sweep_leaves_no_worker_and_no_complaint_behind(where: tuple[str, str], tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil", reason="comes with the extra cluster")
    out = tmp_path / "s"
    grid = (str(ROOT / "scenarios" / "llama3-8b-h100.toml"), "--rate", "4,6", "--seeds", "9")
    command = [sys.executable, "-m", "blink.cli", "sweep", *grid, *where, "--out", str(out)]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _rows_after(out / RESULTS_NAME, 1)
        workers = psutil.Process(child.pid).children(recursive=True)
        assert len(workers) >= 2
    finally:
        child.kill()
        # Until all who write there have ended: the last is Python's tracker of semaphores, which tidies up.
        _, complaints = child.communicate(timeout=60)
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert (alive, complaints) == ([], "")


def _rows_after(path: Path, count: int) -> list[Any]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        rows = read_results(path)[1] if path.is_file() else []
        if len(rows) >= count:
            return rows
        time.sleep(0.02)
    raise AssertionError("no results appeared")


def test_a_cluster_gives_the_same_bytes(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs the extra cluster")
    assert sweep(*SMALL, "--cluster", "local:2", "--out", str(tmp_path / "s")) == 0
    assert kept(tmp_path / "s") == kept(whole)


def test_a_run_that_ends_its_workers_is_one_line() -> None:
    pytest.importorskip("distributed", reason="needs the extra cluster")
    says = r"^--cluster local:1: one worker after the other ended"
    with pytest.raises(InputError, match=says), cluster_executor("local:1") as executor:
        executor.submit(os._exit, 1).result(timeout=120)


def test_what_a_lost_cluster_has_done_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_points = blink.plan.sweep.run.run_points
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blink.plan.sweep.run, "run_points", lambda points, **more: run_points(points[:3], **more))
        assert sweep(*SMALL, "--workers", "1", "--out", str(tmp_path / "s")) == 2
    assert "9 of 12 runs were lost" in capsys.readouterr().err
    assert len(read_results(tmp_path / "s" / RESULTS_NAME)[1]) == 3


@pytest.mark.parametrize("where", [("--workers", "2"), ("--cluster", "local:2")])
def test_ctrl_c_ends_workers_at_once_and_keeps_what_is_done(where: tuple[str, str], tmp_path: Path) -> None:
    """As in a terminal, where Ctrl-C reaches every process."""
    if where[0] == "--cluster":
        pytest.importorskip("distributed", reason="needs the extra cluster")
    out = tmp_path / "s"
    grid = (str(ROOT / "scenarios" / "llama3-8b-h100.toml"), "--rate", "4,6", "--seeds", "9")
    command = [sys.executable, "-m", "blink.cli", "sweep", *grid, *where, "--out", str(out)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **pipes)
    try:
        _rows_after(out / RESULTS_NAME, 1)
        os.killpg(child.pid, signal.SIGINT)
        printed, complaints = child.communicate(timeout=60)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    assert (child.returncode, complaints) == (130, "")
    assert "of 18 runs are done." in printed
    assert (out / "PARTIAL").is_file()


def test_ctrl_c_keeps_what_is_done_and_marks_it(whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s"
    points: list[Any] = []
    run_point = blink.plan.point.run_point

    def interrupted(*given: Any) -> Any:
        points.append(given)
        if len(points) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return run_point(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blink.plan.point, "run_point", interrupted)
        assert sweep(*SMALL, "--workers", "1", "--out", str(out)) == 130
    printed = capfd.readouterr().out
    assert "Stopped: 4 of 12 runs are done." in printed
    assert (out / "PARTIAL").is_file()
    assert json.loads((out / "sweep.json").read_text())["partial"] is True
    assert sweep(*SMALL, "--workers", "1", "--out", str(out)) == 0
    assert "4 of 12 runs from before" in capfd.readouterr().out
    assert kept(out) == kept(whole)


def test_more_rates_run_only_what_is_new(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s"
    assert sweep(TINY, "--rate", "50,141", "--systems", "blink,vllm", "--seeds", "2", "--out", str(out)) == 0
    capsys.readouterr()
    assert sweep(*SMALL, "--out", str(out), "--workers", "1") == 0
    assert "8 of 12 runs from before" in capsys.readouterr().out
    assert kept(out) == kept(whole)


def test_results_of_another_sweep_are_not_lost(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "s"
    out.mkdir()
    (out / RESULTS_NAME).write_bytes((whole / RESULTS_NAME).read_bytes())
    assert sweep(TINY, "--rate", "50", "--seeds", "1", "--out", str(out)) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"blink: error: --out {out}: holds points of another sweep")
    assert line.count("\n") == 1
    assert (out / RESULTS_NAME).read_bytes() == (whole / RESULTS_NAME).read_bytes()
    assert sweep(TINY, "--rate", "50", "--seeds", "1", "--out", str(out), "--restart", "--workers", "1") == 0
    assert len(read_results(out / RESULTS_NAME)[1]) == 1


def test_what_is_printed_fits_a_terminal_and_says_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(*SMALL, "--workers", "1", "--slo", "chat:ttft_ms=2,tpot_ms=1") == 0
    out = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    assert "requests/s" in out
    assert "chat: TTFT 2, TPOT 1 ms" in out


def test_without_rates_conditions_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(TINY, "--over", "system=blink,vllm,limits.batch_max=4,16", "--seeds", "1", "--workers", "1") == 0
    out = capsys.readouterr().out
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines())
    rows = [line for line in out.splitlines() if line.startswith("vLLM, batch_max 16")]
    assert len(rows) == 2  # its figures, and its goodput


def test_json_is_sweep_json(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(*SMALL, "--workers", "1", "--json") == 0
    assert capsys.readouterr().out.encode() == (whole / "sweep.json").read_bytes()


def test_a_combination_that_cannot_run_is_told_and_the_rest_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    over = ("--over", "model=smollm2-135m,bloom-176b", "--seeds", "1", "--workers", "1")
    assert sweep(TINY, "--rate", "50", *over, "--json") == 0
    small, large = json.loads(capsys.readouterr().out)["curves"]
    assert small["points"]
    assert not small["failed"]
    assert large["failed"]
    assert large["verdict"]["sentence"].startswith("It cannot run: ")


def test_a_sweep_of_which_nothing_can_run_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert sweep(TINY, "--over", "model=bloom-176b", "--seeds", "1", "--workers", "1") == 2
    assert capsys.readouterr().err.startswith("blink: error: model bloom-176b, seed 1: ")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--rate", "8:1:3"), "--rate: 8:1:3 is not allowed"),
        (("--over", "gpu=abacus"), "abacus"),
        (("--over", "limits.batch_max=0"), "batch_max"),
        (("--over", "limits.batch_maximum=4"), "batch_maximum"),
        (("--systems", "blink,llamacpp"), "system 'llamacpp' is not known"),
        (("--seeds", "0"), "--seeds: '0' is not allowed"),
        (("--workers", "0"), "--workers: '0' is not allowed"),
        (("--workers", "2", "--cluster", "local:2"), "--workers: a cluster has its own"),
        (("--cluster", "local:0"), "--cluster: 'local:0' is not allowed"),
        (("--cluster", "somewhere"), "--cluster: 'somewhere' is not allowed"),
        (("--slo", "chat"), "--slo: 'chat' is not allowed"),
        (("--attainment", "2"), "--attainment: '2' is not allowed"),
        (("--duration", "-1"), "--duration: '-1' is not allowed"),
        (("--restart",), "--restart: says what becomes"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(TINY, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.startswith("blink: error: ")
    assert err.count("\n") == 1
