"""The native backend serves scenarios: everything ends, every token is right, the trace conforms, nothing hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from blink.cli import main
from blink.common.checker import check_trace
from blink.common.errors import InputError
from blink.common.metrics import assert_ttft_parts
from blink.common.ranges import RANGE_NOTE
from blink.common.results import Outcome, RunResult
from blink.common.states import SlotStatus
from blink.common.summary import summarize
from blink.common.trace import read_trace
from blink.hw.native import run as run_module
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.process import SchedulerProcess, Stop
from blink.sim.run import simulate
from blink.workload.build import build_load
from tests.hw.native_help import needs_compiler, outcomes, scenario_of, serve_scenario, small_settings
from tests.shared import ROOT, shared_path

pytestmark = needs_compiler


def assert_sound(result: RunResult, trace: Path) -> None:
    """Right tokens, a trace that passes, times that add up."""
    assert result.counters["wrong_tokens"] == 0
    verdict = check_trace(trace)
    assert verdict.code == 0, verdict
    assert_ttft_parts(result)


def test_smoke(tmp_path: Path) -> None:
    result = serve_scenario(scenario_of(), tmp_path / "trace.ndjson")
    assert outcomes(result) == {"completed": 40}
    assert_sound(result, tmp_path / "trace.ndjson")
    assert result.scheduler.prefill_launches > 0
    shares = summarize(result)["blink"]["time_share"]  # the scheduler was there before the first request
    assert sum(shares.values()) == pytest.approx(1, abs=0.02)
    assert (result.requests["ttft_ns"] > 0).all()
    assert (result.requests["output_tokens"] <= result.requests["output_tokens_max"]).all()


def test_a_run_says_where_it_stretched_the_profile_as_a_simulated_run_does(tmp_path: Path) -> None:
    """Which constants were stretched is the same; how far depends on when requests met."""
    few = scenario_of(workload={"requests": 6, "lengths": {"kind": "fixed", "prompt_tokens": 33, "output_tokens": 4}})

    def stretched(result: RunResult) -> list[str]:
        notes = [note for note in result.notes if note.startswith(RANGE_NOTE)]
        return [note.split(" in the run, ")[1] for note in notes]

    scenario, requests = build_load(few)
    expected = stretched(simulate(scenario, requests))
    assert expected
    assert stretched(serve_scenario(few, tmp_path / "trace.ndjson", time_scale=0.01)) == expected
    assert stretched(serve_scenario(few, tmp_path / "trace.ndjson")) == [], "without durations nothing is stretched"


@pytest.mark.parametrize("token_reads", ["each", "ranges"])
def test_a_trace_has_evidence_of_wrong_tokens(token_reads: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.ndjson"
    scenario = scenario_of(trace={"token_reads": token_reads})
    serve_scenario(scenario, path)
    verdict = check_trace(path)
    assert verdict.code == 0
    assert len(verdict.unjudged) == 2
    flags = ("-O0", "-DBLINK_MUTANT_COUNT_BEFORE_TOKEN")
    runs = (serve_scenario(scenario, path, flags=flags).counters["wrong_tokens"] for _ in range(20))
    wrong = next(filter(None, runs), 0)  # on a busy machine the race may show in a later run only
    trace = read_trace(path)
    counted = trace.columns["wrong_count"]
    assert int(counted[counted > 0].sum()) == wrong > 0
    verdict = check_trace(path)
    assert (verdict.code, verdict.violations[0].invariant) == (2, "I7")


def test_a_window_of_three_relaunches_all_the_time(tmp_path: Path) -> None:
    result = serve_scenario(scenario_of(limits={"window": 3}), tmp_path / "trace.ndjson")
    assert outcomes(result) == {"completed": 40}
    assert_sound(result, tmp_path / "trace.ndjson")
    launches = result.scheduler.prefill_launches + result.scheduler.decode_launches
    assert result.scheduler.relaunches >= launches // 3 - 1


def test_a_burst_of_more_requests_than_slots(tmp_path: Path) -> None:
    scenario = scenario_of(
        workload={"requests": 5000, "lengths": {"kind": "fixed", "prompt_tokens": 8, "output_tokens": 3}},
        limits={"batch_max": 64, "prefill_batch_max": 16},
        trace={"format": "parquet", "token_reads": "ranges"},
    )
    result = serve_scenario(scenario, tmp_path / "trace.parquet")
    assert outcomes(result) == {"completed": 5000}
    assert_sound(result, tmp_path / "trace.parquet")


def test_an_engine_on_a_thread_of_its_own_and_four_scan_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings_of = run_module.settings_of
    monkeypatch.setattr(run_module, "settings_of", lambda *args: replace(settings_of(*args), engine_thread=True))
    result = serve_scenario(scenario_of(), tmp_path / "trace.ndjson", threads=4)
    assert outcomes(result) == {"completed": 40}
    assert_sound(result, tmp_path / "trace.ndjson")


def test_cancels_meet_requests_wherever_they_are(tmp_path: Path) -> None:
    scenario = scenario_of(
        workload={
            "requests": 120,
            "arrivals": {"kind": "poisson", "rate": 2000},
            "cancel": {"fraction": 0.6, "after_s": 0.005},
            "lengths": {"kind": "fixed", "prompt_tokens": 10, "output_tokens": 14},
        },
        limits={"window": 4},
    )
    result = serve_scenario(scenario, tmp_path / "trace.ndjson", time_scale=1.0)
    found = outcomes(result)
    assert found["cancelled"] >= 10 and sum(found.values()) == 120
    assert_sound(result, tmp_path / "trace.ndjson")


def test_a_closed_loop_in_real_time(tmp_path: Path) -> None:
    scenario = scenario_of(workload={"arrivals": {"kind": "closed-loop", "concurrency": 5}})
    result = serve_scenario(scenario, tmp_path / "trace.ndjson", time_scale=0.5)
    assert outcomes(result) == {"completed": 40}
    assert_sound(result, tmp_path / "trace.ndjson")
    assert result.scheduler.batch_max <= 5
    assert result.scheduler.decode_ns > 100_000 * result.scheduler.decode_launches  # graphs took their time


def test_a_time_limit_aborts(tmp_path: Path) -> None:
    scenario = scenario_of(
        workload={"requests": 3, "lengths": {"kind": "fixed", "prompt_tokens": 8, "output_tokens": 16}},
        limits={"time_limit_s": 0.004},
    )
    result = serve_scenario(scenario, tmp_path / "trace.ndjson", time_scale=1.0)
    assert outcomes(result) == {"failed": 3}
    assert (result.requests["status"] == SlotStatus.TIME_LIMIT).all()
    assert_sound(result, tmp_path / "trace.ndjson")


def test_requests_wait_for_kv_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of = run_module.settings_of
    monkeypatch.setattr(run_module, "settings_of", lambda *args: replace(settings_of(*args), kv_block_count=5))
    result = serve_scenario(scenario_of(), tmp_path / "trace.ndjson")
    assert outcomes(result) == {"completed": 40}
    assert_sound(result, tmp_path / "trace.ndjson")
    assert result.scheduler.kv_blocks_max <= 5
    assert result.scheduler.wait_kv_ns > 0


def test_a_graph_that_hangs_ends_what_ran_and_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_of = run_module.settings_of
    monkeypatch.setattr(
        run_module,
        "settings_of",
        lambda *args: replace(settings_of(*args), hang_at=7, graph_timeout_ns=50_000_000),
    )
    result = serve_scenario(scenario_of(), tmp_path / "trace.ndjson")
    assert outcomes(result)["failed"] > 0 and outcomes(result).get("unfinished", 0) == 0
    assert SlotStatus.ENGINE in result.requests["status"]
    assert any("overdue" in note for note in result.notes)
    assert check_trace(tmp_path / "trace.ndjson").code == 0


def test_stopping_early_leaves_a_partial_result_and_no_process(tmp_path: Path) -> None:
    scenario = scenario_of(workload={"arrivals": {"kind": "poisson", "rate": 1}})
    result = serve_scenario(scenario, tmp_path / "trace.ndjson", time_scale=1.0, stop=lambda: True)
    assert result.partial
    assert check_trace(tmp_path / "trace.ndjson").code in (0, 3)


def test_a_scheduler_that_is_killed_ends_the_run_without_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until_up = SchedulerProcess.wait_until_up

    def and_kill(process: SchedulerProcess) -> None:
        wait_until_up(process)
        os.kill(process.pid, signal.SIGKILL)

    monkeypatch.setattr(SchedulerProcess, "wait_until_up", and_kill)
    result = serve_scenario(scenario_of(), tmp_path / "trace.ndjson")
    assert result.partial
    assert any("signal 9" in note for note in result.notes)
    assert set(result.requests["outcome"].tolist()) == {Outcome.UNFINISHED}
    assert check_trace(tmp_path / "trace.ndjson").code == 3  # its last events may be missing


_PARENT = """
import sys, time
sys.path.insert(0, sys.argv[1])
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.process import SchedulerProcess
from tests.hw.native_help import small_settings
process = SchedulerProcess(Instance(load_library(), small_settings()), 2)
process.wait_until_up()
print(process.pid, flush=True)
time.sleep(60)
"""


def test_a_scheduler_whose_parent_is_killed_ends_itself() -> None:
    parent = subprocess.Popen([sys.executable, "-c", _PARENT, str(ROOT)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    scheduler = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    due = time.monotonic() + 10
    while _runs(scheduler) and time.monotonic() < due:
        time.sleep(0.01)
    assert not _runs(scheduler)


def _runs(pid: int) -> bool:
    """Whether a process exists and is more than an entry that nobody has collected."""
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc").is_dir():
        pytest.skip("no /proc: cannot tell whether a process of somebody else has ended")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_drain_and_abort_end_an_idle_scheduler() -> None:
    for how in (Stop.DRAIN, Stop.ABORT):
        instance = Instance(load_library(), small_settings())
        process = SchedulerProcess(instance, 3)
        process.wait_until_up()
        assert process.fault() is None
        assert process.stop(how)
        instance.close()


def test_a_host_driven_system_is_refused(tmp_path: Path) -> None:
    scenario = scenario_of()
    other = scenario.model_copy(update={"system": scenario.system.model_copy(update={"kind": "vllm"})})
    with pytest.raises(InputError, match=r"backend native: system\.kind"):
        serve_scenario(other, tmp_path / "trace.ndjson")


def test_the_azure_trace_as_fast_as_it_goes(tmp_path: Path) -> None:
    azure = shared_path("traces/AzureLLMInferenceTrace_conv.csv")
    out = tmp_path / "run"
    command = ["run", str(ROOT / "scenarios" / "llama3-8b-h100.toml"), "--backend", "native", "--time-scale", "0"]
    assert main([*command, "--trace", str(azure), "--limit", "2000", "--out", str(out), "--no-progress"]) == 0
    assert main(["check", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["completed"] == summary["num_prompts"] == 2000


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf"])
def test_a_time_scale_that_is_no_number_from_zero_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = str(ROOT / "scenarios" / "ci-tiny.toml")
    assert main(["run", scenario, "--backend", "native", f"--time-scale={text}"]) == 2
    assert "--time-scale" in capsys.readouterr().err
