"""What a validation says: as text for a terminal, as Markdown, as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from blink.common.units import NS_PER_MS
from blink.common.verdict import CONFORMS
from blink.twin.decompose import PARTS, Decomposition
from blink.twin.occupancy import REGIMES
from blink.twin.statistics import Comparison
from blink.twin.tolerances import Tolerances
from blink.twin.validation import Breach, Validation, pooled_contributions, pooled_steps

Row = tuple[str, ...]
Table = tuple[str, Row, list[Row]]
"""Title, header, rows."""
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}


def tables(found: Validation) -> Iterator[Table]:
    """Title, header and rows of each table, in the order in which they are read."""
    header: Row = ("latency", "statistic", "measured ms", "twin ms", "error", "95 % interval")
    rows: list[Row] = []
    for label in ("all", *REGIMES):
        if label not in found.latencies:
            continue
        table = found.latencies[label]
        count = table["ttft"].count
        title = f"Latencies, {count:,} requests" if label == "all" else f"Load {label}, {count:,} requests"
        yield title, header, [row for name, comparison in table.items() for row in _errors(name, comparison)]
    if found.gaps:
        rows = [
            ("ITL", name, f"{real:,.3f}", f"{sim:,.3f}", _percent(sim, real), "")
            for name, (real, sim) in found.gaps.items()
        ]
        yield (
            "Time between tokens, as clients saw it: "
            + ("of the summary" if len(found.pairs) == 1 else "means of summaries"),
            header,
            rows,
        )
    header = ("what", "measured", "twin", "error", "apart over time")
    rows = [
        (f"{t.what.replace('_', ' ')}/s", f"{t.real:,.1f}", f"{t.sim:,.1f}", f"{t.error:+.2%}", "")
        for t in found.throughputs
    ]
    rows += [
        (f"mean {o.what}", f"{o.real:,.2f}", f"{o.sim:,.2f}", _percent(o.sim, o.real), f"{o.apart:,.2f}")
        for o in found.occupancy
    ]
    yield "Throughput and occupancy", header, rows
    apart: list[Row] = [
        (NAMES[name], f"{c.wasserstein:,.3f}", f"{c.wasserstein_relative:.2%}", f"{c.kolmogorov_smirnov:.3f}")
        for name, c in found.latencies["all"].items()
    ]
    yield "Distance of the distributions", ("latency", "Wasserstein ms", "over the mean", "Kolmogorov-Smirnov"), apart
    yield from _part_tables(found)
    yield from _offender_table(found)


def _errors(name: str, comparison: Comparison) -> Iterator[Row]:
    for error in comparison.errors:
        interval = f"{error.low:+.1%} to {error.high:+.1%}"
        yield (
            NAMES[name],
            error.statistic,
            f"{error.real:,.3f}",
            f"{error.sim:,.3f}",
            f"{error.relative:+.2%}",
            interval,
        )


def _part_tables(found: Validation) -> Iterator[Table]:
    if not found.decompositions:
        return
    every = [parts for _, parts in found.decompositions]
    rows: list[Row] = [
        (s.kind, f"{s.count:,}", f"{s.real_ns / NS_PER_MS:,.1f}", f"{s.sim_ns / NS_PER_MS:,.1f}", f"{s.error:+.2%}")
        for s in pooled_steps(every)
    ]
    yield "Step model: the recorded steps", ("steps", "count", "measured ms", "model ms", "error"), rows
    header: Row = ("mean of", "measured ms", "error ms", *(f"by the {part}" for part in PARTS))
    rows = [
        (c.latency, f"{c.real_ns / NS_PER_MS:,.3f}", f"{c.error_ns / NS_PER_MS:+,.3f}",
         *(f"{value / NS_PER_MS:+,.3f} ({_share(value, c.real_ns)})" for value in c.by_part_ns))
        for c in pooled_contributions(every)
    ]  # fmt: skip
    yield "Which part errs", header, rows
    parts: dict[str, list[float]] = {}
    for entry in every:
        for part in entry.frontend:
            values = parts.setdefault(part.part, [0.0, 0.0])
            values[0] += part.real_ns / len(every)
            values[1] += part.sim_ns / len(every)
    rows = [
        (name, f"{real / NS_PER_MS:,.3f}", f"{sim / NS_PER_MS:,.3f}")
        for name, (real, sim) in parts.items()
        if max(real, sim) >= 1_000
    ]
    if rows:
        yield "Frontend: parts of mean TTFT", ("part", "measured ms", "twin ms"), rows


def _offender_table(found: Validation) -> Iterator[Table]:
    names = list(dict.fromkeys(name for o in found.offenders for name in (*o.real, *o.sim) if _worth(found, name)))
    header = ("request", "prompt", "output", "", *names, "E2E")
    rows: list[Row] = []
    for o in found.offenders:
        for side, times in (("measured", o.real), ("twin", o.sim)):
            first = side == "measured"
            head = (f"{o.run} {o.key}", str(o.prompt_tokens), str(o.output_tokens)) if first else ("", "", "")
            cells = (f"{times[name]:,.2f}" if name in times else "" for name in names)
            rows.append((*head, side, *cells, f"{sum(times.values()):,.2f}"))
    if rows:
        yield "Worst requests, their times in ms side by side", header, rows


def _worth(found: Validation, name: str) -> bool:
    """A part that takes under 10 us in all of them is left out of the table."""
    return any(side.get(name, 0.0) >= 0.01 for o in found.offenders for side in (o.real, o.sim))


def verdict_lines(found: Validation, tolerances: Tolerances) -> Iterator[str]:
    """Conformance, the policy, and what is outside tolerance, the parts that err by name."""
    bad = [
        f"{name}: {verdict.name}: {verdict.reason}" for name, verdict in found.conformance if verdict.code != CONFORMS
    ]
    if found.conformance:
        yield f"conformance: {len(found.conformance) - len(bad)} of {len(found.conformance)} traces conform"
        yield from (f"  {line}" for line in bad)
    for name, parts in found.decompositions:
        policy = parts.policy
        if policy.difference is None:
            yield f"policy: all {policy.total:,} rows of the scheduler in {name} are those of the twin, in their order"
        else:
            yield f"policy: {policy.equal:,} of {policy.total:,} rows of {name} are equal, then {policy.difference}"
    if found.not_decomposed:
        yield f"parts: cannot be told apart: {found.not_decomposed}"
    if found.no_token_gaps:
        yield f"ITL: no single gaps between tokens in {', '.join(found.no_token_gaps)}: first and last tokens alone"
    if found.left_out:
        yield f"{found.left_out} requests of the measured runs are not compared (not completed, or left out)"
    if found.excused:
        yield f"more off than is allowed, but the interval over {len(found.pairs)} starts reaches what is allowed:"
        yield from (f"  {_words(breach)}" for breach in found.excused)
    errs = list(dict.fromkeys(breach.part for breach in found.breaches if breach.part))
    if found.passed:
        yield f"within tolerance ({tolerances.source})"
        return
    yield f"outside tolerance ({tolerances.source}):"
    yield from (f"  {_words(breach)}" for breach in found.breaches)
    if errs:
        yield f"the {' and the '.join(errs)} {'errs' if len(errs) == 1 else 'err'}"
    elif found.decompositions:
        yield "no part alone is outside its tolerance"


def _words(breach: Breach) -> str:
    if not breach.allowed and not breach.part:
        return breach.what
    part = f"{breach.part}: " if breach.part else ""
    over = f" ({breach.interval[0]:+.1%} to {breach.interval[1]:+.1%})" if breach.interval else ""
    return f"{part}{breach.what}: {breach.error:+.2%}{over}, allowed {breach.allowed:.2%}"


def markdown(found: Sequence[Validation], tolerances: Tolerances) -> str:
    """Everything as Markdown."""
    lines: list[str] = []
    for one in found:
        lines += [f"## {one.name}", "", *(f"- {line.strip()}" for line in verdict_lines(one, tolerances)), ""]
        for title, header, rows in tables(one):
            lines += [f"### {title}", "", _cells(header), _cells(["---", *["---:"] * (len(header) - 1)])]
            lines += [*(_cells(row) for row in rows), ""]
    return "\n".join(lines)


def _cells(row: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def to_plain(found: Validation, tolerances: Tolerances) -> dict[str, Any]:
    """Plain data for JSON: figures in milliseconds and ratios."""
    breaches, excused = (
        [{"what": b.what, "part": b.part or None, "error": _finite(b.error), "allowed": b.allowed} for b in some]
        for some in (found.breaches, found.excused)
    )
    runs = [{"measured": p.real.name, "twin": p.sim.name, "requests": len(p.mine)} for p in found.pairs]
    return {
        "name": found.name,
        "passed": found.passed,
        "tolerances": tolerances.source,
        "breaches": breaches,
        "excused": excused,
        "runs": runs,
        "latencies": {
            label: {name: _plain_comparison(comparison) for name, comparison in table.items()}
            for label, table in found.latencies.items()
        },
        "itl_of_summaries_ms": {name: {"measured": real, "twin": sim} for name, (real, sim) in found.gaps.items()},
        "throughput": {t.what: {"measured": t.real, "twin": t.sim, "error": t.error} for t in found.throughputs},
        "occupancy": {o.what: {"measured": o.real, "twin": o.sim, "apart": o.apart} for o in found.occupancy},
        "conformance": {name: verdict.name for name, verdict in found.conformance},
        "parts": {name: _plain_parts(parts) for name, parts in found.decompositions},
        "not_decomposed": found.not_decomposed or None,
        "worst": [{"run": o.run, "request": o.key, "measured_ms": o.real, "twin_ms": o.sim} for o in found.offenders],
    }


def _plain_comparison(found: Comparison) -> dict[str, Any]:
    errors = {
        e.statistic: {
            "measured_ms": e.real,
            "twin_ms": e.sim,
            "error": _finite(e.relative),
            "low": e.low,
            "high": e.high,
        }
        for e in found.errors
    }
    apart = {"wasserstein_ms": found.wasserstein, "kolmogorov_smirnov": found.kolmogorov_smirnov}
    return {"count": found.count, **apart, "errors": errors}


def _plain_parts(found: Decomposition) -> dict[str, Any]:
    policy = found.policy
    return {
        "policy": {"equal": policy.equal, "total": policy.total, "difference": policy.difference},
        "steps": {s.kind: {"count": s.count, "measured_ns": s.real_ns, "model_ns": s.sim_ns} for s in found.steps},
        "contributions_ns": {
            c.latency: dict(zip(PARTS, c.by_part_ns, strict=True)) | {"measured": c.real_ns}
            for c in found.contributions
        },
    }


def _percent(sim: float, real: float) -> str:
    return f"{sim / real - 1.0:+.2%}" if real else ""


def _share(value: float, whole: float) -> str:
    return f"{value / whole:+.1%}" if whole else ""


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") else None
