"""The gauges of /metrics: vLLM's names for what it has as well, blink's own for the ring."""

from __future__ import annotations

from collections.abc import Iterator

from blink.serve.service import Service

Gauge = tuple[str, str, dict[str, str], float]


def gauges(service: Service) -> Iterator[Gauge]:
    """As they are now, those of one name together."""
    stats = service.backend.stats()
    none: dict[str, str] = {}
    yield "vllm:num_requests_running", "Sequences in the batch.", none, stats.running
    yield "vllm:num_requests_waiting", "Requests that wait for the batch.", none, stats.waiting
    waiting = "Requests that wait, by reason."
    yield "vllm:num_requests_waiting_by_reason", waiting, {"reason": "capacity"}, stats.waiting
    yield "vllm:num_requests_waiting_by_reason", waiting, {"reason": "deferred"}, 0
    yield "vllm:kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", none, stats.kv_share
    yield "vllm:gpu_cache_usage_perc", "Old name of vllm:kv_cache_usage_perc.", none, stats.kv_share
    for state in ("awake", "weights_offloaded", "discard_all"):
        yield "vllm:engine_sleep_state", "Always awake.", {"sleep_state": state}, float(state == "awake")
    info = {"block_size": str(stats.block_tokens), "num_gpu_blocks": str(stats.kv_blocks)}
    yield "vllm:cache_config_info", "Configuration of the KV cache; the value is always 1.", info, 1
    for state, number in stats.slots.items():
        yield "blink:slots", "Slots of the ring by state.", {"state": state}, number
    yield "blink:slots_recovering", "Slots of a dead server that are not free again yet.", none, stats.recovering
    yield "blink:window_used", "Launches of the present window.", none, stats.window_used
    yield "blink:window", "Launches of a window.", none, stats.window
    yield "blink:relaunches", "Relaunches of the scheduler since the start.", none, stats.relaunches
    yield "blink:polls", "Status READs since the start.", none, stats.poll_count
    yield "blink:clock_lag_seconds", "How far the backend is behind its clock.", none, stats.lag_ns / 1e9
    yield "blink:clock_lag_seconds_max", "The same at its worst since the start.", none, stats.lag_max_ns / 1e9
    yield "blink:wrong_tokens", "Tokens that differ from what the engine sampled.", none, stats.wrong_tokens
    yield "blink:open_requests", "Choices that are open.", none, service.open_count
