"""Colocation: a mix of jobs that commonly shares a host with an engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from blink.common.errors import InputError
from blink.common.profile import load_profile


@dataclass(frozen=True, slots=True)
class Colocation:
    """`threads` maps the name of an interferer profile to the threads of that job."""

    name: str
    threads: Mapping[str, int]

    @classmethod
    def load(cls, name_or_path: str | Path) -> Colocation:
        """A shipped mix by name, or a user's by path; each constant is named as the interferer profile of the job.

        Raises InputError for a file that is wrong in form, and for a value that is not a number of threads.
        """
        profile = load_profile("colocation", name_or_path)
        threads = {}
        for job, found in profile.constants.items():
            if type(found.value) is not int or found.value < 0 or found.unit != "threads":
                raise InputError(
                    f"{profile.origin}: constants.{job}: {found.value!r} {found.unit} is not allowed; "
                    "allowed: a whole number of threads, at least 0"
                )
            threads[job] = found.value
        return cls(profile.name, threads)
