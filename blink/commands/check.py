"""`blink check`: a recorded trace against the slot protocol, or against the rules of a host-driven engine's loop."""

from __future__ import annotations

import argparse
import sys


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "check",
        help="check a trace against the slot protocol, or a host-driven engine's against its rules",
        description="Check a trace. Exit code 0: conforms; 2: violates, or not a trace; 3: inconclusive; 4: stuck.",
    )
    verb.add_argument("trace", metavar="TRACE", help="trace file (.parquet, .ndjson), or the folder of a run")
    verb.add_argument("--json", action="store_true", help="print the verdict as JSON")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Check and report; the verdict's exit code."""
    from blink.common.checker import check_trace
    from blink.common.lifecycle import is_lifecycle
    from blink.common.lifecycle_check import check_lifecycle
    from blink.common.trace import trace_path
    from blink.report.rundir import to_json

    path = trace_path(options.trace)
    verdict = check_lifecycle(path) if is_lifecycle(path) else check_trace(path)
    sys.stdout.write(to_json(verdict.to_json()) if options.json else f"{verdict.report()}\n")
    return verdict.code
