"""`blink compare`: serving systems side by side on one scenario, or two runs that were made already."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blink.commands.interrupt import stop_on_interrupt
from blink.common.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blink.common.config.scenario import Scenario
    from blink.plan.axes import Axes
    from blink.plan.point import PointResult

EXIT_INTERRUPTED = 130
SYSTEMS = "blink,trtllm,vllm,sglang"
INTERFERENCE = "none,colocated"
SEEDS = 3
WORKERS_MAX = 256
FORMATS = ("text", "json", "markdown")

DESCRIPTION = """\
Serve one scenario by several systems, undisturbed and beside other jobs on the host's CPU, and print throughput,
latencies, energy and cost side by side, with ratios over the first system and over the undisturbed host. Every
combination of the options below is run with several seeds. The systems get the same requests; a ratio whose 95 %
confidence interval includes 1 is marked with ~.

With two arguments: two runs that were made already, simulated or measured: folders of blink run, the JSON of vllm bench
serve, or that of guidellm (file.json#2 is its third benchmark).
"""
EPILOG = """\
examples:
  blink compare scenarios/llama3-8b-h100.toml --out out/compare
  blink compare scenarios/llama3-8b-h100.toml --threads 0,15,30,45,60,75,90 --out out/sweep
  blink compare scenarios/llama3-8b-h100.toml --rate 2,4,6,8 --systems blink,vllm
  blink compare scenarios/llama3-8b-h100.toml --systems vllm --threads 24 --mitigations none,cat,huge_pages_victim
  blink compare out/blink out/vllm
  blink compare out/vllm measured.json --figure both.svg

exit code: 0 done; 2 bad input; 130 stopped by Ctrl-C, what was done is kept and marked partial.
"""

Value = TypeVar("Value", int, float)


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "compare",
        help="serving systems side by side",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("scenario", metavar="SCENARIO", help="scenario TOML file, of any system and load; or a run")
    verb.add_argument("other", metavar="RUN", nargs="?", help="a second run; the first argument is the one before it")
    verb.add_argument(
        "--systems",
        metavar="NAME,...",
        default=SYSTEMS,
        help="of blink, cpu-resident, trtllm, vllm, sglang; ratios are over the first (default: %(default)s)",
    )
    verb.add_argument(
        "--interference",
        metavar="LEVEL,...",
        help="none: no other job; colocated: the scenario's jobs, or the published ones, pbzip2 and an LLVM build with "
        f"45 threads each, if it has none (default: {INTERFERENCE})",
    )
    verb.add_argument(
        "--threads", metavar="N,...", help="threads of those jobs in all, in place of --interference; 0 is none"
    )
    verb.add_argument(
        "--mitigations",
        metavar="SET,...",
        help="what is done against the other jobs: none, huge_pages_victim, huge_pages_interferer, pinning, "
        "dedicated_cores, cat (7 ways; cat=N), nice (-20; nice=N); joined by + they act together (default: as in the "
        "scenario)",
    )
    verb.add_argument("--rate", metavar="R,...", help="requests/s in place of the scenario's")
    verb.add_argument(
        "--seeds", metavar="K", default=str(SEEDS), help="runs of each point, seeds counted from the scenario's "
        "(default: %(default)s)",
    )  # fmt: skip
    verb.add_argument("--limit", metavar="N", help="use the first N requests")
    verb.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override an option of the scenario"
    )
    verb.add_argument("--workers", metavar="N", help="runs at the same time (default: one a CPU core)")
    verb.add_argument("--out", metavar="DIR", help="keep table, figure and every point's values in a new folder")
    verb.add_argument("--figure", metavar="FILE", help="write the figure, .svg or .png")
    verb.add_argument("--format", choices=FORMATS, default="text", help="what to print (default: %(default)s)")
    verb.add_argument("--json", action="store_const", dest="format", const="json", help="the same as --format json")
    verb.add_argument("--no-progress", action="store_true", help="no progress bar (there is none without a terminal)")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run, compare, keep, print. 0: done; 130: stopped by Ctrl-C."""
    if options.other is not None:
        return compare_runs(options)
    if (Path(options.scenario) / "summary.json").is_file():
        raise InputError(f"{options.scenario}: is a run; give a second one to compare it with, or a scenario")
    from blink.common.config import load_scenario
    from blink.plan.comparison import compare
    from blink.plan.variant import with_requests
    from blink.report.plot import check_suffix, require_matplotlib
    from blink.report.rundir import RunDir

    scenario = load_scenario(options.scenario, options.set)
    if options.limit is not None:
        scenario = with_requests(scenario, _whole("--limit", options.limit, 10_000_000))
    axes = _axes(options)
    workers = None if options.workers is None else _whole("--workers", options.workers, WORKERS_MAX)
    if options.figure:
        check_suffix(Path(options.figure), "--figure")
    if options.out or options.figure:
        require_matplotlib()
    points = axes.points(scenario)
    folder = RunDir.prepare(options.out) if options.out else None
    try:
        results = _run(scenario, points, workers, show_progress=not options.no_progress)
        if not results:
            raise KeyboardInterrupt
        comparison = compare(scenario, axes, results)
        _keep(options, folder, comparison, scenario, results)
    except BaseException:
        if folder:
            folder.discard()
        raise
    _print(comparison, options.format)
    if folder and options.format == "text":
        print(f"Kept in {folder.path}")
    return EXIT_INTERRUPTED if comparison["partial"] else 0


OF_A_SCENARIO = ("interference", "threads", "mitigations", "rate", "limit", "workers", "out")


def compare_runs(options: argparse.Namespace) -> int:
    """Read two runs, print what differs, draw their distributions if asked."""
    from rich.console import Console

    from blink.report.rundir import to_json
    from blink.report.runs.difference import difference
    from blink.report.runs.figure import plot_runs
    from blink.report.runs.read import read_any
    from blink.report.runs.table import print_difference

    given = [f"--{name}" for name in OF_A_SCENARIO if getattr(options, name) is not None]
    given += ["--set"] if options.set else []
    given += [
        f"--{name}" for name, value in (("systems", SYSTEMS), ("seeds", str(SEEDS))) if getattr(options, name) != value
    ]
    if given:
        raise InputError(f"{given[0]}: says how to run a scenario; two runs were made already, leave it out")
    if options.format == "markdown":
        raise InputError("--format markdown: two runs are printed as text or json")
    a, b = read_any(options.scenario), read_any(options.other)
    found = difference(a, b)
    if options.figure:
        plot_runs(a, b, Path(options.figure))
    if options.format == "json":
        sys.stdout.write(to_json(found))
    else:
        print_difference(found, Console(file=sys.stdout, soft_wrap=False, highlight=False))
    return 0


def _axes(options: argparse.Namespace) -> Axes:
    from blink.plan.axes import Axes

    if options.threads is not None and options.interference is not None:
        raise InputError("--threads: gives the levels of interference itself; leave out --interference")
    return Axes(
        systems=_names("--systems", options.systems),
        interference=_names("--interference", options.interference or INTERFERENCE),
        threads=_numbers("--threads", options.threads, int, "whole numbers"),
        mitigations=() if options.mitigations is None else _names("--mitigations", options.mitigations),
        rates=_numbers("--rate", options.rate, float, "numbers of requests/s"),
        seed_count=_whole("--seeds", options.seeds, 100),
    )


def _names(option: str, text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise InputError(f"{option}: {text!r} is not allowed; allowed: names, separated by commas")
    return names


def _numbers(option: str, text: str | None, kind: Callable[[str], Value], what: str) -> tuple[Value, ...]:
    if text is None:
        return ()
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{option}: {text!r} is not allowed; allowed: {what}, separated by commas") from None


def _whole(option: str, text: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise InputError(f"{option}: {text!r} is not allowed; allowed: a whole number from 1 to {most}")
    return int(text)


def _run(scenario: Scenario, points: Sequence[Any], workers: int | None, show_progress: bool) -> list[PointResult]:
    from blink.plan.point import run_points
    from blink.report.progress import count_bar

    with count_bar(scenario.name, "runs", show_progress) as progress, stop_on_interrupt() as stop:
        return run_points(points, workers=workers, progress=progress, stop=stop.asked)


def _keep(
    options: argparse.Namespace,
    folder: Any,
    comparison: dict[str, Any],
    scenario: Scenario,
    results: Sequence[PointResult],
) -> None:
    from blink.plan.comparison import FIGURES, figure
    from blink.report.comparison_folder import write_comparison
    from blink.report.comparison_plot import plot_comparison

    if folder:
        rows = [{**dict(one.key), **{name: figure(one.summary, name) for name in FIGURES}} for one in results]
        summaries = [{"key": dict(one.key), "summary": one.summary} for one in results]
        write_comparison(folder, comparison, scenario, rows, summaries)
    if options.figure:
        plot_comparison(comparison, Path(options.figure))


def _print(comparison: dict[str, Any], form: str) -> None:
    from rich.console import Console

    from blink.report.comparison_markdown import to_markdown
    from blink.report.comparison_table import print_comparison
    from blink.report.rundir import to_json

    if form == "json":
        sys.stdout.write(to_json(comparison))
    elif form == "markdown":
        sys.stdout.write(to_markdown(comparison))
    else:
        print_comparison(comparison, Console(file=sys.stdout, soft_wrap=False))
