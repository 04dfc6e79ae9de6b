"""Where the time of a request went, from HTTP to its last token: on average, and of two requests that really were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

import numpy as np

from blink.common import metrics
from blink.common.distribution import Distribution
from blink.common.results import I64, TTFT_PARTS
from blink.common.units import NS_PER_MS
from blink.report.comparison_sections import milliseconds
from blink.report.html.page import note
from blink.report.rundir import StoredRun
from blink.report.table import PART_WORDS

WITH_RING = ("blink", "cpu-resident")
ENGINE_WORDS = {
    "slot_wait": "wait for a place",
    "link": "reach the engine's core",
    "ring_wait": "wait to be scheduled",
    "publish": "sample and hand over",
    "read": "reach the server",
}
"""Parts of a host-driven engine, which has no ring and no DPU."""
ON_GPU = ("prefill", "publish")


@dataclass(frozen=True, slots=True)
class Waterfall:
    """One request, or the mean of many: (part, ns) in the order of time."""

    title: str
    more: str
    parts: list[tuple[str, float]]
    decode_ns: float


def cards(run: StoredRun) -> str:
    """The mean, a typical request and a slow one, each as bars over its time to first token, then over all of it."""
    words = PART_WORDS if run.summary["backend"] in WITH_RING else {**PART_WORDS, **ENGINE_WORDS}
    shown = "".join(_card(one, words) for one in waterfalls(run.requests))
    text = (
        "Each card has two scales: the parts are drawn over the time to its first token, the last three lines over the "
        "whole request. Orange: on the GPU. A typical request is that of the median TTFT, a slow one that of the 99th "
        "percentile."
    )
    return f'<div class="cards">{shown}</div>{note(text)}'


def waterfalls(requests: dict[str, I64]) -> list[Waterfall]:
    """Of the completed requests: the mean, and those at two ranks by TTFT. Empty if none was completed."""
    done = metrics.completed(requests)
    count = len(done["sent_ns"])
    if not count:
        return []
    means = [(name, Distribution.of(done[name]).mean() or 0.0) for name in TTFT_PARTS]
    decode = Distribution.of(done["last_token_ns"] - done["first_token_ns"]).mean() or 0.0
    order = np.argsort(done["ttft_ns"], kind="stable")
    found = [Waterfall("On average", f"{count:,} requests", means, decode)]
    for title, thousandths in (("A typical request", 500), ("A slow request", 990)):
        row = int(order[(count - 1) * thousandths // 1000])
        parts = [(name, float(done[name][row])) for name in TTFT_PARTS]
        span = float(done["last_token_ns"][row] - done["first_token_ns"][row])
        which = f"no. {done['request_id'][row]}: {done['prompt_tokens'][row]:,} in, {done['output_tokens'][row]:,} out"
        found.append(Waterfall(title, which, parts, span))
    return found


def _card(one: Waterfall, words: Mapping[str, str]) -> str:
    first = sum(value for _, value in one.parts)
    lines, begin = [], 0.0
    for name, value in one.parts:
        part = name.removesuffix("_ns")
        lines.append(_line("span", words[part], value, begin, first, "gpu" if part in ON_GPU else ""))
        begin += value
    whole = first + one.decode_ns
    lines += [
        _line("b", "first token", first, 0.0, whole, ""),
        _line("b", "then the others", one.decode_ns, first, whole, "decode"),
        f'<b>in all</b><b class="value">{_ms(whole)}</b><span></span>',
    ]
    title = f'<h3>{escape(one.title)} <span class="dim">{escape(one.more)}</span></h3>'
    return f'<div class="card">{title}<div class="steps">{"".join(lines)}</div></div>'


def _line(tag: str, words: str, value: float, begin: float, total: float, colour: str) -> str:
    left, width = 100 * begin / (total or 1.0), 100 * value / (total or 1.0)
    bar = f'<i class="{colour}" style="left: {min(left, 99.0):.2f}%; width: {width:.2f}%"></i>'
    return f'<{tag}>{escape(words)}</{tag}><{tag} class="value">{_ms(value)}</{tag}><span class="track">{bar}</span>'


def _ms(value_ns: float) -> str:
    value = milliseconds(value_ns / NS_PER_MS)
    return value if value.endswith("s") else f"{value} ms"
