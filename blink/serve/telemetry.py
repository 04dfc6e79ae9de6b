"""A span for every request, under OpenTelemetry's GenAI names and vLLM's names of latencies. Needs the extra [otel]."""

from __future__ import annotations

import time
from typing import Any

from blink.common.optional import need
from blink.serve.response import Response

EXTRA = "otel"
_WHAT = "--otel"


class Spans:
    """Sends spans by OTLP over HTTP, to where OpenTelemetry's environment variables say."""

    def __init__(self, exporter: Any = None) -> None:
        """`exporter` in place of OTLP. Raises InputError without the packages."""
        trace = need("opentelemetry.sdk.trace", _WHAT, EXTRA)
        export = need("opentelemetry.sdk.trace.export", _WHAT, EXTRA)
        resources = need("opentelemetry.sdk.resources", _WHAT, EXTRA)
        self._kind = need("opentelemetry.trace", _WHAT, EXTRA).SpanKind.SERVER
        if exporter is None:
            otlp = need("opentelemetry.exporter.otlp.proto.http.trace_exporter", _WHAT, EXTRA)
            exporter = otlp.OTLPSpanExporter()
        self._provider = trace.TracerProvider(resource=resources.Resource.create({"service.name": "blink"}))
        self._provider.add_span_processor(export.BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("blink.serve")

    def request(self, response: Response, model: str) -> None:
        """A request that is over."""
        operation = "chat" if response.generation.chat else "text_completion"
        # Spans are on the wall clock, the server's times on the monotonic one.
        offset_ns = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            f"{operation} {model}", kind=self._kind, start_time=response.arrived_ns + offset_ns
        )  # fmt: skip
        span.set_attributes(attributes(response, operation, model))
        span.end(response.end_ns + offset_ns)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def attributes(response: Response, operation: str, model: str) -> dict[str, Any]:
    """What a span says; what is not known is left out."""
    generation, sampling = response.generation, response.generation.sampling
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "blink",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": max(generation.output_tokens_max),
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.choice.count": generation.n,
        "gen_ai.response.id": response.response_id,
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": [response.finish],
        "gen_ai.usage.input_tokens": response.prompt_tokens,
        "gen_ai.usage.output_tokens": response.output_tokens,
        "gen_ai.latency.e2e": (response.end_ns - response.arrived_ns) / 1e9,
    }
    if sampling.seed is not None:
        found["gen_ai.request.seed"] = sampling.seed
    if sampling.top_k:
        found["gen_ai.request.top_k"] = sampling.top_k
    if generation.stops:
        found["gen_ai.request.stop_sequences"] = list(generation.stops)
    if response.first_ns >= 0:
        found["gen_ai.latency.time_to_first_token"] = (response.first_ns - response.arrived_ns) / 1e9
    if response.claimed_ns >= 0:
        found["gen_ai.latency.time_in_queue"] = max(0, response.claimed_ns - response.arrived_ns) / 1e9
    if response.finish == "error":
        found["error.type"] = str(response.status or "aborted")
    return found
