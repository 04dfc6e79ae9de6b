"""Prometheus metrics, under the names that dashboards of vLLM ask for, and blink's own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_TTFT = (
    *(.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1., 2.5, 5., 7.5),
    *(10., 20., 40., 80., 160., 640., 2560.),
)  # fmt: skip
_COARSE_ITL = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1., 2.5, 5., 7.5, 10., 20., 40., 80.)  # fmt: skip
_ITL = (.0001, .00025, .0005, .001, .0015, .002, .003, .004, .005, .0075, *_COARSE_ITL)  # fmt: skip
"""vLLM's buckets begin at 10 ms, which hides every step of a fast GPU: finer ones stand before them."""
_LATENCY = (
    *(.3, .5, .8, 1., 1.5, 2., 2.5, 5., 10., 15., 20., 30., 40.), *(50., 60., 120., 240., 480., 960., 1920., 7680.),
)  # fmt: skip
_FINE_LATENCY = (.001, .0025, .005, .01, .025, .05, .1, .2, *_LATENCY)  # fmt: skip
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
_STEP = (1.0, *(float(1 << power) for power in range(3, 15)))
_ADDED = (
    *(0.00005, 0.0001, 0.00015, 0.0002, 0.0003, 0.0004, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 1.0),
)
_TURN = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1)

HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("Time to first token: request in to first byte out, queue included.", _TTFT),
    "vllm:inter_token_latency_seconds": ("Time between two tokens of a choice.", _ITL),
    "vllm:time_per_output_token_seconds": ("Old name of vllm:inter_token_latency_seconds.", _ITL),
    "vllm:request_time_per_output_token_seconds": ("Mean time per output token after the first, by request.", _ITL),
    "vllm:e2e_request_latency_seconds": ("Request in to last byte out.", _FINE_LATENCY),
    "vllm:request_queue_time_seconds": ("Request in to claimed by the scheduler.", _FINE_LATENCY),
    "vllm:request_prefill_time_seconds": ("Claimed to first byte out.", _FINE_LATENCY),
    "vllm:request_decode_time_seconds": ("First byte out to last byte out.", _FINE_LATENCY),
    "vllm:request_inference_time_seconds": ("Claimed to last byte out.", _FINE_LATENCY),
    "vllm:request_prompt_tokens": ("Prompt tokens of a request.", None),
    "vllm:request_generation_tokens": ("Generated tokens of a request.", None),
    "vllm:request_max_num_generation_tokens": ("Generated tokens of a request's longest choice.", None),
    "vllm:request_params_max_tokens": ("max_tokens of a request.", None),
    "vllm:request_params_n": ("n of a request.", _CHOICES),
    "vllm:request_prefill_kv_computed_tokens": ("Prompt tokens of a request that were computed: all of them.", None),
    "vllm:request_num_preemptions": ("Preemptions of a request: always 0.", _CHOICES),
    "vllm:iteration_tokens_total": ("Tokens of a step: of prompts that were prefilled, and generated.", _STEP),
    "blink:submit_seconds": ("Added latency: request in to slot pending (native).", _ADDED),
    "blink:token_out_seconds": ("Added latency: first token in the ring to its bytes handed to the socket.", _ADDED),
    "blink:turn_seconds": ("One cycle of the reader: poll, tokens, text, sockets.", _TURN),
}
"""Name -> help and upper bounds; None for tokens, in the series 1, 2, 5 up to the context."""
COUNTERS = {
    "vllm:prompt_tokens": "Prompt tokens of requests that were taken in.",
    "vllm:generation_tokens": "Tokens that were sent to clients.",
    "vllm:num_preemptions": "Always 0: a claim reserves everything that a request may need.",
    "vllm:prefix_cache_queries": "Always 0: there is no prefix cache.",
    "vllm:prefix_cache_hits": "Always 0: there is no prefix cache.",
    "vllm:prompt_tokens_cached": "Always 0: there is no prefix cache.",
    "vllm:external_prefix_cache_queries": "Always 0: no cache is shared with others.",
    "vllm:external_prefix_cache_hits": "Always 0: no cache is shared with others.",
    "vllm:mm_cache_queries": "Always 0: prompts are text.",
    "vllm:mm_cache_hits": "Always 0: prompts are text.",
    "blink:disconnects": "Requests whose client left before their end.",
    "blink:clock_lag_warnings": "Times that the server said that it is behind its clock.",
}
FINISHES = ("stop", "length", "abort", "error", "repetition")


@dataclass(slots=True)
class Histogram:
    """Counts by upper bound, the last one without."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """A value, that many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Metrics:
    """All metrics of a server. Gauges are read when they are asked for (`render`)."""

    def __init__(self, model: str, context_tokens: int) -> None:
        self._labels = f'model_name="{_escaped(model)}",engine="0"'
        self._model_only = f'model_name="{_escaped(model)}"'
        tokens = tuple(float(n) for n in _series(context_tokens))
        self._histograms = {
            name: Histogram(bounds := tokens if fixed is None else fixed, [0] * (len(bounds) + 1))
            for name, (_, fixed) in HISTOGRAMS.items()
        }
        self._histograms["vllm:time_per_output_token_seconds"] = self._histograms["vllm:inter_token_latency_seconds"]
        self.counters = dict.fromkeys(COUNTERS, 0)
        self.finished = dict.fromkeys(FINISHES, 0)
        self.responses: dict[int, int] = {}
        self.rejected = {"max_num_queued_reqs": 0, "max_num_queued_tokens": 0}
        self._step_tokens = 0

    def __getitem__(self, name: str) -> Histogram:
        return self._histograms[name]

    def token_gap(self, seconds: float, tokens: int) -> None:
        """Tokens that came together after a gap: the first waited for all of it, the others not at all."""
        gaps = self._histograms["vllm:inter_token_latency_seconds"]
        gaps.observe(seconds)
        if tokens > 1:
            gaps.observe(0.0, tokens - 1)

    def step_tokens(self, tokens: int) -> None:
        """Tokens of the step whose news the reader has now."""
        self._step_tokens += tokens

    def turned(self, seconds: float) -> None:
        """A cycle of the reader is over: it had the news of one step, or of steps that ended together, or none."""
        self._histograms["blink:turn_seconds"].observe(seconds)
        if self._step_tokens:
            self._histograms["vllm:iteration_tokens_total"].observe(self._step_tokens)
            self._step_tokens = 0

    def render(self, gauges: Iterable[tuple[str, str, dict[str, str], float]]) -> bytes:
        """The text format, version 0.0.4. `gauges` are (name, help, labels, value), those of one name together."""
        lines = [*self._counter_lines(), *self._histogram_lines()]
        last = ""
        for name, text, labels, value in gauges:
            if name != last:
                lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge"]
                last = name
            more = "".join(f',{key}="{_escaped(entry)}"' for key, entry in labels.items())
            lines.append(f"{name}{{{self._labels}{more}}} {_number(value)}")
        return ("\n".join(lines) + "\n").encode()

    def _counter_lines(self) -> Iterator[str]:
        for name, value in self.counters.items():
            yield f"# HELP {name}_total {COUNTERS[name]}"
            yield f"# TYPE {name}_total counter"
            yield f"{name}_total{{{self._labels}}} {value}"
        yield from self._labelled(
            "vllm:request_success", "Requests that ended, by reason.", self._labels, "finished_reason", self.finished
        )
        by_source = {
            "local_compute": self.counters["vllm:prompt_tokens"],
            "local_cache_hit": 0,
            "external_kv_transfer": 0,
        }
        yield from self._labelled(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV is from.",
            self._labels,
            "source",
            by_source,
        )
        yield from self._labelled(
            "vllm:admission_rejections", "Requests that were not taken in.", self._model_only, "reason", self.rejected
        )
        by_status = {str(status): number for status, number in sorted(self.responses.items())}
        yield from self._labelled("blink:responses", "Responses by status.", self._labels, "status", by_status)

    @staticmethod
    def _labelled(name: str, text: str, labels: str, key: str, values: dict[str, int]) -> Iterator[str]:
        yield f"# HELP {name}_total {text}"
        yield f"# TYPE {name}_total counter"
        for label, value in values.items():
            yield f'{name}_total{{{labels},{key}="{label}"}} {value}'

    def _histogram_lines(self) -> Iterator[str]:
        for name, histogram in self._histograms.items():
            yield f"# HELP {name} {HISTOGRAMS[name][0]}"
            yield f"# TYPE {name} histogram"
            seen = 0
            for bound, count in zip((*map(_number, histogram.bounds), "+Inf"), histogram.counts, strict=True):
                seen += count
                yield f'{name}_bucket{{{self._labels},le="{bound}"}} {seen}'
            yield f"{name}_sum{{{self._labels}}} {_number(histogram.total)}"
            yield f"{name}_count{{{self._labels}}} {seen}"


def _series(most: int) -> Iterator[int]:
    power = 1
    while True:
        for step in (1, 2, 5):
            if step * power > most:
                return
            yield step * power
        power *= 10


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(float(value))
