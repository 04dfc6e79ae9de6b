"""`blink reproduce`: the published facts against the twin."""

from __future__ import annotations

import argparse

from blink.commands.interrupt import stop_on_interrupt
from blink.common.errors import InputError

EXIT_INTERRUPTED = 130
WORKERS_MAX, SEEDS_MAX, DURATION_MAX_S = 256, 100, 3600.0


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "reproduce",
        help="hold the twin against the published facts",
        description="Run the scenarios behind the published facts and print for each what was published, what the twin "
        "predicts and how far off it is. Exit code 0: done, whatever was missed; 2: bad input; 130: stopped by Ctrl-C, "
        "what was done is kept and marked partial.",
    )
    verb.add_argument("--facts", metavar="GLOB,...", help="only facts whose id matches, such as 'isolated.*,launch.*'")
    verb.add_argument("--out", metavar="DIR", help="keep the report as HTML and Markdown, and every run's figures")
    verb.add_argument("--quick", action="store_true", help="few rates and short runs: shows only that it works")
    verb.add_argument("--workers", metavar="N", help="runs at the same time (default: one a processor)")
    verb.add_argument("--seeds", metavar="K", help="runs of each point, with other random numbers")
    verb.add_argument("--duration", metavar="S", help="seconds for which a run's load lasts")
    verb.add_argument("--measured", metavar="SCENARIO", help="compare a recorded run too (docs/engines.md)")
    verb.add_argument("--splitwise", metavar="CSV", help="compare the A100 rows of splitwise-sim too (docs/engines.md)")
    verb.add_argument("--json", action="store_true", help="print the facts as JSON")
    verb.add_argument("--no-progress", action="store_true", help="no progress bar (there is none without a terminal)")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run, print, keep. 0: done; 130: stopped by Ctrl-C."""
    from blink.plan.reproduce import other_runs, outputs
    from blink.plan.reproduce.carry_out import chosen_facts, kinds_of, reproduce
    from blink.plan.reproduce.testbed import Testbed
    from blink.report.plot import require_matplotlib
    from blink.report.progress import count_bar
    from blink.report.rundir import RunDir

    facts = chosen_facts([pattern for pattern in (options.facts or "").split(",") if pattern])
    bed = Testbed.load(
        quick=options.quick,
        seeds=_number("--seeds", options.seeds, SEEDS_MAX),
        duration_s=_seconds(options.duration),
    )
    workers = _number("--workers", options.workers, WORKERS_MAX)
    folder = None
    if options.out:
        require_matplotlib()
        folder = RunDir.prepare(options.out)
    try:
        sections = other_runs.sections(options.measured, options.splitwise)
        kinds = kinds_of(facts, everything=folder is not None and not options.facts)
        with count_bar("reproduce", "runs", not options.no_progress) as progress, stop_on_interrupt() as stop:
            found = reproduce(bed, facts, kinds, workers=workers, progress=progress, stop=stop.asked)
        if folder:
            outputs.write(found, folder, sections)
    except BaseException:
        if folder:
            folder.discard()
        raise
    outputs.show(found, sections, as_json=options.json)
    if folder and not options.json:
        print(f"Kept in {folder.path}")
    return EXIT_INTERRUPTED if found.partial else 0


def _number(option: str, text: str | None, most: int) -> int | None:
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise InputError(f"{option}: {text!r} is not allowed; allowed: a whole number from 1 to {most}")
    return int(text)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= DURATION_MAX_S:
        raise InputError(f"--duration: {text!r} is not allowed; allowed: 1 to {DURATION_MAX_S:g} s")
    return seconds
