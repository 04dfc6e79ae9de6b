"""The requests that are open, what may be taken in, and everything they share: one per server."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

from blink.frontend.openai.bodies import Generation, Reader, Sampling
from blink.frontend.openai.errors import ApiError, internal, too_many, unavailable
from blink.frontend.tokenizer.base import Tokenizer
from blink.serve.backend import Backend, Job
from blink.serve.failures import Failures, refusal
from blink.serve.log import Log
from blink.serve.metrics import Metrics
from blink.serve.pump import Pump
from blink.serve.response import Response
from blink.serve.writer import Writer

LAG_WARNING_NS = 50_000_000
LAG_WARNING_EVERY_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class Terms:
    """What a server takes in. `open_max`: choices that are open at once; times in seconds, sizes in bytes."""

    open_max: int = 5120
    body_bytes_max: int = 4 << 20
    body_seconds_max: float = 30.0
    request_seconds_max: float = 600.0
    drain_seconds_max: float = 30.0


class Service:
    """Everything behind the routes."""

    def __init__(
        self, backend: Backend, tokenizer: Tokenizer, model: str, seed: int, terms: Terms, failures: Failures, log: Log
    ) -> None:
        self.backend, self.tokenizer, self.model, self.terms, self.log = backend, tokenizer, model, terms, log
        self.reader = Reader(tokenizer, model, backend.bounds)
        self.metrics = Metrics(model, backend.bounds.context_tokens)
        self.pump = Pump(backend, self._broken, self.metrics.turned)
        self.started_s = int(time.time())
        self.draining = False
        self.broken = ""
        self.failed: Callable[[], None] = lambda: None
        self.over: Callable[[Response], None] = lambda response: None  # hears of every request that is over
        self._seed, self._failures = seed, failures
        self._numbers = count(getattr(backend, "first_number", 0))
        self._responses: dict[Response, None] = {}
        self._response_numbers = count()
        self.open_count = 0  # choices
        self._warned_ns = -LAG_WARNING_EVERY_NS

    @staticmethod
    def now() -> int:
        """The monotonic clock, ns."""
        return time.monotonic_ns()

    # --- requests ---

    def open(self, generation: Generation, writer: Writer, arrived_ns: int) -> Response:
        """Take a request in and start it. Raises ApiError 429, 503 and what is injected."""
        choices = generation.n * len(generation.prompts)
        if self.broken:
            raise unavailable(self.broken, 10)
        if self.draining:
            raise unavailable("the server is stopping", 10)
        if self.open_count + choices > self.terms.open_max:
            self.metrics.rejected["max_num_queued_reqs"] += 1
            raise too_many(self.open_count)
        kind, tokens = self._failures.draw()
        if kind is not None and (error := refusal(kind)) is not None:
            raise error
        name = self._response_id("chatcmpl" if generation.chat else "cmpl")
        response = Response(self, generation, writer, name, int(time.time()), arrived_ns)
        if kind in ("abort", "disconnect"):
            response.fails_after = tokens, kind
        self.open_count += choices
        self._responses[response] = None
        self.metrics.counters["vllm:prompt_tokens"] += response.prompt_tokens
        if kind != "stall":
            response.begin(self.backend.submit, self._numbers.__next__)
            self.pump.wake()
        return response

    def _response_id(self, prefix: str) -> str:
        digest = hashlib.blake2b(f"{self._seed}/{next(self._response_numbers)}".encode(), digest_size=12)
        return f"{prefix}-{digest.hexdigest()}"

    def other(self, sampling: Sampling, copy: int) -> Sampling:
        """Sampling of a further choice of the same prompt."""
        seed = self._seed if sampling.seed is None else sampling.seed
        return replace(sampling, seed=seed + copy)

    def close(self, response: Response, *, gone: bool) -> None:
        """A response is over, or its client is `gone`."""
        if response not in self._responses:
            return
        del self._responses[response]
        self.open_count -= response.generation.n * len(response.generation.prompts)
        response.close()
        self.pump.wake()
        self.metrics.counters["blink:disconnects"] += gone and response.finish == "abort"
        self._count(response)

    def _count(self, response: Response) -> None:
        metrics, generation = self.metrics, response.generation
        metrics.finished[response.finish] += 1
        if response.status:
            metrics.responses[response.status] = metrics.responses.get(response.status, 0) + 1
        first, last, claimed = response.first_ns, response.end_ns, response.claimed_ns
        fields: dict[str, object] = {
            "id": response.response_id, "status": response.status, "finish": response.finish,
            "prompt_tokens": response.prompt_tokens, "output_tokens": response.output_tokens,
            "e2e_ms": round((last - response.arrived_ns) / 1e6, 3),
        }  # fmt: skip
        if response.finish in ("stop", "length"):
            seconds = (last - response.arrived_ns) / 1e9
            metrics["vllm:e2e_request_latency_seconds"].observe(seconds)
            metrics["vllm:request_prompt_tokens"].observe(response.prompt_tokens)
            metrics["vllm:request_generation_tokens"].observe(response.output_tokens)
            metrics["vllm:request_max_num_generation_tokens"].observe(response.longest)
            metrics["vllm:request_params_max_tokens"].observe(max(generation.output_tokens_max))
            metrics["vllm:request_params_n"].observe(generation.n)
            metrics["vllm:request_prefill_kv_computed_tokens"].observe(response.prompt_tokens)
            metrics["vllm:request_num_preemptions"].observe(0)
            if first >= 0:
                fields["ttft_ms"] = round((first - response.arrived_ns) / 1e6, 3)
                metrics["vllm:request_decode_time_seconds"].observe((last - first) / 1e9)
                if response.longest > 1:
                    mean = (last - first) / 1e9 / (response.longest - 1)
                    metrics["vllm:request_time_per_output_token_seconds"].observe(mean)
                if claimed >= 0:
                    metrics["vllm:request_queue_time_seconds"].observe(max(0, claimed - response.arrived_ns) / 1e9)
                    metrics["vllm:request_prefill_time_seconds"].observe(max(0, first - claimed) / 1e9)
                    metrics["vllm:request_inference_time_seconds"].observe(max(0, last - claimed) / 1e9)
        self.log.request(fields)
        self.over(response)

    # --- what responses and the loop ask ---

    def has_news(self, response: Response) -> None:
        """Flush it at the end of this turn."""
        self.pump.has_news(response)

    def cancel(self, job: Job) -> None:
        """Nobody wants its tokens any more."""
        self.backend.cancel(job)
        self.pump.wake()

    def fail_all(self, error: ApiError) -> int:
        """End every open request with an error; how many there were."""
        responses = list(self._responses)
        for response in responses:
            response.fail(error)
        return len(responses)

    def _broken(self, error: BaseException) -> None:
        self.broken = f"the backend failed: {type(error).__name__}"
        self.log.fault(self.broken, error)
        self.fail_all(internal(self.broken))
        self.failed()

    def check_clock(self) -> None:
        """Say it, now and then, while the backend is behind its clock."""
        stats, now_ns = self.backend.stats(), self.now()
        if stats.lag_ns > LAG_WARNING_NS and now_ns - self._warned_ns >= LAG_WARNING_EVERY_NS:
            self._warned_ns = now_ns
            self.metrics.counters["blink:clock_lag_warnings"] += 1
            self.log.say(
                f"behind its clock by {stats.lag_ns / 1e6:.0f} ms: this load is more than the machine sustains"
            )
        if stats.note and not self.broken:
            self.broken = stats.note
            self.log.say(stats.note)
            self.fail_all(unavailable(stats.note))
