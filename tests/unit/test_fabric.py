"""Collectives on the topology graph, and pipelines: formulas by hand, and their limits."""

from __future__ import annotations

import dataclasses

import pytest

from blink.common.config import parse_scenario
from blink.perf.engine import EngineProfile
from blink.perf.fabric import Collectives, FabricProfile
from blink.perf.gpu import GpuProfile
from blink.perf.plant import step_model
from blink.perf.serving import ServingStep, Switches
from blink.perf.shape import ModelShape
from blink.perf.step import StepModel

NVLINK, PCIE = FabricProfile.load("nvlink-8"), FabricProfile.load("pcie-8")
LLAMA, H200 = ModelShape.load("llama-3-8b"), GpuProfile.load("h200")
TENSORRT = EngineProfile.load("tensorrt")
MIB = 1 << 20


def serving(ways: int = 1, **switches: object) -> ServingStep:
    return ServingStep(LLAMA, H200, 2, ways, TENSORRT, None, Switches(**switches))  # type: ignore[arg-type]


def test_a_ring_within_nvlink_by_hand() -> None:
    found = Collectives(NVLINK, (0, 1, 2, 3))
    assert found.step_latency_ns == 2 * NVLINK.nvlink_latency_ns
    assert found.ring_bytes_per_s == NVLINK.nvlink_bytes_per_s
    size = 64 * MIB
    assert found.all_reduce_ns(size) == pytest.approx(6000 + 6 * (1000 + size / 4 / 4.5e11 * 1e9))
    assert found.all_gather_ns(size) == pytest.approx(6000 + 3 * (1000 + size / 4 / 4.5e11 * 1e9))
    # Of little data, all to all at once has one latency in place of six.
    assert found.all_reduce_ns(1024) == pytest.approx(6000 + 1000 + 3 * 1024 / 4.5e11 * 1e9)


def test_a_group_of_one_needs_no_collective() -> None:
    alone = Collectives(NVLINK, (5,))
    assert (alone.all_reduce_ns(MIB), alone.all_gather_ns(MIB)) == (0.0, 0.0)


def test_the_way_decides_nvlink_then_pcie_then_the_network() -> None:
    size = 64 * MIB
    inside = Collectives(NVLINK, (0, 1)).all_reduce_ns(size)
    pcie = Collectives(PCIE, (0, 1)).all_reduce_ns(size)
    across = Collectives(NVLINK, (0, 8)).all_reduce_ns(size)
    assert inside < across < pcie  # 450 GB/s, 48 GB/s and 25 GB/s
    hosts = Collectives(NVLINK, (0, 8))
    assert hosts.step_latency_ns == 2 * (2 * NVLINK.pcie_latency_ns + NVLINK.network_latency_ns)
    assert hosts.ring_bytes_per_s == NVLINK.network_bytes_per_s


def test_an_edge_that_several_share_gives_each_its_part() -> None:
    """Two GPUs of each switch, in an order that crosses the roots every time: each uplink carries two ways."""
    straight, crossed = Collectives(PCIE, (0, 1, 4, 5)), Collectives(PCIE, (0, 4, 1, 5))
    assert straight.ring_bytes_per_s == PCIE.pcie_bytes_per_s
    assert crossed.ring_bytes_per_s == PCIE.root_bytes_per_s / 2


def test_tensor_parallel_steps_take_what_the_fabric_gives() -> None:
    nvlink, pcie = serving(4, fabric=NVLINK), serving(4, fabric=PCIE)
    own = StepModel(LLAMA, H200, 2, 4, TENSORRT)
    assert nvlink.decode_ns(16, 1000) < pcie.decode_ns(16, 1000)
    assert nvlink.prefill_ns(1, 4096) < pcie.prefill_ns(1, 4096)
    assert nvlink.decode_ns(16, 1000) == pytest.approx(own.decode_ns(16, 1000), rel=0.1)
    free = dataclasses.replace(NVLINK, collective_ns=0, nvlink_latency_ns=0, nvlink_bytes_per_s=1e30)
    without = own.decode_breakdown(16, 0)
    assert serving(4, fabric=free).decode_ns(16, 0) == pytest.approx(without.sum_ns - without.all_reduce_ns, abs=1)


def test_one_stage_is_no_pipeline() -> None:
    plain, one = StepModel(LLAMA, H200, 2, 1, TENSORRT), serving(stages=1)
    assert plain.decode_ns(16, 5000) == one.decode_ns(16, 5000)
    assert plain.prefill_ns(4, 512) == one.prefill_ns(4, 512)
    assert plain.mixed_ns(8, 5000, [(512, 0)]) == one.mixed_ns(8, 5000, [(512, 0)])
    assert (plain.weights_bytes, plain.kv_bytes(16)) == (one.weights_bytes, one.kv_bytes(16))


def test_a_pipeline_gives_throughput_and_memory_and_not_latency() -> None:
    """A lone token passes all layers: as long as on one GPU, and the transfers. Many rows go around in groups."""
    plain, four = StepModel(LLAMA, H200, 2, 1, TENSORRT), serving(stages=4)
    sends = 4 * (2 * NVLINK.nvlink_latency_ns + 4096 * 2 / NVLINK.nvlink_bytes_per_s * 1e9)
    assert four.decode_ns(1, 0) == pytest.approx(plain.decode_ns(1, 0) + sends, abs=1)
    assert four.decode_ns(256, 0) < 0.7 * plain.decode_ns(256, 0)
    assert four.decode_ns(256, 0) > plain.decode_ns(64, 0)
    assert plain.prefill_ns(1, 2048) < four.prefill_ns(1, 2048) < 1.01 * plain.prefill_ns(1, 2048)
    # Four prompts fill the stages, and the fourth drains them: seven quarters of one.
    assert four.prefill_ns(4, 2048) == pytest.approx(7 / 4 * plain.prefill_ns(1, 2048), rel=0.01)
    assert four.prefill_ns(4, 2048) < plain.prefill_ns(4, 2048)
    assert four.kv_bytes(1000) * 4 == plain.kv_bytes(1000)
    assert plain.weights_bytes / 4 < four.weights_bytes < plain.weights_bytes / 3


def test_the_scenario_says_how_a_replica_is_laid_over_its_gpus() -> None:
    from blink.sim.run import simulate
    from blink.workload.build import build_load

    def ttft_and_cost(**gpu: object) -> tuple[float, float]:
        document = {
            "name": "laid",
            "model": {"profile": "llama-3-8b"},
            "gpu": {"profile": "h200", **gpu},
            "workload": {
                "requests": 20,
                "arrivals": {"kind": "poisson", "rate": 2.0},
                "lengths": {"kind": "fixed", "prompt_tokens": 1000, "output_tokens": 20},
            },
        }
        scenario = parse_scenario(document, "test")
        assert step_model(scenario).tensor_parallel == scenario.gpu.tensor_parallel
        result = simulate(*build_load(scenario))
        hours = result.duration_ns / 3.6e12
        return float(result.requests["ttft_ns"].mean()), result.accounts["cost_usd"] / hours

    one, two, piped = ttft_and_cost(), ttft_and_cost(tensor_parallel=2), ttft_and_cost(pipeline_parallel=2)
    slow = ttft_and_cost(tensor_parallel=2, fabric="pcie-8")
    assert two[0] < one[0] == pytest.approx(piped[0], rel=0.02)
    assert slow[0] > two[0]
    assert two[1] == pytest.approx(piped[1]) == pytest.approx(one[1] + 2.8)
