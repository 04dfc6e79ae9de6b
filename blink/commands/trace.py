"""`blink trace export`: a kept run for the viewers of traces."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from blink.common.errors import InputError

FORMATS = ("perfetto", "chrome")
SECONDS_MAX = 1e9


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "trace", help="a kept run for trace viewers", description="Work on the trace of a kept run."
    )
    actions = verb.add_subparsers(dest="action", required=True, metavar="ACTION")
    export = actions.add_parser(
        "export",
        help="write it for Perfetto or Chrome",
        description="Write what happened in a run for a trace viewer such as ui.perfetto.dev: requests, link, "
        "scheduler, graphs, slots.",
    )
    export.add_argument("run", metavar="RUN", help="folder that blink run --out made, with its trace")
    export.add_argument(
        "--format", choices=FORMATS, default=FORMATS[0], help="perfetto: protobuf, exact to the nanosecond (the "
        "default); chrome: JSON, readable",
    )  # fmt: skip
    export.add_argument("--out", metavar="FILE", help="file to write (default: RUN/run.pftrace or RUN/run.trace.json)")
    export.add_argument("--from", dest="begin", metavar="S", help="only what happens from this second of the run on")
    export.add_argument("--to", dest="end", metavar="S", help="only what happens before this second of the run")
    export.add_argument("--json", action="store_true", help="print the path of the file as JSON")
    export.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Read the run, write the file, say where."""
    from blink.common.units import ns_from_s
    from blink.report.rundir import to_json
    from blink.report.timeline.export import SUFFIXES, timeline_of, write
    from blink.report.timeline.model import cut

    begin, end = _seconds("--from", options.begin, 0.0), _seconds("--to", options.end, SECONDS_MAX)
    if begin >= end:
        raise InputError(f"--to {end:g}: is not allowed; allowed: after --from {begin:g}")
    folder = Path(options.run)
    timeline = timeline_of(folder)
    if options.begin is not None or options.end is not None:
        timeline = cut(timeline, ns_from_s(begin), ns_from_s(end))
    out = Path(options.out) if options.out else folder / f"run{SUFFIXES[options.format]}"
    write(timeline, options.format, out)
    sys.stdout.write(to_json({"trace": str(out)}) if options.json else f"{out}\n")
    return 0


def _seconds(option: str, text: str | None, default: float) -> float:
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= SECONDS_MAX:
        raise InputError(f"{option}: {text!r} is not allowed; allowed: seconds from 0")
    return value
