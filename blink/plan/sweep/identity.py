"""What makes a kept point the same as one that would be run: its scenario, the files behind it, and the program."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import blink
from blink.common.config.scenario import path_entries
from blink.plan.sweep.point import SweepPoint

PACKAGE = Path(blink.__file__).resolve().parent
DECISIVE = (
    *("common", "frontend", "workload", "perf", "sim", "profiles"),
    *("plan/point.py", "plan/reproduce/window.py", "plan/comparison.py"),
    *("plan/sweep/point.py", "plan/sweep/row.py", "plan/sweep/slo.py"),
)
"""What decides the row of a point, below the package."""
DIGEST_BYTES = 8


@cache
def program_digest() -> str:
    """The same for the same sources and shipped profiles, 16 hex digits, wherever the package lies."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in DECISIVE:
        top = PACKAGE / name
        files = [top] if top.is_file() else sorted(file for file in top.rglob("*") if file.suffix in (".py", ".toml"))
        for file in files:
            digest.update(file.relative_to(PACKAGE).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def point_digest(point: SweepPoint) -> str:
    """The same for a point that gives the same result: 16 hex digits. Files count by what they hold, not by path."""
    document = point.scenario.resolved()
    for table, key in path_entries(document):
        table[key] = _content(table[key])
    asked = [one.plain() for one in point.classes]
    whole: list[Any] = [program_digest(), point.key, document, asked]
    return hashlib.blake2b(json.dumps(whole, sort_keys=True).encode(), digest_size=DIGEST_BYTES).hexdigest()


@cache
def _content(path: str) -> str:
    try:
        return hashlib.blake2b(Path(path).read_bytes(), digest_size=DIGEST_BYTES).hexdigest()
    except OSError:
        return path  # the run itself says what is wrong with it
