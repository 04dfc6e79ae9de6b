"""Power, energy and cost: arithmetic by hand, limits, and the published range of a server's wall power."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from blink.common.config import Scenario, parse_scenario
from blink.common.results import RunResult
from blink.common.summary import summarize
from blink.common.units import NS_PER_S
from blink.perf.dpu import DpuProfile
from blink.perf.energy import PowerProfile, PriceProfile, account, utilization
from blink.perf.gpu import GpuProfile
from blink.perf.shape import ModelShape
from tests.runs import SCENARIO, made_up_run

GPU, SHAPE = GpuProfile.load("h100-96gb"), ModelShape.load("llama-3-8b")
POWER, PRICES = PowerProfile.load("two-socket-server"), PriceProfile.load("cloud-2026")


def scenario(**tables: Any) -> Scenario:
    return parse_scenario({**SCENARIO, **tables}, "s")


def idle_run() -> RunResult:
    """An hour in which nothing is computed."""
    result = made_up_run(5)
    result.duration_ns = 3600 * NS_PER_S
    counters = result.scheduler
    for name in ("decode_launches", "prefill_launches", "decode_rows", "prefill_tokens", "decode_ns", "prefill_ns"):
        setattr(counters, name, 0)
    result.requests["output_tokens"][:] = 0
    return result


def test_an_idle_server_draws_what_its_parts_draw_idle() -> None:
    found = account(scenario(), idle_run())
    dpu_w = DpuProfile.load("bluefield-3").power_w
    expected = (POWER.server_w + 2 * POWER.socket_idle_w + GPU.power_idle_w) / POWER.supply_efficiency + dpu_w
    assert found["wall_w"] == pytest.approx(expected)
    assert found["energy_j"] == pytest.approx(expected * 3600)
    assert found["cost_usd"] == pytest.approx(
        PRICES.gpu_usd_per_hour + PRICES.dpu_usd_per_hour + PRICES.host_thread_usd_per_hour
    )


def test_a_host_driven_engine_pays_for_its_cores_and_no_dpu() -> None:
    found = account(scenario(system={"kind": "vllm"}), idle_run())
    assert found["dpu_w"] == 0.0
    assert found["cost_usd"] == pytest.approx(PRICES.gpu_usd_per_hour + 6 * PRICES.host_thread_usd_per_hour)


def test_owned_hardware_pays_for_energy() -> None:
    prices = PriceProfile.load("owned-2026")
    found = account(scenario(prices={"profile": "owned-2026"}), idle_run())
    hour = prices.gpu_usd_per_hour + prices.dpu_usd_per_hour + prices.host_thread_usd_per_hour
    assert found["cost_usd"] == pytest.approx(hour + found["wall_w"] / 1000 * prices.energy_usd_per_kwh)


def test_utilisation_by_hand() -> None:
    result = idle_run()
    result.duration_ns = 10 * NS_PER_S
    counters = result.scheduler
    counters.decode_launches, counters.decode_rows, counters.decode_ns = 1000, 64_000, 6 * NS_PER_S
    counters.prefill_launches, counters.prefill_tokens, counters.prefill_ns = 10, 10_000, 2 * NS_PER_S
    result.requests["output_tokens"][0], result.requests["prompt_tokens"][0] = 4, 10
    used = utilization(scenario(), SHAPE, GPU, result)
    assert used.gpu_busy == pytest.approx(0.8)
    kv_tokens = 10 + 11 + 12 + 13
    traffic = 1010 * 2 * SHAPE.param_count + kv_tokens * SHAPE.kv_bytes_per_token(2)
    assert used.gpu_memory == pytest.approx(traffic / 10 / GPU.memory_bandwidth_bytes_per_s)
    assert used.gpu_compute == pytest.approx(2 * SHAPE.active_param_count * 74_000 / 10 / GPU.peak_flops_16bit)
    assert used.cpu == 0.0


def test_cpu_counts_the_other_jobs_and_the_engine() -> None:
    result = idle_run()
    result.counters = {"host_cpu_ns": 2 * result.duration_ns}
    jobs = {"jobs": [{"profile": "memory-hog", "threads": 46}]}
    assert utilization(scenario(interference=jobs), SHAPE, GPU, result).cpu == pytest.approx(48 / 96)
    crowd = {"jobs": [{"profile": "memory-hog", "threads": 500}]}
    assert utilization(scenario(interference=crowd), SHAPE, GPU, result).cpu == 1.0


def test_experts_that_no_token_reaches_are_not_read() -> None:
    result = idle_run()
    result.scheduler.decode_launches = result.scheduler.decode_rows = 100  # one row a launch
    shape = ModelShape.load("qwen3-30b-a3b")
    used = utilization(scenario(model={"profile": "qwen3-30b-a3b"}), shape, GPU, result)
    traffic = used.gpu_memory * GPU.memory_bandwidth_bytes_per_s * 3600 / 100
    assert 2 * shape.active_param_count <= traffic * 1.001
    assert traffic < 0.2 * 2 * shape.param_count


def test_gpu_power_stays_between_idle_and_limit() -> None:
    assert POWER.gpu_w(GPU, 0.0, 0.0, 0.0) == GPU.power_idle_w
    assert POWER.gpu_w(GPU, 1.0, 1.0, 1.0) == GPU.power_max_w
    steps = [POWER.gpu_w(GPU, 1.0, memory / 10, 0.0) for memory in range(11)]
    assert steps == sorted(steps)


def test_a_busy_server_draws_what_was_published() -> None:
    """1.1 to 1.4 kW at the wall, with and without other jobs; a prediction, nothing was fitted to it."""
    gpu_w = POWER.gpu_w(GPU, 1.0, 0.7, 0.15)
    dpu_w = DpuProfile.load("bluefield-3").power_w
    for cpu in (0.0, 0.9):
        assert 1050 < POWER.wall_w(POWER.cpu_w(cpu), gpu_w, dpu_w) < 1450


def test_the_summary_divides_by_tokens_and_requests() -> None:
    result = made_up_run(50)
    result.accounts = {"energy_j": 1000.0, "cost_usd": 0.5, "wall_w": 1200.0}
    summary = summarize(result)
    found, tokens = summary["blink"]["accounts"], summary["total_output_tokens"]
    assert found["wall_w"] == 1200.0
    assert found["energy_mj_per_token"] == pytest.approx(1e6 / tokens)
    assert found["energy_j_per_request"] == pytest.approx(1000 / summary["completed"])
    assert found["cost_usd_per_million_tokens"] == pytest.approx(0.5e6 / tokens)


def test_a_run_that_nobody_accounted_says_nothing() -> None:
    assert summarize(made_up_run(5))["blink"]["accounts"] == {}


def test_a_run_without_tokens_has_no_price_per_token() -> None:
    result = made_up_run(5)
    result.accounts = {"energy_j": 1.0, "cost_usd": 1.0}
    result.requests["output_tokens"][:] = 0
    assert summarize(result)["blink"]["accounts"]["energy_mj_per_token"] is None


def test_tensor_parallel_counts_every_gpu() -> None:
    one = account(scenario(), idle_run())
    two = account(scenario(gpu={"profile": "h100-96gb", "tensor_parallel": 2}), idle_run())
    assert two["gpu_w"] == pytest.approx(2 * one["gpu_w"])
    assert two["cost_usd"] - one["cost_usd"] == pytest.approx(PRICES.gpu_usd_per_hour)


def test_the_limit_of_a_gpu_is_its_profile() -> None:
    small = dataclasses.replace(GPU, power_max_w=300.0)
    assert POWER.gpu_w(small, 1.0, 1.0, 1.0) == 300.0
