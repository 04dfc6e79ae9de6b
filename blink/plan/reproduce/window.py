"""What a load generator that runs for a fixed time reports of a run: the figures of one point.

In the manner of guidellm, with which the published load was made: it sends for `duration_ns` and stops there. Only the
requests that were complete by then count: for latencies, and for throughput, which is their tokens over the duration.
Its time per output token is the whole latency of a request over its tokens, the first one included, and its percentiles
weigh each request by its tokens (`tpot_e2e` here; `tpot` is the usual one, after the first token, a request a sample).

`delivered_tokens` is what no generator reports: tokens at the clients between `warmup_ns` and the end, of complete
requests or not. It gives the capacity of a system without the run's beginning and end.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from blink.common import metrics
from blink.common.distribution import PERCENTILES, Distribution
from blink.common.results import I64, RunResult, WeightedValues
from blink.common.units import NS_PER_MS, NS_PER_S

Figures = dict[str, float | None]


def figures(result: RunResult, duration_ns: int | None, warmup_ns: int = 0, asked_tokens: int = 0) -> Figures:
    """Figures of a run by name, None where there is no sample; without a duration, over the whole run.

    `asked_tokens` are the output tokens of all requests of the load, served or not.
    """
    sent = result.requests["sent_ns"]
    start = int(sent[sent >= 0].min(initial=0))
    whole_ns = result.duration_ns if duration_ns is None else duration_ns
    rows = {name: column[sent >= 0] for name, column in result.requests.items()}
    done = metrics.completed(rows)
    in_time = done["last_token_ns"] <= start + whole_ns
    done = {name: column[in_time] for name, column in done.items()}
    found: Figures = {
        "requests": len(sent),
        "asked_tokens": asked_tokens,
        "completed": len(done["sent_ns"]),
        "seconds": whole_ns / NS_PER_S,
        "output_tokens": int(done["output_tokens"].sum()),
        "prompt_tokens": int(done["prompt_tokens"].sum()),
        "steady_seconds": (whole_ns - warmup_ns) / NS_PER_S,
        "delivered_tokens": delivered_tokens(rows, start + whole_ns) - delivered_tokens(rows, start + warmup_ns),
        "makespan_s": result.duration_ns / NS_PER_S,
        "wall_w": result.accounts.get("wall_w"),
        "p99_itl_ms": _ms(Distribution.of_weighted(result.itl).percentile(990)),
    }
    for name, spread in _latencies(done).items():
        found[f"mean_{name}_ms"] = _ms(spread.mean())
        found.update({f"{label}_{name}_ms": _ms(spread.percentile(at)) for label, at in PERCENTILES.items()})
    return found


def _latencies(done: Mapping[str, I64]) -> dict[str, Distribution]:
    e2e, tokens = metrics.e2e_ns(done), done["output_tokens"]
    each = WeightedValues(e2e // np.maximum(tokens, 1), tokens)
    return {
        "ttft": Distribution.of(metrics.ttft_ns(done)),
        "tpot": Distribution.of(metrics.tpot_ns(done)),
        "tpot_e2e": Distribution.of_weighted(each),
        "e2e": Distribution.of(e2e),
    }


def delivered_tokens(rows: Mapping[str, I64], at_ns: int) -> int:
    """Output tokens at the clients by then, those of a request evenly spread between its first and its last."""
    begun = (rows["first_token_ns"] >= 0) & (rows["first_token_ns"] <= at_ns)
    first, last, count = (rows[name][begun] for name in ("first_token_ns", "last_token_ns", "output_tokens"))
    after = np.minimum(np.maximum(at_ns - first, 0), np.maximum(last - first, 0))
    # Whole numbers: no sum of floats, whose order would depend on the machine.
    return int((1 + (count - 1) * after // np.maximum(last - first, 1))[count > 0].sum())


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS
