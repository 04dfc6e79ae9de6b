"""`blink report`: one HTML file of a kept run, sweep or plan."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

DESCRIPTION = """\
Write one HTML file that needs no other file and no network: the answer in a sentence, the numbers, curves and
timelines, where the time went, and the scenario behind it; for screens, phones and print, light and dark.
"""


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser("report", help="one HTML page of a kept run, sweep or plan", description=DESCRIPTION)
    verb.add_argument("folder", metavar="DIR", help="folder that blink run, sweep or plan kept")
    verb.add_argument("--out", metavar="FILE", help="file to write (default: DIR/report.html)")
    verb.add_argument("--json", action="store_true", help="print the path of the file as JSON")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Read what was kept, write the page, say where."""
    from blink.report.html.kinds import page_of
    from blink.report.html.page import to_html
    from blink.report.rundir import put, to_json

    folder = Path(options.folder)
    out = Path(options.out) if options.out else folder / "report.html"
    text = to_html(page_of(folder))
    put(out, lambda part: part.write_text(text, encoding="utf-8"))
    sys.stdout.write(to_json({"report": str(out)}) if options.json else f"{out}\n")
    return 0
