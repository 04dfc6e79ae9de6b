"""`blink bench rdma`: the table, and profiles that the twin reads. The figures are whatever the device gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blink.cli import main
from blink.common.layout import STATUS_ARRAY_BYTES
from blink.hw.verbs import device
from blink.hw.verbs.bench import line
from blink.perf.dpu import DpuProfile
from blink.perf.link import Hop, LinkProfile
from tests.rdma.ends import choice
from tests.rdma.fake import FakeWorld
from tests.shared import ROOT

SCENARIO = ROOT / "scenarios/ci-tiny.toml"


def body(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """The command, and what it leaves."""
    files = [str(folder / file) for file in ("link.toml", "dpu.toml", "rows.json")]
    command = ["bench", "rdma", "--rounds", "20", "--out", files[0], "--dpu-out", files[1], "--json", files[2]]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"device {name}, through a loop within the adapter, 20 rounds")
    assert "READ of 65536 bytes" in out
    assert "WRITEs/s" in out
    link = LinkProfile.load(files[0])
    assert link.nodes == ("client", "dpu", "gpu")
    measured = link.hops[1]
    assert {constant.kind for constant in measured.constants} == {"measured"}
    assert measured.bandwidth_bytes_per_s > 0
    assert link.hops[0].latency_ns == LinkProfile.load("separate-dpu").hops[0].latency_ns
    dpu = DpuProfile.load(files[1])
    assert dpu.verb_post_ns > 0
    assert dpu.core_count == DpuProfile.load("bluefield-3").core_count
    rows = {row["what"]: row for row in json.loads(Path(files[2]).read_text())["rows"]}
    assert rows["READ of 65536 bytes"]["p50_ns"] > 0
    simulated(folder, files, measured)


def simulated(folder: Path, files: list[str], measured: Hop) -> None:
    """The twin with these profiles: READs of all states and of the token take what the link as measured asks for."""
    profiles = ["--set", f"links.profile={files[0]}", "--set", f"dpu.profile={files[1]}"]
    assert main(["run", str(SCENARIO), *profiles, "--no-progress", "--out", str(folder / "run")]) == 0
    summary = json.loads((folder / "run" / "summary.json").read_text())
    back_and_forth_ns = measured.one_way_ns(STATUS_ARRAY_BYTES) + 2 * measured.latency_ns
    assert summary["blink"]["ttft_parts_mean_ms"]["read"] >= back_and_forth_ns / 1e6
    assert summary["completed"] > 0


@pytest.mark.rdma
def test_on_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = choice().name or device.device_names()[0]
    body(tmp_path, capsys, name)


def test_on_fake_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    world = FakeWorld()
    monkeypatch.setattr(device, "load", lambda: world.binding)
    body(tmp_path, capsys, "fake0")


def test_the_line_through_reads_finds_what_made_them() -> None:
    reads = {size: round(700 + 2 * 1_300 + size / 12.5) for size in (8, 64, 512, 4096, 16_384, 65_536)}
    latency_ns, bandwidth = line(reads, 700)
    assert latency_ns == pytest.approx(1_300, abs=2)
    assert bandwidth == pytest.approx(12.5e9, rel=0.01)
    assert line({8: 500, 65_536: 400}, 600) == (0, 1 << 50)  # a device that is faster than the clock


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rounds", "0"], "--rounds: '0' is not allowed; allowed: a whole number from 1 to 1000000"),
        (["--connect", "x"], "--connect: 'x' is not allowed; allowed: HOST:PORT"),
        (["--gid-index", "-1"], "--gid-index: '-1' is not allowed; allowed: a whole number from 0"),
        (["--device", "mlx9"], "--device: 'mlx9' is not allowed; allowed: fake0"),
        (["--base-link", "nowhere"], "nowhere"),
    ],
)
def test_wrong_options_are_said(
    options: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = FakeWorld()
    monkeypatch.setattr(device, "load", lambda: world.binding)
    assert main(["bench", "rdma", *options]) == 2
    assert says in capsys.readouterr().err
