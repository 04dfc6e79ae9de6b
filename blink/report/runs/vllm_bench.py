"""The result of `vllm bench serve --save-result`, with the samples of `--save-detailed` where it has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from blink.common.errors import InputError
from blink.common.results import I64
from blink.report.runs.fields import Fields
from blink.report.runs.measured import COUNTS, LATENCIES, STATISTICS, THROUGHPUTS, AnyRun, latency_figures, nanoseconds

MARKERS = ("completed", "request_throughput")
DETAILS = ("output_lens", "ttfts", "itls")


def is_vllm(document: Any) -> bool:
    """Whether a JSON document is of this form."""
    return isinstance(document, dict) and all(name in document for name in MARKERS)


def read_vllm(document: Any, source: str) -> AnyRun:
    """The run. Raises InputError that names file, field and value."""
    fields = Fields(document, source)
    samples = _samples(fields)
    names = [f"{label}_{name}_ms" for label in ("mean", "p50", *STATISTICS) for name in LATENCIES]
    said = {
        name: fields.number(name) for name in (*COUNTS, *(one for one in THROUGHPUTS if one != "request_rate"), *names)
    }
    said |= {"request_goodput": said["request_goodput"] or None, "request_rate": _rate(fields)}
    for name in LATENCIES:
        said[f"median_{name}_ms"] = said[f"median_{name}_ms"] or said.pop(f"p50_{name}_ms", None)
    known = {name: value for name, value in said.items() if value is not None}
    notes = () if samples else ("it has no samples, as with --save-detailed: only the figures that it states",)
    label = document.get("label") or document.get("model_id") or source
    # Blink's own summary has the same names on purpose.
    made_by = "Blink" if isinstance(document.get("blink"), dict) else "vllm bench serve"
    return AnyRun(str(label), made_by, {**latency_figures(samples), **known}, samples, notes=notes)


def _rate(fields: Fields) -> float | None:
    """The offered rate; all at once is the word inf there."""
    return None if isinstance(fields.found.get("request_rate"), str) else fields.number("request_rate")


def _samples(fields: Fields) -> dict[str, I64]:
    """Of the requests that succeeded. E2E is the first token and every gap after it, if it is not stated."""
    if not all(fields.found.get(name) for name in DETAILS):
        return {}
    tokens, first = fields.numbers("output_lens"), fields.numbers("ttfts")
    gaps = fields.found["itls"]
    errors = fields.found.get("errors") or [""] * len(tokens)
    if not isinstance(gaps, list) or not len(tokens) == len(first) == len(gaps) == len(errors):
        raise InputError(f"{fields.where}: output_lens, ttfts, itls, errors: must be lists of one length")
    each = [Fields({"itls": row}, f"{fields.where}: itls[{index}]").numbers("itls") for index, row in enumerate(gaps)]
    good = [index for index in range(len(tokens)) if not errors[index] and tokens[index] > 0]
    stated = fields.numbers("latencies")
    whole = [stated[i] if len(stated) == len(tokens) else first[i] + sum(each[i]) for i in good]
    many = [place for place, index in enumerate(good) if tokens[index] > 1]
    spans = [(whole[place] - first[good[place]]) / (tokens[good[place]] - 1) for place in many]
    return {
        "ttft": nanoseconds([first[index] for index in good]),
        "tpot": nanoseconds(spans),
        "itl": nanoseconds(np.concatenate([each[index] for index in good]) if good else []),
        "e2el": nanoseconds(whole),
    }
