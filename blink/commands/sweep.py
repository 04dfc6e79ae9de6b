"""`blink sweep`: a scenario over request rates, systems and whatever else, and what it can serve."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from blink.commands.interrupt import stop_on_interrupt
from blink.common.errors import InputError

if TYPE_CHECKING:
    from blink.plan.sweep.question import Question
    from blink.plan.sweep.run import Made

EXIT_INTERRUPTED = 130
SEEDS = 3
WORKERS_MAX = 256
DURATION_MAX_S = 1e6

DESCRIPTION = """\
Run a scenario at every combination of request rates, systems and other options, with several seeds, and say of each
curve where it saturates, how high its throughput gets, which load it can serve, how many requests keep each objective,
and how much room is left. Every run is kept in DIR/results.parquet as soon as it is done; the same command goes on
where it was stopped.
"""
EPILOG = """\
examples:
  blink sweep scenarios/llama3-8b-h100.toml --rate 1:32:13 --systems blink,trtllm,vllm,sglang --out s
  blink sweep scenarios/llama3-8b-h100.toml --rate 4,8,12 --over gpu=h100-96gb,h200,interference=none,colocated
  blink sweep scenarios/llama3-8b-h100.toml --rate 1:32:13 --slo chat:ttft_ms=300,tpot_ms=20 --seeds 5 --out s
  blink sweep scenarios/llama3-8b-h100.toml --rate 1:32:13 --cluster local:2 --out s
  blink report s

exit code: 0 done; 2 bad input; 130 stopped by Ctrl-C, what was done is kept and marked partial.
"""


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "sweep",
        help="what load a system can serve",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("scenario", metavar="SCENARIO", help="scenario TOML file, of any system and load")
    verb.add_argument(
        "--rate", metavar="RATES", help="LOW:HIGH:COUNT requests/s in equal ratios, or R,R,...; each takes the place "
        "of the scenario's (default: the scenario's load alone)",
    )  # fmt: skip
    verb.add_argument(
        "--over", metavar="AXIS=V,...", action="append", default=[],
        help="other axes: model, gpu, system, interference (none, colocated), threads, mitigations, or an option of "
        "the scenario such as limits.batch_max; several are separated by commas, or repeat --over",
    )  # fmt: skip
    verb.add_argument("--systems", metavar="NAME,...", help="the same as --over system=NAME,...")
    verb.add_argument(
        "--seeds", metavar="K", default=str(SEEDS), help="runs of each point, seeds counted from the scenario's "
        "(default: %(default)s)",
    )  # fmt: skip
    verb.add_argument("--duration", metavar="S", help="send requests for S seconds, in place of the scenario's bounds")
    verb.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override an option of the scenario"
    )
    verb.add_argument(
        "--slo", metavar="NAME:BOUND=MS,...", action="append", default=[], help="a class of objectives, beside the "
        "scenario's own: ttft_ms, tpot_ms, e2e_ms (repeatable)",
    )  # fmt: skip
    verb.add_argument(
        "--attainment", metavar="SHARE", help="share of requests that must keep an objective (default: 0.99)"
    )
    verb.add_argument("--workers", metavar="N", help="runs at the same time (default: one a CPU core)")
    verb.add_argument(
        "--cluster", metavar="WHERE", help="run on a Dask cluster: local:N, worker processes here, or tcp://HOST:PORT, "
        "its scheduler",
    )  # fmt: skip
    verb.add_argument("--out", metavar="DIR", help="keep every run's figures; go on if DIR holds a part of this sweep")
    verb.add_argument("--restart", action="store_true", help="throw away the runs that DIR holds")
    verb.add_argument("--json", action="store_true", help="print sweep.json to standard output")
    verb.add_argument("--no-progress", action="store_true", help="no progress bar (there is none without a terminal)")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run what is missing, keep, print. 0: done; 130: stopped by Ctrl-C."""
    from blink.plan.sweep.answer import answered
    from blink.plan.sweep.folder import SweepFolder

    question, workers = _question(options), _workers(options)
    points = question.points  # refuses what cannot be before the folder is touched
    folder = SweepFolder.prepare(options.out, restart=options.restart) if options.out else None
    try:
        made = _make(question, folder, workers, options)
        if not made.rows and points:
            raise KeyboardInterrupt
        data = answered(question, made)
        if folder:
            folder.write(question, data)
    except BaseException:
        if folder:
            folder.discard()
        raise
    _print(data, made, folder, as_json=options.json)
    return EXIT_INTERRUPTED if made.partial else 0


def _question(options: argparse.Namespace) -> Question:
    from blink.common.config import load_scenario
    from blink.plan.sweep.grid import Grid, parse_over, parse_rates
    from blink.plan.sweep.question import ATTAINMENT, Question
    from blink.plan.sweep.slo import classes_of, parse_class
    from blink.plan.variant import with_duration

    scenario = load_scenario(options.scenario, options.set)
    if options.duration is not None:
        scenario = with_duration(scenario, _number("--duration", options.duration, 0.0, DURATION_MAX_S, "seconds"))
    over = parse_over([*options.over, *([f"system={options.systems}"] if options.systems is not None else [])])
    attainment = ATTAINMENT
    if options.attainment is not None:
        attainment = _number("--attainment", options.attainment, 0.0, 1.0, "a share")
    return Question(
        scenario,
        Grid.of(
            over, parse_rates(options.rate) if options.rate is not None else (), _whole("--seeds", options.seeds, 100)
        ),
        classes_of(scenario, [parse_class(text) for text in options.slo]),
        attainment,
    )


def _workers(options: argparse.Namespace) -> int | None:
    if options.workers is not None and options.cluster is not None:
        raise InputError("--workers: a cluster has its own number of workers; leave it out with --cluster")
    if options.restart and not options.out:
        raise InputError("--restart: says what becomes of the runs in --out DIR; give --out too")
    return None if options.workers is None else _whole("--workers", options.workers, WORKERS_MAX)


def _whole(option: str, text: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise InputError(f"{option}: {text!r} is not allowed; allowed: a whole number from 1 to {most}")
    return int(text)


def _number(option: str, text: str, least: float, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = least
    if not least < value <= most:
        raise InputError(f"{option}: {text!r} is not allowed; allowed: {what}, above {least:g}, at most {most:g}")
    return value


def _make(question: Question, folder: Any, workers: int | None, options: argparse.Namespace) -> Made:
    from blink.plan.sweep.run import make
    from blink.report.progress import work_bar

    path = folder.path if folder else None
    name = question.scenario.name
    with work_bar(name, "runs", not options.no_progress) as progress, stop_on_interrupt() as stop:
        return make(
            question, path, workers=workers, cluster=options.cluster, progress=progress, stop=stop.asked
        )  # fmt: skip


def _print(data: dict[str, Any], made: Made, folder: Any, *, as_json: bool) -> None:
    from rich.console import Console

    from blink.report.rundir import to_json
    from blink.report.sweep_table import print_sweep

    if as_json:
        sys.stdout.write(to_json(data))
        return
    print_sweep(data, Console(file=sys.stdout, soft_wrap=False, highlight=False))
    if folder:
        before = f", {made.resumed_count} of {made.point_count} runs from before" if made.resumed_count else ""
        print(f"Kept in {folder.path}{before}")
