"""`blink check`: a recorded trace against the slot protocol, or against the rules of a host-driven engine's loop."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "check",
        help="check a trace against the slot protocol, or a host-driven engine's against its rules",
        description="Check a trace, or that of each replica of a fleet. Exit code 0: conforms; 2: violates, or not a "
        "trace; 3: inconclusive; 4: stuck; of a fleet the worst.",
    )
    verb.add_argument("trace", metavar="TRACE", help="trace file (.parquet, .ndjson), or the folder of a run")
    verb.add_argument("--json", action="store_true", help="print the verdict as JSON")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Check and report; the verdict's exit code."""
    from blink.common.checker import check_trace
    from blink.common.lifecycle import is_lifecycle
    from blink.common.lifecycle_check import check_lifecycle
    from blink.common.trace import trace_paths
    from blink.common.verdict import of_all
    from blink.report.rundir import to_json

    verdicts = {
        number: check_lifecycle(path) if is_lifecycle(path) else check_trace(path)
        for number, path in trace_paths(options.trace)
    }
    alone = verdicts.pop(None, None)
    if alone is not None:
        sys.stdout.write(to_json(alone.to_json()) if options.json else f"{alone.report()}\n")
        return alone.code
    fleet = of_all(list(verdicts.values()))
    if options.json:
        replicas = [{"replica": number, **verdict.to_json()} for number, verdict in verdicts.items()]
        sys.stdout.write(to_json({"verdict": fleet.name, "code": fleet.code, "replicas": replicas}))
    else:
        for number, verdict in verdicts.items():
            print(f"replica {number} {replace(verdict, unjudged=()).report()}")
        print(fleet.report())
    return fleet.code
