"""What a load generator that runs for a fixed time sees of a run: the figures of one point.

The generator sends for `duration_ns`, then stops looking: latencies are those of the requests that were complete by then.
Throughput leaves out the time in which the batch fills: it is what was delivered after `warmup_ns`, and what is offered in
the same time is what was sent. Tokens of a request are taken to arrive evenly between its first and its last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common import metrics
from blink.common.distribution import PERCENTILES, Distribution
from blink.common.results import I64, Outcome, RunResult
from blink.common.units import NS_PER_MS, NS_PER_S

Figures = dict[str, float | None]


def figures(result: RunResult, duration_ns: int | None, warmup_ns: int = 0) -> Figures:
    """Figures of a run by name, None where there is no sample; without a duration, over the whole run."""
    sent = result.requests["sent_ns"]
    start = int(sent[sent >= 0].min(initial=0))
    end = start + (result.duration_ns if duration_ns is None else duration_ns)
    begin = start + warmup_ns
    rows = {name: column[sent >= 0] for name, column in result.requests.items()}
    done = metrics.completed(rows)
    done = {name: column[done["last_token_ns"] <= end] for name, column in done.items()}
    seconds = (end - begin) / NS_PER_S
    delivered = _delivered(rows, end) - _delivered(rows, begin)
    offered = (rows["sent_ns"] >= begin) & (rows["sent_ns"] < end) & (rows["outcome"] != Outcome.REFUSED)
    prefilled = (rows["first_token_ns"] >= begin) & (rows["first_token_ns"] < end)
    found: Figures = {
        "sent": len(rows["sent_ns"]),
        "completed": len(done["sent_ns"]),
        "seconds": seconds,
        "delivered_tokens": delivered,
        "offered_tokens": float(rows["output_tokens"][offered].sum()),
        "prefilled_tokens": float(rows["prompt_tokens"][prefilled].sum()),
        "output_tok_s": delivered / seconds if seconds > 0 else None,
        "makespan_s": result.duration_ns / NS_PER_S,
        "wall_w": result.accounts.get("wall_w"),
        "p99_itl_ms": _ms(Distribution.of_weighted(result.itl).percentile(990)),
    }
    samples: tuple[tuple[str, NDArray[Any]], ...] = (
        ("ttft", metrics.ttft_ns(done)),
        ("tpot", metrics.tpot_ns(done)),
        ("e2e", metrics.e2e_ns(done)),
    )
    for name, values in samples:
        spread = Distribution.of(values)
        found[f"mean_{name}_ms"] = _ms(spread.mean())
        found.update({f"{label}_{name}_ms": _ms(spread.percentile(at)) for label, at in PERCENTILES.items()})
    return found


def _delivered(rows: Mapping[str, I64], at_ns: int) -> float:
    """Output tokens at the clients by then."""
    begun = (rows["first_token_ns"] >= 0) & (rows["first_token_ns"] <= at_ns)
    first, last, count = (rows[name][begun] for name in ("first_token_ns", "last_token_ns", "output_tokens"))
    after = np.minimum(np.maximum(at_ns - first, 0), np.maximum(last - first, 0))
    # Whole numbers: no sum of floats, whose order would depend on the machine.
    return float((1 + (count - 1) * after // np.maximum(last - first, 1))[count > 0].sum())


def _ms(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_MS
