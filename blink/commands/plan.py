"""`blink plan`: the cheapest fleet that carries a traffic within its objectives."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from blink.commands.interrupt import stop_on_interrupt
from blink.common.errors import InputError

EXIT_IMPOSSIBLE = 1
EXIT_INTERRUPTED = 130

DESCRIPTION = """\
Answer a question of capacity: which fleet carries the traffic within its objectives for the least money; what comes
next and why it lost; what binds; what isolation costs. Candidates are ruled out by bounds that hold without simulating,
the rest by whole simulated fleets; the answer is run with several seeds, and so is the fleet with one replica less.
"""
EPILOG = """\
examples:
  blink plan scenarios/plans/chat-day.toml --out out/chat
  blink plan scenarios/plans/large-model.toml --json
  blink report out/chat

exit code: 0 answered; 1 answered that it cannot be done; 2 bad input; 130 stopped by Ctrl-C, nothing is kept.
"""


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "plan",
        help="the cheapest fleet for a traffic",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verb.add_argument("question", metavar="QUESTION", help="question TOML file (docs/plan.md)")
    verb.add_argument("--workers", metavar="N", help="runs at the same time (default: one a CPU core)")
    verb.add_argument("--out", metavar="DIR", help="keep the answer in a new folder")
    verb.add_argument("--json", action="store_true", help="print plan.json to standard output")
    verb.add_argument("--no-progress", action="store_true", help="no progress line (there is none without a terminal)")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Search, keep, print. 0: answered; 1: it cannot be done; 130: stopped by Ctrl-C."""
    from blink.plan.capacity.question import load_question
    from blink.plan.capacity.run import WORKERS_MAX, plan
    from blink.plan.capacity.search import StoppedError
    from blink.report.plan_folder import write_plan
    from blink.report.progress import note_line
    from blink.report.rundir import RunDir

    workers = None
    if options.workers is not None:
        if not options.workers.isdigit() or not 1 <= int(options.workers) <= WORKERS_MAX:
            raise InputError(
                f"--workers: {options.workers!r} is not allowed; allowed: a whole number from 1 to {WORKERS_MAX}"
            )
        workers = int(options.workers)
    question = load_question(options.question)
    folder = RunDir.prepare(options.out) if options.out else None
    try:
        with note_line(question.name, "runs", not options.no_progress) as progress, stop_on_interrupt() as stop:
            data = plan(question, workers=workers, progress=progress, stop=stop.asked)
        if folder:
            write_plan(folder, data)
    except StoppedError:
        raise KeyboardInterrupt from None
    finally:
        if folder:
            folder.discard()
    _print(data, as_json=options.json)
    if folder and not options.json:
        print(f"Kept in {folder.path}")
    return 0 if data["best"] else EXIT_IMPOSSIBLE


def _print(data: dict[str, Any], *, as_json: bool) -> None:
    from rich.console import Console

    from blink.report.plan_table import print_plan
    from blink.report.rundir import to_json

    if as_json:
        sys.stdout.write(to_json(data))
        return
    print_plan(data, Console(file=sys.stdout, soft_wrap=False, highlight=False))
