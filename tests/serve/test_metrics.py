"""The metrics under vLLM's names: they count what was served, and their times add up, on every backend."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.hw.native_help import needs_compiler
from tests.serve.running import running

pytest.importorskip("uvicorn", reason="needs the extra [serve]")
REQUESTS, TOKENS = 6, 9
BODY = {"prompt": "Hello", "max_tokens": TOKENS, "ignore_eos": True}


def histograms(text: str) -> dict[str, tuple[float, int]]:
    """Name -> sum and count."""
    sums = dict(re.findall(r"^([a-z0-9:_]+)_sum{.*} (\S+)$", text, re.MULTILINE))
    counts = dict(re.findall(r"^([a-z0-9:_]+)_count{.*} (\S+)$", text, re.MULTILINE))
    return {name: (float(sums[name]), int(counts[name])) for name in sums}


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), id="sim"),
        pytest.param(("--ttft", "5", "--itl", "1"), id="timed"),
        pytest.param(("--backend", "native"), id="native", marks=needs_compiler),
        pytest.param(("--backend", "native", "--trace", "trace.ndjson"), id="native-traced", marks=needs_compiler),
    ],
)
def test_every_histogram_counts_every_request_and_the_times_add_up(options: tuple[str, ...], tmp_path: Path) -> None:
    given = [str(tmp_path / option) if option.endswith(".ndjson") else option for option in options]
    if "native" in options:
        given += ["--ring", str(tmp_path / "ring.sock")]
    with running(*given) as server:
        for index in range(REQUESTS):
            assert server.request("POST", "/v1/completions", {**BODY, "stream": index % 2 == 0})[0] == 200
        server.wait_idle()
        text = server.request("GET", "/metrics")[2].decode()
    found = histograms(text)
    by_request = [name for name in found if name.startswith("vllm:request_") or name.endswith("first_token_seconds")]
    assert {name: found[name][1] for name in by_request} == dict.fromkeys(by_request, REQUESTS)
    assert found["vllm:inter_token_latency_seconds"][1] == REQUESTS * (TOKENS - 1)
    assert found["vllm:iteration_tokens_total"][0] == REQUESTS * (TOKENS + 5)
    assert found["vllm:request_prompt_tokens"][0] == REQUESTS * 5
    assert found["vllm:request_generation_tokens"][0] == REQUESTS * TOKENS

    def seconds(name: str) -> float:
        return found[f"vllm:{name}_seconds"][0]

    queue, prefill = seconds("request_queue_time"), seconds("request_prefill_time")
    decode, inference = seconds("request_decode_time"), seconds("request_inference_time")
    assert min(prefill, decode) > 0
    assert queue > 0 or "--ttft" in options  # there nobody waits
    assert queue + prefill == pytest.approx(seconds("time_to_first_token"))
    assert prefill + decode == pytest.approx(inference)
    assert queue + inference == pytest.approx(seconds("e2e_request_latency"))
    assert seconds("inter_token_latency") == pytest.approx(decode)
    assert seconds("request_time_per_output_token") == pytest.approx(decode / (TOKENS - 1))
    if "native" in options:
        assert found["blink:submit_seconds"][1] == found["blink:token_out_seconds"][1] == REQUESTS
