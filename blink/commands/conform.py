"""`blink conform`: do backends behave alike on a scenario, at the four levels of docs/conformance.md?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from blink.common.errors import InputError

if TYPE_CHECKING:
    from blink.conform.levels import Comparison, Level, Tick

LEVELS = ("legal", "equivalent", "lockstep", "replay")
SCRIPTS = 200
EXIT_CODES = (2, 3)
"""What is worse comes first: a difference, then a comparison that says nothing."""


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "conform",
        help="compare backends on a scenario",
        description="Compare backends with each other and with the specification. Exit code 0: all conform; 2: a "
        "difference, or bad input; 3: inconclusive.",
    )
    verb.add_argument("scenario", metavar="SCENARIO", help="scenario TOML file")
    verb.add_argument(
        "--backends", metavar="A,B", default="sim,native", help="the first is the reference (default: sim,native)"
    )
    verb.add_argument("--level", choices=LEVELS, action="append", help="only this level (repeatable; default: all)")
    verb.add_argument(
        "--scripts", metavar="N", default=str(SCRIPTS), help=f"random scripts in lock-step (default: {SCRIPTS})"
    )
    verb.add_argument("--seed", metavar="N", help="seed in place of the scenario's, of load and scripts alike")
    verb.add_argument(
        "--time-scale", metavar="X", default="1", help="multiply the times of a real-time run; 0: as fast as it goes"
    )
    verb.add_argument(
        "--mutant", metavar="NAME", help="compile this mutant into the scheduler of native or cuda, to see it caught"
    )
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Compare and report; the worst of the levels' exit codes."""
    from blink.common.config import load_scenario
    from blink.common.config.replica import require_replica
    from blink.conform.backend import backends
    from blink.conform.levels import Campaign, Level
    from blink.workload.build import build_load

    names = [name.strip() for name in options.backends.split(",") if name.strip()]
    levels = [Level(name) for name in options.level or LEVELS]
    _check(names, levels, options.mutant)
    scripts = _count("--scripts", options.scripts)
    overrides = [] if options.seed is None else [("--seed", f"seed={options.seed}")]
    scenario = load_scenario(options.scenario, overrides)
    require_replica(scenario, "conform")
    found = backends(names, mutant=options.mutant, time_scale=_scale(options.time_scale))
    scenario, requests = build_load(scenario)
    with _status() as tick:
        campaign = Campaign(found, scenario, requests, tick)
        comparisons = list(campaign.compare(levels, scripts, scenario.seed))
    _report(options, comparisons)
    codes = {comparison.code for comparison in comparisons}
    return next((code for code in EXIT_CODES if code in codes), 0)


def _check(names: Sequence[str], levels: Sequence[Level], mutant: str | None) -> None:
    if not names or len(set(names)) != len(names):
        raise InputError(
            f"--backends: {','.join(names)!r} is not allowed; allowed: different names, such as sim,native"
        )
    if len(names) < 2 and any(level.value != "legal" for level in levels):
        raise InputError(f"--backends: {names[0]!r} alone can be compared with nothing; allowed: two, or --level legal")
    if mutant is not None and not {"native", "cuda"} & set(names):
        raise InputError(
            "--mutant: is compiled into the backends native and cuda; allowed: with one of them among --backends"
        )


def _count(option: str, text: str) -> int:
    if not text.isdecimal():
        raise InputError(f"{option}: {text!r} is not allowed; allowed: a whole number from 0")
    return int(text)


def _scale(text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = -1.0
    if not 0 <= scale < float("inf"):
        raise InputError(f"--time-scale: {text!r} is not allowed; allowed: a number from 0 (as fast as it goes)")
    return scale


@contextmanager
def _status() -> Iterator[Tick]:
    """One line on a terminal that says what is compared and how far it is."""
    if not sys.stderr.isatty():
        yield lambda what, done: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting") as status:
        yield lambda what, done: status.update(escape(f"{what}: {done:,}" if done else what))


def _report(options: argparse.Namespace, comparisons: Sequence[Comparison]) -> None:
    from blink.report.rundir import to_json

    if options.json:
        rows = [comparison.to_json() for comparison in comparisons]
        sys.stdout.write(to_json({"mutant": options.mutant, "levels": rows}))
        return
    _print(comparisons)


def _print(comparisons: Sequence[Comparison]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=None, pad_edge=False)
    for name in ("level", "backends", "compared", "verdict"):
        table.add_column(name, no_wrap=name != "compared", header_style="bold")
    styles = {"conforms": "green", "inconclusive": "yellow"}
    for row in comparisons:
        compared = ", ".join(f"{count:,} {words}" for words, count in row.compared.items() if count)
        verdict = Text(row.verdict, style=styles.get(row.verdict, "bold red"))
        table.add_row(row.level.value, " = ".join(row.backends), compared or "nothing", verdict)
    console.print(table)
    for row in comparisons:
        if row.reason:
            print(f"\n{row.level.value}: {row.reason}")
    first = next((row for row in comparisons if row.difference is not None), None)
    if first is not None and first.difference is not None:
        print(f"\nFirst difference, {first.level.value}: {first.difference.what}")
        for line in first.difference.context:
            print(f"  {line}")
