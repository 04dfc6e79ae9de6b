"""The scheduler's loop: an opaque one-kernel graph has the step periods that the H200 showed."""

from __future__ import annotations

import re

import pytest

from blink.common.profile import list_profiles
from blink.perf.gpu import GpuProfile
from tests.shared import shared_path

H200 = GpuProfile.load("h200")
TOLERANCE_NS = 1000


def graph_ns(kernels: int) -> int:
    """A straight graph of trivial kernels and its completion word."""
    return (kernels + 1) * H200.trivial_node_ns


@pytest.mark.parametrize(
    ("kernels", "inside_ns", "across_ns"), [(1, 4_670, 10_050), (32, 31_330, 36_540)], ids=["one kernel", "32 kernels"]
)
def test_step_period(kernels: int, inside_ns: int, across_ns: int) -> None:
    period = H200.launch_ns + graph_ns(kernels) + H200.completion_ns + H200.publish_ns
    assert period == pytest.approx(inside_ns, abs=TOLERANCE_NS)
    assert period + H200.relaunch_ns == pytest.approx(across_ns, abs=TOLERANCE_NS)


def test_loop_overhead_is_the_period_less_the_graph() -> None:
    assert H200.loop_overhead_ns == pytest.approx(4_670 - graph_ns(1), abs=10)
    assert H200.loop_overhead_ns == 2_950


def test_host_loop() -> None:
    assert H200.host_loop_ns + graph_ns(1) == pytest.approx(10_190, abs=10)


def test_constants_against_the_log() -> None:
    log = shared_path("measurements/h200-device-graph-launch.log").read_text()

    def p50(label: str, occurrence: int = 0) -> float:
        return float(re.findall(rf"{re.escape(label)}\s+n=\d+ mean=[\d.]+ p50=([\d.]+)", log)[occurrence]) * 1000

    # Modes alternate and retry for each graph size; the first is one node, alternating.
    done, inside, across = (
        p50(label) for label in ("launch->done", "step period in window", "step period across tail relaunch")
    )
    assert H200.launch_ns + H200.completion_ns + graph_ns(1) == pytest.approx(done, abs=10)
    assert H200.publish_ns == pytest.approx(inside - done, abs=10)
    assert H200.relaunch_ns == pytest.approx(across - inside, abs=10)
    assert H200.trivial_node_ns == pytest.approx((p50("launch->done", 2) - done) / 31, abs=1)
    # The log's scan is of another kind: each thread over its own run of slots, at other strides than the ring's.
    assert H200.scan_ns < p50("scan 4096 slots contiguous stride 64B")
    assert H200.host_launch_ns == pytest.approx(p50("host cudaGraphLaunch call"), abs=10)


@pytest.mark.parametrize("name", list_profiles("gpu"))
def test_publication_holds_on_every_gpu(name: str) -> None:
    """Published for H100: scan 1 to 5 us, tail launch about 2.7 times a fire-and-forget launch, window 120.

    Ours scans faster: relaxed loads, threads interleaved over the slots. The other three orders are within 1 to 5 us.
    """
    gpu = GpuProfile.load(name)
    assert 0 < gpu.scan_ns <= 5_000
    others = [int(found) for found in re.findall(r"(?:interleaved|contiguous) (\d+)", gpu.constants["scan_ns"].source)]
    assert len(others) == 3
    assert all(1_000 <= other <= 5_000 and gpu.scan_ns < other for other in others)
    assert 2.4 <= gpu.relaunch_ns / gpu.launch_ns <= 3.0
    assert gpu.launch_window_max == 120
    assert gpu.host_loop_ns > gpu.loop_overhead_ns
