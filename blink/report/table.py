"""The table at the end of a run: what a planner asks first, in 80 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.bar import Bar
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

WIDTH = 80
FIGURES = (("mean", "mean"), ("p50", "P50"), ("p90", "P90"), ("p99", "P99"), ("p999", "P99.9"))
LATENCIES = (
    ("ttft", "TTFT", "time to first token"),
    ("tpot", "TPOT", "per token after it"),
    ("itl", "ITL", "between two tokens"),
    ("e2el", "E2E", "until the last token"),
)
PART_WORDS = {
    "ingress": "reach the frontend",
    "tokenize": "tokenize the prompt",
    "slot_wait": "wait for a slot",
    "link": "write into GPU memory",
    "ring_wait": "wait for the claim",
    "prefill": "prefill",
    "publish": "publish the token",
    "read": "read it from the DPU",
    "detokenize": "turn it into text",
    "delivery": "reach the client",
}
BAR_WIDTH = 24
WATERFALL_TEXT_WIDTH = 50


def print_table(summary: dict[str, Any], console: Console) -> None:
    """Print the summary of a run; no wider than the console, and no wider than 80 columns."""
    width = min(WIDTH, console.width)
    console.print(Padding(run_table(summary, width), (1, 0)), width=width)


def run_table(summary: dict[str, Any], width: int = WIDTH) -> RenderableType:
    """The whole table as a rich renderable of that width, from the dict of summary.json."""
    blink = summary["blink"]
    parts: list[RenderableType] = [_title(summary)]
    if blink["partial"]:
        parts.append(Text("Stopped before its end: the figures cover what had happened by then.", style="bold yellow"))
    parts += [_load(summary), _section("Latency in ms, completed requests"), _latencies(summary)]
    if summary["mean_ttft_ms"] is not None:
        parts += [
            _section(f"Where the first token's {_ms(summary['mean_ttft_ms'])} ms go, on average"),
            _waterfall(blink, width),
        ]
    parts += [_section("GPU"), _gpu(blink), Text(), _limit(blink)]
    if blink["notes"]:
        parts += [_section("Notes"), *(_bullet(note) for note in blink["notes"])]
    return Group(*parts)


def _title(summary: dict[str, Any]) -> RenderableType:
    return Text.assemble((str(summary["label"]), "bold"), f"  {summary['model_id']}, seed {summary['blink']['seed']}")


def _section(words: str) -> RenderableType:
    return Padding(Rule(Text(words, style="bold"), align="left", style="dim"), (1, 0, 0, 0))


def _load(summary: dict[str, Any]) -> RenderableType:
    outcomes = {name: count for name, count in summary["blink"]["outcomes"].items() if count}
    rows = [
        ("sent", f"{summary['num_prompts']:,} requests in {_number(summary['duration'])} s{_rate(summary)}"),
        ("ended", ", ".join(f"{count:,} {name}" for name, count in outcomes.items())),
        *((("refused", f"{count:,}: {why}")) for why, count in summary["blink"]["refusals"].items()),
        ("throughput", f"{_number(summary['request_throughput'])} requests/s, {_tokens(summary)}"),
    ]
    if summary["request_goodput"] is not None:
        share = _percent(_ratio(summary["request_goodput"], summary["request_throughput"]))
        rows.append(
            ("goodput", f"{_number(summary['request_goodput'])} requests/s within the SLO, {share} of completed")
        )
    rows.append(("at once", f"{summary['max_concurrent_requests']:,} requests under way at most"))
    return _pairs(rows)


def _rate(summary: dict[str, Any]) -> str:
    if summary["max_concurrency"] is not None:
        return f", from {summary['max_concurrency']:,} clients in a closed loop"
    if summary["request_rate"] is None:
        return ", all at once"
    return f", offered at {_number(summary['request_rate'])} requests/s"


def _tokens(summary: dict[str, Any]) -> str:
    return (
        f"{_number(summary['output_throughput'])} output tokens/s, {_number(summary['total_token_throughput'])} in all"
    )


def _latencies(summary: dict[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column()
    table.add_column(style="dim", no_wrap=True, overflow="ellipsis")
    for _ in FIGURES:
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", "", *(Text(label, style="dim") for _, label in FIGURES))
    for name, label, words in LATENCIES:
        table.add_row(Text(label, style="bold"), words, *(_ms(summary[f"{figure}_{name}_ms"]) for figure, _ in FIGURES))
    return table


def _waterfall(blink: dict[str, Any], width: int) -> RenderableType:
    parts = {name: value or 0.0 for name, value in blink["ttft_parts_mean_ms"].items()}
    total = sum(parts.values()) or 1.0
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(no_wrap=True, min_width=len("detokenize"))
    table.add_column(style="dim", no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True, min_width=6)
    table.add_column(justify="right", no_wrap=True, min_width=6)
    table.add_column(no_wrap=True)
    bar_width = max(4, min(BAR_WIDTH, width - WATERFALL_TEXT_WIDTH))
    begin = 0.0
    for name, value in parts.items():
        bar = Bar(total, begin, begin + value, width=bar_width, color="cyan")
        table.add_row(name, PART_WORDS.get(name, ""), _ms(value), _percent(value / total), bar)
        begin += value
    return table


def _gpu(blink: dict[str, Any]) -> RenderableType:
    shares, padding = blink["time_share"], blink["padding_share"]
    time = ", ".join(f"{_percent(share)} {name}" for name, share in shares.items())
    launches = blink["decode_launches"], blink["prefill_launches"]
    relaunches = blink["relaunches"]
    padded = _percent(padding["decode_rows"]), _percent(padding["prefill_tokens"])
    return _pairs(
        [
            ("time", f"{time}"),
            ("batch", _occupancy(blink["batch"], "sequences")),
            ("KV cache", _occupancy(blink["kv_blocks"], "blocks")),
            ("ring", f"{blink['slots_in_use_max']:,} slots in use at most"),
            (
                "launches",
                f"{sum(launches):,}: {launches[0]:,} decode, {launches[1]:,} prefill; {relaunches:,} relaunches",
            ),
            (
                "padding",
                f"{padded[0]} of decode rows, {padded[1]} of prefill tokens",
            ),
        ]
    )


def _occupancy(of: dict[str, Any], noun: str) -> str:
    mean = f"{_number(of['mean'])} {noun} on average ({_percent(of['share'])})"
    return f"{mean}, {of['max']:,} at most, limit {of['limit']:,}"


def _limit(blink: dict[str, Any]) -> RenderableType:
    limit = blink["limited_by"]
    style = "bold yellow" if limit["name"] else "green"
    return _pairs([("limited by", Text(limit["sentence"], style=style))])


def _bullet(note: str) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_row("-", Text(note))
    return table


def _pairs(rows: Sequence[tuple[str, str | Text]]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True, min_width=len("throughput"))
    table.add_column()
    for label, value in rows:
        table.add_row(label, value if isinstance(value, Text) else Text(value))
    return table


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share:.1%}"


def _ms(value: float | None) -> str:
    """Milliseconds with three digits that count, and no more than three after the point."""
    if value is None:
        return "-"
    return (
        f"{value:,.0f}"
        if value >= 1000
        else f"{value:.1f}"
        if value >= 100
        else f"{value:.2f}"
        if value >= 1
        else f"{value:.3f}"
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return (
        f"{value:,.0f}" if value >= 1000 or value == int(value) else f"{value:.1f}" if value >= 100 else f"{value:.2f}"
    )
