"""The tables of a comparison as data: rows, columns, and what stands in each cell. Text and Markdown share them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Cell = dict[str, Any] | float | None
"""An estimate with its interval, a plain value, or nothing."""


@dataclass(frozen=True, slots=True)
class Column:
    """One figure: where a cell has it, its heading in two lines, and how its value is written."""

    name: str
    heading: tuple[str, str]
    write: Callable[[float], str]


Row = tuple[str, str, list[Cell]]
LABEL_MAX = 12


@dataclass(frozen=True, slots=True)
class Section:
    """A table. `rows` holds (group, label, values), the values in the order of the columns.

    The group is the system; with several axes, or long labels, it stands on a line of its own (`nested`), together with
    all conditions but the innermost.
    """

    title: str
    columns: tuple[Column, ...]
    rows: list[Row]
    nested: bool


def milliseconds(value: float) -> str:
    """Three digits that count; from ten seconds on in seconds."""
    return f"{value / 1000:,.0f} s" if value >= 99_950 else f"{value / 1000:.1f} s" if value >= 9_995 else number(value)


def seconds(value: float) -> str:
    """Milliseconds, written in seconds."""
    return number(value / 1000)


def number(value: float) -> str:
    """Three digits that count, and no fewer than the whole part has."""
    for least, digits in ((99.95, 0), (9.995, 1), (0.9995, 2)):
        if abs(value) >= least:
            return f"{value:,.{digits}f}"
    return f"{value:.3f}"


def percent(value: float) -> str:
    """A share."""
    return f"{100 * value:.1f}%"


def ratio(value: float) -> str:
    """A factor."""
    return number(value) if value >= 9.995 else f"{value:.2f}"


LATENCY = (
    Column("output_throughput", ("output", "tok/s"), number),
    Column("median_ttft_ms", ("TTFT", "P50"), milliseconds),
    Column("p99_ttft_ms", ("TTFT", "P99"), milliseconds),
    Column("median_tpot_ms", ("TPOT", "P50"), milliseconds),
    Column("p99_tpot_ms", ("TPOT", "P99"), milliseconds),
    Column("p99_itl_ms", ("ITL", "P99"), milliseconds),
    Column("median_e2el_ms", ("E2E s", "P50"), seconds),
    Column("p99_e2el_ms", ("E2E s", "P99"), seconds),
)
RESOURCES = (
    Column("gpu_busy", ("GPU", "busy"), percent),
    Column("wall_w", ("wall", "W"), number),
    Column("energy_mj_per_token", ("mJ a", "token"), number),
    Column("cost_usd_per_million_tokens", ("$ a M", "tokens"), number),
)
COUNTERS = (
    Column("llc_miss_rate", ("LLC", "misses"), percent),
    Column("dtlb_misses_ratio", ("dTLB", "misses"), lambda value: f"x{ratio(value)}"),
    Column("walk_active_ratio", ("walk", "cycles"), lambda value: f"x{ratio(value)}"),
    Column("llc_stall_ratio", ("LLC", "stalls"), lambda value: f"x{ratio(value)}"),
)
HEADLINES = {
    "output_throughput": "throughput",
    "p99_ttft_ms": "P99 TTFT",
    "p99_tpot_ms": "P99 TPOT",
    "p99_itl_ms": "P99 ITL",
    "energy_mj_per_token": "energy a token",
}


def sections(comparison: dict[str, Any]) -> list[Section]:
    """The tables of a comparison, those without a row left out."""
    first, axes = comparison["axes"]["system"][0], comparison["axes"]
    of_ratio = tuple(Column(one.name, _bare(one.heading), ratio) for one in LATENCY)
    columns = RESOURCES + (COUNTERS if any(cell["counters"] for cell in comparison["cells"]) else ())
    tables: list[tuple[str, str, tuple[Column, ...]]] = [
        ("figures", "Throughput, and latency in ms", LATENCY),
        ("over_first", f"Ratio over {first} under the same condition", of_ratio),
        ("over_isolated", "Ratio over the same system without other jobs", of_ratio),
    ]
    if len(axes["mitigations"]) > 1:
        tables.append(("over_unmitigated", "Ratio over the same without mitigation, beside other jobs", of_ratio))
    tables.append(("resources", "GPU, power, cost; the engine's cores", columns))
    labels = [condition(cell["key"], axes) for cell in comparison["cells"]]
    nested = len(_several(axes)) > 1 or max(map(len, labels)) > LABEL_MAX
    found = [Section(title, shown, _rows(comparison, kind, shown, nested), nested) for kind, title, shown in tables]
    return [section for section in found if section.rows]


def condition(key: dict[str, Any], axes: dict[str, list[Any]]) -> str:
    """What a row's other columns hold for, in words; axes of one value are left to the title."""
    return ", ".join(words(name, key[name]) for name in _several(axes) if name in key)


def _several(axes: dict[str, list[Any]]) -> list[str]:
    """Axes of conditions that have more than one value."""
    return [name for name, values in axes.items() if name != "system" and len(values) > 1]


def words(name: str, value: Any) -> str:
    """One value of an axis in words."""
    if name == "interference":
        return "isolated" if value == "none" else str(value)
    if name == "mitigations":
        return "unmitigated" if value == "none" else str(value)
    return f"{value} threads" if name == "threads" else f"{value:g} req/s"


def setting(comparison: dict[str, Any]) -> str:
    """What all rows have in common: model, GPU, axes of one value, seeds."""
    axes, seeds = comparison["axes"], comparison["seeds"]
    shared = [words(name, values[0]) for name, values in axes.items() if name != "system" and len(values) == 1]
    span = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    return ", ".join((comparison["model"], comparison["gpu"], *shared, span))


def legend(comparison: dict[str, Any]) -> str:
    """How the figures are meant."""
    if len(comparison["seeds"]) == 1:
        return "One seed: there are no confidence intervals. --seeds 3 gives them."
    share = f"{comparison['confidence']:.0%}"
    return (
        f"Means over seeds; ratios are geometric means, paired by seed. ~: the {share} interval of the ratio "
        "includes 1, so the runs do not show a difference."
    )


def remarks(comparison: dict[str, Any]) -> list[str]:
    """Requests that were not served, and the notes of the runs."""
    lost = []
    for cell in comparison["cells"]:
        failed, served = cell["figures"]["failed"], cell["figures"]["completed"]
        if failed and failed["mean"] > 0:
            total = failed["mean"] + (served["mean"] if served else 0)
            where = " ".join((cell["key"]["system"], condition(cell["key"], comparison["axes"]))).strip()
            lost.append(f"{where}: {number(failed['mean'])} of {number(total)} requests were not completed")
    return [*lost, *comparison["notes"]]


def findings(comparison: dict[str, Any]) -> list[str]:
    """What other jobs do to each system, one sentence each: where there are levels with and without them."""
    changes: dict[str, dict[str, float]] = {}
    for cell in comparison["cells"]:
        for name in HEADLINES:
            found = (cell["over_isolated"] or {}).get(name)
            if found:
                worst = changes.setdefault(cell["key"]["system"], {})
                before = worst.get(name, 1.0)
                worst[name] = max((before, found["ratio"]), key=lambda value: max(value, 1 / value))
    return [_sentence(system, worst) for system, worst in changes.items()]


def _sentence(system: str, worst: dict[str, float]) -> str:
    return f"{system}: {', '.join(f'{HEADLINES[name]} {_change(value)}' for name, value in worst.items())}"


def _change(value: float) -> str:
    """A small change in percent, a large one as a factor."""
    return f"{100 * (value - 1) + 0.0:+.1f}%".replace("-0.0%", "+0.0%") if 0.75 < value < 1.5 else f"x{ratio(value)}"


def _rows(comparison: dict[str, Any], kind: str, columns: tuple[Column, ...], nested: bool) -> list[Row]:
    rows = []
    for cell in comparison["cells"]:
        key, axes = cell["key"], comparison["axes"]
        values = {**cell["figures"], **(cell["counters"] or {})} if kind == "resources" else cell[kind]
        undisturbed = key.get("interference", key.get("threads")) in ("none", 0)
        if values is None or (kind == "over_unmitigated" and undisturbed):
            continue
        outer, _, inner = condition(key, axes).rpartition(", ") if nested else ("", "", condition(key, axes))
        group = f"{key['system']}, {outer}" if outer else key["system"]
        rows.append((group, inner, [values.get(column.name) for column in columns]))
    return rows


def _bare(heading: tuple[str, str]) -> tuple[str, str]:
    """A heading without its unit: a ratio has none."""
    return heading[0].removesuffix(" s"), heading[1].replace("tok/s", "")
