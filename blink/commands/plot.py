"""`blink plot`: one figure of a kept run."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "plot", help="draw a kept run", description="Draw latencies, load and memory of a kept run."
    )
    verb.add_argument("run", metavar="RUN", help="folder that blink run --out made")
    verb.add_argument("--out", metavar="FILE", help="figure to write, .svg or .png (default: RUN/plot.svg)")
    verb.add_argument("--json", action="store_true", help="print the path of the figure as JSON")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Read the run, draw it, say where."""
    from blink.report.plot import plot_run
    from blink.report.rundir import read_run, to_json

    run = read_run(options.run)
    out = Path(options.out) if options.out else run.path / "plot.svg"
    plot_run(run, out)
    sys.stdout.write(to_json({"figure": str(out)}) if options.json else f"{out}\n")
    return 0
