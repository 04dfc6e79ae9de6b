"""From the recorded programme of an H200 to its profiles, and what a fit recovers from steps that are made up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blink import cli
from blink.common.config import load_scenario
from blink.common.errors import InputError
from blink.common.events import GraphKind
from blink.common.steps import StepTable
from blink.perf.calibration.cold_steps import fit_cold_steps
from blink.perf.calibration.host import host_share
from blink.perf.calibration.loop import frontend_costs, loop_costs
from blink.perf.calibration.measurements import Measurements
from blink.perf.calibration.profiles import Calibration, calibrate, files, overrides
from blink.perf.corrections import StepCorrections
from blink.perf.gpu import GpuProfile
from blink.perf.host.profile import HostProfile
from blink.perf.host_engine import HostEngineProfile
from blink.perf.link import LinkProfile
from blink.perf.plant import Plant
from blink.perf.shape import ModelShape
from tests.shared import ROOT

PROFILE = ROOT / "tests" / "data" / "h200-twin" / "profile"
SCENARIO = ROOT / "scenarios" / "twin-h200.toml"


@pytest.fixture(scope="module")
def measured() -> Measurements:
    return Measurements.load(PROFILE / "measurements.npz")


@pytest.fixture(scope="module")
def fitted(measured: Measurements) -> Calibration:
    return calibrate(measured, "h200", "torch-paged", ModelShape.load("llama-3-8b"))


def test_the_programme_took_under_five_minutes(measured: Measurements) -> None:
    assert 0 < measured.about["seconds"] < 300
    assert measured.about["machine"]["gpu"] == "NVIDIA H200"
    assert {"gpu", "host", "host-busy"} == set(measured.steps)


def test_shapes_held_out_are_predicted(fitted: Calibration) -> None:
    """Some shapes were measured and not fitted, of both kinds; the profile says by how much the model misses them."""
    for steps in (fitted.steps, fitted.steps_host):
        held = [step for step in steps.steps if step.use == "holdout"]
        assert {step.kind for step in held} == {"prefill", "decode"}
        assert 5 <= len(held) < len(steps.steps) / 2
        assert steps.rms_holdout < 0.04
        assert steps.worst_holdout < 0.08
        assert all(abs(step.ratio - 1) < 0.02 for step in held if step.kind == "decode")
    assert fitted.steps.rms_alone < 0.05
    assert f"{fitted.steps.rms_holdout:.2%} rms" in files(fitted)["steps.toml"]


def test_the_clock_falls_under_load_and_comes_back(fitted: Calibration) -> None:
    assert 0.01 < fitted.cold.compute * 0.25**fitted.cold.exponent < 0.1
    assert 1 <= fitted.cold.exponent <= 3
    assert 0.01 < fitted.cold.memory < fitted.cold.compute
    assert 20e6 < fitted.cold.time_ns < 200e6


def test_a_scheduler_on_a_shared_core_takes_turns_of_four_milliseconds(fitted: Calibration) -> None:
    assert fitted.share.slice_ns == pytest.approx(4e6, rel=0.01)
    assert 1.0 < fitted.share.competitors < 2.5


def test_the_files_are_profiles_that_load_and_state_what_they_are(fitted: Calibration, tmp_path: Path) -> None:
    for name, text in files(fitted).items():
        (tmp_path / name).write_text(text)
    gpu = GpuProfile.load(tmp_path / "gpu.toml")
    assert gpu.throttle_compute == pytest.approx(fitted.cold.compute, rel=1e-4)
    assert "2026" in gpu.constants["gemm_ramp_ns"].source
    assert gpu.constants["launch_ns"].kind == "fitted"
    StepCorrections.load(tmp_path / "steps-host.toml")
    HostProfile.load(tmp_path / "host.toml")
    HostEngineProfile.load(tmp_path / "host-engine.toml")
    assert LinkProfile.load(tmp_path / "link.toml").nodes == ("client", "dpu", "gpu")
    for system in ("blink", "cpu-resident"):
        more = [f'system.kind="{system}"'] if system != "blink" else []
        plant = Plant.of(load_scenario(SCENARIO, [*more, *overrides(tmp_path, system)]))
        assert plant.step.decode_ns(64, 20_000) > plant.step.decode_ns(1, 200)


def test_the_profile_beside_the_recorded_run_is_the_fit_of_its_measurements(fitted: Calibration) -> None:
    """To within what another machine's arithmetic may change."""
    stored = GpuProfile.load(PROFILE / "gpu.toml")
    for name, value in fitted.constants.items():
        assert getattr(stored, name) == pytest.approx(value, rel=0.02), name


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"calibration\.toml: cannot be read"):
        overrides(tmp_path, "blink")
    with pytest.raises(InputError, match="system 'vllm' was not calibrated; allowed: blink, cpu-resident"):
        overrides(PROFILE, "vllm")


def test_measurements_of_another_form_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "measurements.npz"
    with pytest.raises(InputError, match="cannot be read"):
        Measurements.load(path)
    path.write_text("no arrays")
    with pytest.raises(InputError, match="not a file of measurements"):
        Measurements.load(path)


# --- what a fit recovers ---

COMPUTE, MEMORY, EXPONENT, PADDING, TIME_NS, KV_NS = 0.3, 0.15, 1.5, 0.06, 60e6, 35.0
BASE_NS = {1: 5e6, 8: 5.2e6, 32: 5.6e6}
PREFILL_NS = {(1, 256): 7e6, (2, 512): 23e6, (4, 512): 46e6}


def made_up_steps(seed: int) -> StepTable:
    """A run whose clock falls as blink.perf.throttle says, with a little noise."""
    rng, level, now, rows = np.random.default_rng(seed), 0.0, 0.0, []
    for number in range(900):
        if number % (6 if number < 450 else 20) == 0:
            batch, sequence = list(PREFILL_NS)[int(rng.integers(3))]
            busy, cold, kind, kv = 0.8, PREFILL_NS[batch, sequence], GraphKind.PREFILL, 100
        else:
            batch, sequence, busy, kind = [*BASE_NS][int(rng.integers(3))], 1024, 0.0, GraphKind.DECODE
            kv = int(rng.integers(batch * 50, batch * 600))
            cold = BASE_NS[batch] + KV_NS * kv
        tokens = int(rng.integers(batch * sequence // 2, batch * sequence)) if busy else 0
        cold *= 1 - PADDING * (1 - tokens / (batch * sequence)) if busy else 1
        took = cold
        for _ in range(6):
            kept = np.exp(-took / TIME_NS)
            mean = busy + (level - busy) * (1 - kept) * TIME_NS / took
            took = cold * (1 + (COMPUTE if busy else MEMORY) * mean**EXPONENT)
        level = busy + (level - busy) * np.exp(-took / TIME_NS)
        took *= 1 + 0.0005 * rng.standard_normal()
        rows.append((number, int(kind), batch, sequence, batch, kv, tokens, now, now + took))
        now += took + 10_000
        level *= np.exp(-10_000 / TIME_NS)
    table = np.array(rows)
    launched, done = table[:, 7].astype(np.int64), table[:, 8].astype(np.int64)
    ints = table[:, :7].astype(np.int64)
    stored = done + 2_000 + 50 * ints[:, 4]
    return StepTable(
        *(ints[:, column] for column in range(7)), launched - 10_000, launched, launched, done, stored, stored,
        np.arange(len(rows)) % 120 == 119,
    )  # fmt: skip


def test_a_made_up_clock_and_made_up_steps_are_found_again() -> None:
    busy = {shape: 0.8 * duration for shape, duration in PREFILL_NS.items()}
    runs = [made_up_steps(seed) for seed in (1, 2)]
    found = fit_cold_steps(runs, lambda batch, sequence: busy[batch, sequence])
    assert found.compute == pytest.approx(COMPUTE, rel=0.15)
    assert found.memory == pytest.approx(MEMORY, rel=0.15)
    assert found.exponent == pytest.approx(EXPONENT, rel=0.15)
    assert found.padding == pytest.approx(PADDING, rel=0.15)
    assert found.time_ns == pytest.approx(TIME_NS, rel=0.15)
    assert found.kv_token_ns == pytest.approx(KV_NS, rel=0.02)
    for step in found.steps:
        cold = PREFILL_NS[step.batch, step.sequence] if step.kind is GraphKind.PREFILL else BASE_NS[step.batch]
        assert step.p50_ns == pytest.approx(cold, rel=0.005), step
    assert found.left_decode < 0.002
    alike = fit_cold_steps(runs[:1], lambda batch, sequence: busy[batch, sequence], like=found)
    assert (alike.compute, alike.kv_token_ns) == (found.compute, found.kv_token_ns)


def test_costs_of_the_loop_are_found_again() -> None:
    found = loop_costs([made_up_steps(3)])
    assert found.launch.value == 10_000
    assert found.publish.value == pytest.approx(2_000, abs=20)
    assert found.publish_per_slot.value == pytest.approx(50, abs=1)


def test_a_programme_without_prefills_is_refused() -> None:
    run = made_up_steps(1).of_kind(GraphKind.DECODE)
    with pytest.raises(InputError, match="one kind is missing"):
        fit_cold_steps([run], lambda batch, sequence: 1.0)


def test_costs_of_the_frontend_are_lines() -> None:
    live = np.arange(1, 41, dtype=np.int64)
    prompt = live * 10
    requests = {
        "prompt_tokens": prompt, "ingress_ns": np.full(40, 90_000), "tokenize_ns": 50_000 + 200 * prompt,
        "link_ns": np.full(40, 180_000), "read_ns": 200_000 + 3_000 * live,
    }  # fmt: skip
    found = frontend_costs(requests, live)
    assert found.ingress.value == 90_000
    assert found.tokenize.value == pytest.approx(50_000)
    assert found.tokenize_per_token.value == pytest.approx(200)
    assert found.read.value == pytest.approx(200_000)
    assert found.read_per_slot.value == pytest.approx(3_000)


def test_gaps_of_a_spinning_thread_are_turns_of_others() -> None:
    gaps = [[index * 12_000_000, 8_000_000] for index in range(50)] + [[5, 25_000]]
    probe = {"seconds": 0.6, "gaps_ns": gaps, "stretches_ns": {"parse": [120, 100, 130]}}
    alone = {"seconds": 2.0, "gaps_ns": [[0, 30_000], [9, 50_000]], "stretches_ns": {"parse": [100, 100, 100]}}
    found = host_share([probe], [alone], [], 32, 14)
    assert found.competitors == pytest.approx(2.0)
    assert found.noise_per_s == 1.0
    assert found.noise_ns == 40_000
    assert found.inflation == {"parse": 1.2}


def test_competitors_are_counted_of_every_thread_that_never_sleeps() -> None:
    """Two sets of four processes and the scheduler's thread on two cores; they swap places every other second."""
    probe = {"seconds": 0.6, "gaps_ns": [[0, 4_000_000]], "stretches_ns": {"parse": [100]}}
    rng = np.random.default_rng(1)
    cores = [np.repeat(np.array([rng.permutation([0, 0, 1, 1, 1]) for _ in range(60)]), 20, axis=0) for _ in range(2)]
    cores[0][:3, -1] = -1  # the scheduler's thread has not begun
    found = host_share([probe], [probe], [], 4, 2, cores)
    assert found.competitors == pytest.approx((2 * 1 + 3 * 2) / 5, rel=0.01)
    assert found.error < 0.01
    assert found.imbalance == 0.0
    assert 0.5 < found.stay_ns / 1e9 < 2.5


# --- the command ---


def test_without_a_gpu_the_command_fits_a_kept_programme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    code = cli.main(
        ["calibrate", str(SCENARIO), "--measurements", str(PROFILE / "measurements.npz"), "--out", str(out)]
    )
    assert code == 0
    said = capsys.readouterr().out
    assert "on shapes held out" in said
    assert {path.name for path in out.iterdir()} == {path.name for path in PROFILE.iterdir()}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--busy", "x"], "--busy: 'x' is not allowed; allowed: a whole number from 1"),
        (["--from", "run.jsonl"], "--from: needs the scenario that replays the log"),
        (["--measurements", "none.npz"], "none.npz: cannot be read"),
    ],
)
def test_what_the_command_cannot_use_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    out = tmp_path / "out"
    assert cli.main(["calibrate", *arguments, "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
