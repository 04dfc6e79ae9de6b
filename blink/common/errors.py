"""Errors that a user can mend, as opposed to faults of the program."""

from __future__ import annotations


class InputError(ValueError):
    """Something the user gave is wrong: one line that names the file, the field, the value and what is allowed.

    The command line prints the message and exits non-zero without a traceback; libraries may catch it as a ValueError.
    """
