"""Prints what the benchmarks measured beside time, and keeps the tiny form short."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.scale import TINY


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the tiny form one round is enough: it shows that the benchmark works, not how fast it is."""
    if TINY:
        for item in items:
            item.add_marker(pytest.mark.benchmark(max_time=0.02, min_rounds=1, warmup=False))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Rates and memory, one line a benchmark, below the plugin's table of times."""
    session = getattr(config, "_benchmarksession", None)
    lines = [line for one in getattr(session, "benchmarks", ()) if one.extra_info and (line := _line(one))]
    if lines:
        terminalreporter.section("rates" + (" (tiny: these say nothing about speed)" if TINY else ""))
        for line in lines:
            terminalreporter.write_line(line)


def _line(benchmark: Any) -> str:
    figures = {name: value for name, value in benchmark.extra_info.items() if isinstance(value, int | float)}
    items = figures.pop("items", None)
    if items is not None and benchmark.stats.rounds:
        figures[f"{benchmark.extra_info['unit']}_per_s"] = items / benchmark.stats.median
    texts = [
        f"{name} {value:,.1f}" if isinstance(value, float) else f"{name} {value:,}" for name, value in figures.items()
    ]
    return f"{benchmark.name}: {', '.join(texts)}"
