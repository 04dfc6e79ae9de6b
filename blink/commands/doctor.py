"""`blink doctor`: what this machine can run, and what to install for the rest."""

from __future__ import annotations

import argparse
import sys


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser("doctor", help="what this machine can run, and what to install for the rest")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Look and report. 0 if simulation works, else 2."""
    from blink.report.machine import examine
    from blink.report.rundir import to_json

    findings = examine()
    if options.json:
        sys.stdout.write(to_json({"findings": [finding.plain() for finding in findings]}))
    else:
        for finding in findings:
            print(f"{'yes' if finding.found else 'no ':<4}{finding.name:<12} {finding.detail}")
            print(f"                 {'enables' if finding.found else 'would enable'}: {finding.enables}")
            if not finding.found and finding.install:
                print(f"                 install: {finding.install}")
    return 0 if all(finding.found for finding in findings if finding.needed) else 2
