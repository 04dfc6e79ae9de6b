"""The report of one run: its latencies, what was under way at each moment, and where a request's time went."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from blink.common import metrics
from blink.common.config.load import read_toml
from blink.common.states import SLOT_COUNT
from blink.report import plot
from blink.report.comparison_plot import NAMES
from blink.report.comparison_sections import milliseconds, number, percent, ratio
from blink.report.html import ring_chart, waterfall
from blink.report.html.chart import inline_svg
from blink.report.html.page import Page, Section, charts, details, items, note, pre, table
from blink.report.rundir import SCENARIO_NAME, StoredRun, read_run
from blink.report.table import FIGURES, LATENCIES

Summary = dict[str, Any]

SHARES = (
    ("decode", "green", "decode"),
    ("prefill", "orange", "prefill"),
    ("loop", "purple", "scheduler"),
    ("idle", "grid", "idle"),
)


def page(folder: Path) -> Page:
    """The report of a run's folder. Raises InputError if it is none."""
    run = read_run(folder)
    file = folder / SCENARIO_NAME
    scenario = read_toml(file) if file.is_file() else {}
    summary = run.summary
    sections = [Section("Latency, completed requests", _latencies(summary))]
    if metrics.ttft_ns(run.requests).size:
        sections += [
            Section("Where a request's time goes", waterfall.cards(run)),
            Section("Over time", _timelines(run, scenario)),
        ]
    if fleet := summary["blink"].get("fleet"):
        sections.append(Section("The replicas", _replicas(fleet)))
    sections += [Section("The GPU", _gpu(summary)), Section("How it ended", _ended(summary))]
    if summary["blink"]["notes"]:
        sections.append(Section("Notes", items(summary["blink"]["notes"])))
    if file.is_file():
        sections.append(Section("The scenario", _scenario(scenario, file.read_text(encoding="utf-8"))))
    return Page(
        title=str(summary["label"]),
        setting=_setting(summary, scenario),
        answer=_answer(summary),
        tiles=_tiles(summary),
        warnings=["Stopped before its end: the figures cover what had happened by then."]
        if summary["blink"]["partial"]
        else [],
        sections=sections,
    )


def _setting(summary: Summary, scenario: dict[str, Any]) -> str:
    gpu = scenario.get("gpu", {})
    count = gpu.get("tensor_parallel", 1)
    on = f"{count} x {gpu['profile']}" if count > 1 else str(gpu.get("profile", ""))
    replicas = len(summary["blink"].get("fleet", {}).get("replicas", ()))
    many = f"{replicas} replicas" if replicas else ""
    parts = [str(summary["model_id"]), on, many, f"seed {summary['blink']['seed']}"]
    return ", ".join(part for part in parts if part)


def _answer(summary: Summary) -> str:
    """Who served what how fast, how many kept the objective, and what held it up."""
    system = NAMES.get(summary["backend"], str(summary["backend"]))
    load = _load_words(summary)
    served = f"{system} completed {summary['completed']:,} of {summary['num_prompts']:,} requests{load}"
    if summary["median_ttft_ms"] is None:
        return f"{served}."
    first = (
        f"half of the first tokens came within {_time(summary['median_ttft_ms'])}, 99% within "
        f"{_time(summary['p99_ttft_ms'])}"
    )
    parts = [f"{served}: {first}."]
    if summary["request_goodput"] is not None and summary["request_throughput"]:
        kept = summary["request_goodput"] / summary["request_throughput"]
        parts.append(f"{kept:.1%} of the completed kept the objective.")
    if summary["blink"]["limited_by"]["name"]:
        parts.append(summary["blink"]["limited_by"]["sentence"])
    return " ".join(parts)


def _load_words(summary: Summary) -> str:
    if summary["max_concurrency"] is not None:
        return f" of {summary['max_concurrency']:,} clients"
    if summary["request_rate"] is None:
        return ", sent at once"
    return f" at {summary['request_rate']:.3g} requests/s"


def _time(value_ms: float) -> str:
    text = milliseconds(value_ms)
    return text if text.endswith("s") else f"{text} ms"


def _tiles(summary: Summary) -> list[tuple[str, str]]:
    accounts = summary["blink"]["accounts"]
    found = [
        (summary["p99_ttft_ms"], _time, "P99 TTFT"),
        (summary["p99_tpot_ms"], _time, "P99 TPOT"),
        (summary["p99_itl_ms"], _time, "P99 ITL"),
        (summary["output_throughput"], number, "output tokens/s"),
        (summary["request_goodput"], number, "goodput, requests/s"),
        (accounts.get("gpu_busy"), percent, "GPU busy"),
        (accounts.get("energy_mj_per_token"), number, "mJ an output token"),
        (accounts.get("cost_usd_per_million_tokens"), lambda value: f"$ {ratio(value)}", "a million output tokens"),
    ]
    return [(write(value), words) for value, write, words in found if value is not None]


def _latencies(summary: Summary) -> str:
    rows = []
    for name, label, words in LATENCIES:
        values = [summary[f"{figure}_{name}_ms"] for figure, _ in FIGURES]
        cells = ("" if value is None else milliseconds(value) for value in values)
        rows.append([f'<b>{label}</b> <span class="dim">{escape(words)}</span>', *cells])
    return table(("ms", *(label for _, label in FIGURES)), rows)


def _timelines(run: StoredRun, scenario: dict[str, Any]) -> str:
    requests, blink = run.requests, run.summary["blink"]
    blocks = blink["kv_blocks"]["limit"]
    start_ns = int(requests["sent_ns"].min())
    slo = scenario.get("slo", {})
    shown = [
        inline_svg("t0", "Latency of each request over time",
                   lambda figure: plot.latency_over_time(_axes(figure), requests, start_ns, slo)),
        inline_svg("t1", "Requests that run and that wait, over time",
                   lambda figure: plot.load_over_time(_axes(figure), requests, start_ns, blink["batch"]["limit"])),
        inline_svg("t2", "KV blocks that are held, over time",
                   lambda figure: plot.memory_over_time(_axes(figure), requests, start_ns, blocks)),
        ring_chart.svg(run, start_ns),
        inline_svg("t4", "Distributions of TPOT, TTFT and E2E latency",
                   lambda figure: plot.distributions(figure.subplots(), requests)),
    ]  # fmt: skip
    return charts(svg for svg in shown if svg)


def _axes(figure: Any) -> Any:
    axes = figure.subplots()
    axes.set_xlabel("s since the first request")
    return _Labelled(axes)


class _Labelled:
    """Axes whose label of time stays when a panel, made to stand above others, would take it away."""

    def __init__(self, axes: Any) -> None:
        self._axes = axes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._axes, name)

    def set_xlabel(self, text: str) -> None:
        self._axes.set_xlabel(text or "s since the first request")


def _gpu(summary: Summary) -> str:
    blink = summary["blink"]
    shares = blink["time_share"]
    bar = "".join(
        f'<i style="width: {100 * (shares[name] or 0):.3f}%; background: var(--{colour})"></i>'
        for name, colour, _ in SHARES
    )
    words = ", ".join(f"{percent(shares[name] or 0)} {word}" for name, _, word in SHARES)
    batch, blocks, padding = blink["batch"], blink["kv_blocks"], blink["padding_share"]
    rows = [
        ("batch, sequences", _plain(batch["mean"]), f"{batch['max']:,}", f"{batch['limit']:,}"),
        ("KV blocks", _plain(blocks["mean"]), f"{blocks['max']:,}", f"{blocks['limit']:,}"),
    ]
    if summary["backend"] in waterfall.WITH_RING:
        rows.append(("slots of the ring", "", f"{blink['slots_in_use_max']:,}", f"{SLOT_COUNT:,}"))
    launches = f"{blink['decode_launches']:,} decode and {blink['prefill_launches']:,} prefill launches"
    padded = f"{_share(padding['decode_rows'])} of decode rows, {_share(padding['prefill_tokens'])} of prefill tokens"
    lines = [
        f"{launches}, {blink['relaunches']:,} relaunches",
        f"padding: {padded}",
        blink["limited_by"]["sentence"],
    ]
    return (
        f'<div class="stack">{bar}</div>{note(f"Of the time: {words}.")}'
        f"{table(('', 'mean', 'most', 'limit'), rows)}{items(lines)}"
    )


def _replicas(fleet: dict[str, Any]) -> str:
    """What each did of the requests that the router shared out."""
    rows = [
        [
            f"replica {one['index']}",
            escape(one["state"]),
            f"{one['completed']:,}",
            f"{one['under_way_max']:,}",
            "" if one["gpu_busy"] is None else percent(one["gpu_busy"]),
            number(one["paid_s"]),
        ]
        for one in fleet["replicas"]
    ]
    hosts = f"{fleet['hosts']} host{'s' if fleet['hosts'] != 1 else ''}"
    headings = ("", "at the end", "completed", "under way at most", "GPU busy", "paid for, s")
    return note(f"Router: {fleet['router']}; on {hosts}.") + table(headings, rows, folds=True)


def _plain(value: float | None) -> str:
    return "" if value is None else number(value)


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)


def _ended(summary: Summary) -> str:
    blink = summary["blink"]
    rows = [(escape(name), f"{count:,}") for name, count in blink["outcomes"].items() if count]
    refused = [f"{count:,} refused: {why}" for why, count in blink["refusals"].items()]
    most = f"{summary['max_concurrent_requests']:,} requests were under way at most"
    more = f"{most}; the run took {number(summary['duration'])} s."
    return table(("outcome", "requests"), rows) + items([*refused, more])


def _scenario(scenario: dict[str, Any], text: str) -> str:
    said = scenario.get("description")
    return (items([said]) if said else "") + details("scenario.toml", pre(text))
