"""`blink validate REAL SIM`: a predicted run against a measured one, with a verdict that CI can gate on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from blink.common.errors import InputError

if TYPE_CHECKING:
    from blink.twin.tolerances import Tolerances
    from blink.twin.validation import Validation

FORMATS = ("text", "json", "markdown")
EXIT_OUTSIDE = 1


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "validate",
        help="compare a predicted run with a measured one",
        description="Compare a predicted run with a measured one: errors with intervals, distances of the "
        "distributions, which part of the twin errs. Exit code 0: within the tolerances; 1: outside; 2: cannot be "
        "compared.",
    )
    runs = "the folder of a run, a folder of such folders, benchmark JSON with details, or a request log (.jsonl)"
    verb.add_argument("real", metavar="REAL", help=f"the measured run: {runs}")
    verb.add_argument("sim", metavar="SIM", help="the predicted run of the same requests, in one of the same forms")
    verb.add_argument("--tolerances", metavar="FILE", help="TOML file of what is allowed (default: the package's own)")
    verb.add_argument(
        "--skip", metavar="N", default="0", help="leave out the first N requests: those that the twin was fitted to"
    )
    verb.add_argument("--out", metavar="DIR", help="keep report.md, validation.json and a Q-Q figure in a new folder")
    verb.add_argument("--format", choices=FORMATS, default="text", help="what to print (default: text)")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Compare, keep, print; 0 or 1 is the verdict."""
    from blink.report.rundir import RunDir
    from blink.twin.tolerances import Tolerances
    from blink.twin.validation import groups, validate

    if not options.skip.isdecimal():
        raise InputError(f"--skip: {options.skip!r} is not allowed; allowed: a whole number from 0")
    tolerances = Tolerances.load(Path(options.tolerances) if options.tolerances else None)
    pairs = groups(Path(options.real), Path(options.sim))
    folder = RunDir.prepare(options.out) if options.out else None
    try:
        with _status() as say:
            found = [
                validate(name, paths, tolerances, skip=int(options.skip), say=say) for name, paths in pairs.items()
            ]
        if folder:
            keep(folder.path, found, tolerances)
    except BaseException:
        if folder:
            folder.discard()
        raise
    _print(found, tolerances, options.format)
    return 0 if all(one.passed for one in found) else EXIT_OUTSIDE


def keep(folder: Path, found: list[Validation], tolerances: Tolerances) -> None:
    """Write the report, its data, and a figure of each group."""
    from blink.report.plot import require_matplotlib
    from blink.report.rundir import put, to_json
    from blink.twin.report import markdown, to_plain

    text = markdown(found, tolerances)
    data = to_json({"validations": [to_plain(one, tolerances) for one in found]})
    put(folder / "report.md", lambda part: part.write_text(text, encoding="utf-8"))
    put(folder / "validation.json", lambda part: part.write_text(data, encoding="utf-8"))
    try:
        require_matplotlib()
    except InputError as error:
        print(f"blink: {error}: no figure", file=sys.stderr)
        return
    for one in found:
        _draw(folder, one)


def _draw(folder: Path, found: Validation) -> None:
    import numpy as np

    from blink.report.quantile_plot import MARKED, plot_quantiles
    from blink.twin.report import NAMES
    from blink.twin.statistics import quantiles

    panels = {}
    for name in ("ttft", "tpot", "itl", "e2e"):
        if name == "itl":
            sides = list(found.token_gaps)
        else:
            sides = [np.concatenate([pair.latencies()[name][side] for pair in found.pairs]) for side in (0, 1)]
        if sides[0].size:
            marked = {
                label: (float(np.percentile(sides[0], q)), float(np.percentile(sides[1], q)))
                for label, q in MARKED.items()
            }
            panels[NAMES[name]] = ((quantiles(sides[0]), quantiles(sides[1])), marked)
    plot_quantiles(f"{found.name}: quantiles, measured and predicted", panels, folder / f"qq-{found.name}.svg")


def _print(found: list[Validation], tolerances: Tolerances, form: str) -> None:
    from blink.report.rundir import to_json
    from blink.twin.report import markdown, tables, to_plain, verdict_lines

    if form == "json":
        sys.stdout.write(to_json({"validations": [to_plain(one, tolerances) for one in found]}))
        return
    if form == "markdown":
        sys.stdout.write(markdown(found, tolerances))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(file=sys.stdout, soft_wrap=False, width=None if sys.stdout.isatty() else 120, highlight=False)
    for one in found:
        console.print(f"[bold]{escape(one.name)}[/bold]")
        for title, header, rows in tables(one):
            table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
            for index, name in enumerate(header):
                table.add_column(name, justify="left" if index == 0 else "right")
            for row in rows:
                table.add_row(*map(escape, row))
            console.print(table)
            console.print()
        for line in verdict_lines(one, tolerances):
            console.print(escape(line))
        console.print()


@contextmanager
def _status() -> Iterator[Callable[[str], None]]:
    """One line on a terminal that says what is going on; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("reading") as status:
        yield lambda text: status.update(escape(text))
