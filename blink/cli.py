"""The command line. What a user can mend ends as one line `blink: error: ...` and exit code 2, never in a traceback."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from blink import __version__
from blink.commands import (
    backend,
    bench,
    calibrate,
    chaos,
    check,
    compare,
    conform,
    doctor,
    plan,
    plot,
    profiles,
    prove,
    report,
    reproduce,
    run,
    scenario,
    serve,
    sweep,
    trace,
    validate,
)
from blink.common.errors import InputError

COMMANDS = (
    run,
    serve,
    backend,
    compare,
    sweep,
    plan,
    trace,
    report,
    reproduce,
    calibrate,
    validate,
    check,
    conform,
    chaos,
    scenario,
    plot,
    profiles,
    prove,
    bench,
    doctor,
)

EXIT_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class Parser(argparse.ArgumentParser):
    """argparse whose errors are those of every other input, in one line."""

    def error(self, message: str) -> NoReturn:
        """Raise in place of printing the usage and leaving."""
        raise InputError(f"{message} (see {self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    """All commands with their options."""
    top = Parser(prog="blink", description="A digital twin of an LLM serving system that needs no host CPU.")
    top.add_argument("--version", action="version", version=f"blink {__version__}")
    verbs = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(verbs)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    _print_anything()
    try:
        options = parser().parse_args(arguments)
        code: int = options.execute(options)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"blink: error: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_INPUT
    except KeyboardInterrupt:
        print("blink: stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _close_pipe()
        return EXIT_BROKEN_PIPE


def _print_anything() -> None:
    # A terminal that cannot show a character gets a question mark, not a traceback.
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _close_pipe() -> None:
    # The reader is gone: let the interpreter's last flush go nowhere, or it would complain on standard error.
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
