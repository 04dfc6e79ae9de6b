"""Spans of requests, as an exporter gets them."""

from __future__ import annotations

import json
import time
from collections.abc import MutableMapping
from typing import Any

import pytest

pytest.importorskip("msgspec", reason="needs the extra [serve]")

from blink.common.config import load_scenario
from blink.frontend.tokenizer.byte_level import ByteTokenizer
from blink.serve.failures import Failures
from blink.serve.log import Log
from blink.serve.service import Service, Terms
from blink.serve.simulated import SimulatedBackend
from blink.serve.stub import StubText
from blink.serve.telemetry import Spans
from blink.serve.writer import Writer
from tests.serve.running import SCENARIO

memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason="needs the extra [otel]")


async def nowhere(message: MutableMapping[str, Any]) -> None: ...


def test_a_span_tells_of_a_request_and_lasts_as_long() -> None:
    scenario, tokenizer = load_scenario(SCENARIO, []), ByteTokenizer()
    backend = SimulatedBackend(scenario, StubText(scenario, tokenizer, 1), 0.0, None, time.monotonic_ns)
    log = Log(as_json=False, requests=False)
    service = Service(backend, tokenizer, "m", 1, Terms(), Failures(0, (), 1), log)
    exporter = memory.InMemorySpanExporter()
    spans = Spans(exporter)
    service.over = lambda response: spans.request(response, "m")
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "max_tokens": 5,
        "ignore_eos": True,
        "seed": 3,
        "stop": "#",
    }
    generation = service.reader.chat(json.dumps(body).encode())
    response = service.open(generation, Writer(nowhere), time.monotonic_ns())
    while not response.is_over:
        backend.turn()
        response.flush()
    service.close(response, gone=False)
    spans.close()
    (span,) = exporter.get_finished_spans()
    assert span.name == "chat m"
    said = dict(span.attributes)
    assert said["gen_ai.usage.output_tokens"] == said["gen_ai.request.max_tokens"] == 5
    assert (said["gen_ai.request.seed"], said["gen_ai.request.stop_sequences"]) == (3, ("#",))
    assert said["gen_ai.response.finish_reasons"] == ("length",)
    assert 0 < said["gen_ai.latency.time_to_first_token"] <= said["gen_ai.latency.e2e"]
    assert span.end_time - span.start_time == pytest.approx(said["gen_ai.latency.e2e"] * 1e9, abs=1000)
