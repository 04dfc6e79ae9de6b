"""A run that was recorded on an H200 against the twin with the profile of that machine: what CI can gate on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from blink import cli
from blink.twin.observed import read_observed
from blink.twin.tolerances import Tolerances
from blink.twin.validation import Validation, groups, validate
from tests.shared import ROOT

DATA = ROOT / "tests" / "data" / "h200-twin"
REAL = DATA / "measured"


def predicted(out: Path, profile: Path, *more: str) -> Path:
    """The twin's run of the recorded load."""
    code = cli.main(
        ["run", str(REAL / "scenario.toml"), "--calibration", str(profile), "--out", str(out), "--no-progress", *more]
    )
    assert code == 0
    return out


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return predicted(tmp_path_factory.mktemp("twin") / "run", DATA / "profile")


@pytest.fixture(scope="module")
def found(twin: Path) -> Validation:
    ((name, pairs),) = groups(REAL, twin).items()
    return validate(name, pairs, Tolerances.load())


def test_the_recorded_run_passes(twin: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(REAL), str(twin)]) == 0
    said = capsys.readouterr().out
    assert "conformance: 2 of 2 traces conform" in said
    assert "policy: all 65,862 rows of the scheduler in measured are those of the twin" in said
    assert "within tolerance" in said


def test_single_gaps_come_from_the_traces(found: Validation) -> None:
    pair = found.pairs[0]
    gaps = found.latencies["all"]["itl"]
    assert gaps.count == int((pair.real.output_tokens - 1).sum())
    assert gaps.error("mean").real == pytest.approx(found.gaps["mean"][0], rel=0.002)  # as the clients saw it
    assert abs(gaps.error("p99").relative) < 0.05


def test_another_bandwidth_is_the_step_models_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "profile"
    shutil.copytree(DATA / "profile", profile)
    slower = 'value = 4.32e12, unit = "bytes/s", kind = "assumed", source = "10 % below the data sheet"'
    with (profile / "gpu.toml").open("a", encoding="utf-8") as file:
        file.write(f"memory_bandwidth_bytes_per_s = {{ {slower} }}\n")
    sim = predicted(tmp_path / "run", profile)
    capsys.readouterr()
    assert cli.main(["validate", str(REAL), str(sim)]) == 1
    said = capsys.readouterr().out
    assert "step model: time of 4706 decode steps" in said
    assert said.rstrip().endswith("the step model errs")


def test_another_window_is_the_policys_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sim = predicted(tmp_path / "run", DATA / "profile", "--set", "limits.window=60")
    capsys.readouterr()
    assert cli.main(["validate", str(REAL), str(sim)]) == 1
    said = capsys.readouterr().out
    assert "policy: decisions of measured differ from step 60" in said.replace("\n", " ")
    assert said.rstrip().endswith("the policy errs")


def test_a_slow_frontend_is_the_frontends_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "profile"
    shutil.copytree(DATA / "profile", profile)
    text = (profile / "dpu.toml").read_text(encoding="utf-8")
    slow = "".join(
        line.split("value = ")[0] + "value = 3000000," + line.split(",", 1)[1]
        if line.startswith("http_parse_ns")
        else line
        for line in text.splitlines(keepends=True)
    )
    (profile / "dpu.toml").write_text(slow, encoding="utf-8")
    sim = predicted(tmp_path / "run", profile)
    capsys.readouterr()
    assert cli.main(["validate", str(REAL), str(sim)]) == 1
    assert "frontend: the frontend's part of mean TTFT" in capsys.readouterr().out


def test_the_parts_add_up_to_the_error(found: Validation) -> None:
    ((_, parts),) = found.decompositions
    real, sim = found.pairs[0].real, found.pairs[0].sim
    by_name = {entry.latency: entry for entry in parts.contributions}
    for latency, begin, end in (("TTFT", "sent_ns", "first_ns"), ("E2E", "sent_ns", "last_ns")):
        means = [float((getattr(run, end) - getattr(run, begin)).mean()) for run in (real, sim)]
        assert by_name[latency].real_ns == pytest.approx(means[0])
        assert by_name[latency].error_ns == pytest.approx(means[1] - means[0], abs=1)


def test_the_twin_is_as_good_as_the_aim(found: Validation) -> None:
    latencies = found.latencies["all"]
    for name in ("ttft", "tpot", "e2e"):
        for statistic, allowed in (("mean", 0.02), ("p50", 0.02), ("p99", 0.05)):
            assert abs(latencies[name].error(statistic).relative) < allowed, (name, statistic)
    assert all(abs(entry.error) < 0.01 for entry in found.throughputs)
    assert found.offenders
    assert {"ring_wait", "prefill", "decode"} <= set(found.offenders[0].real)


def test_a_run_against_itself_has_no_error(twin: Path) -> None:
    """The twin's own trace is one of slots, so every part can be judged: none errs."""
    ((name, pairs),) = groups(twin, twin).items()
    found = validate(name, pairs, Tolerances.load())
    assert found.passed
    ((_, parts),) = found.decompositions
    assert parts.policy.difference is None
    assert all(abs(steps.error) < 0.01 for steps in parts.steps if steps.kind != "loop")  # its graphs hold the launch
    assert all(abs(entry.error_ns) < 1 for entry in parts.contributions)
    assert read_observed(twin).trace_path is not None
