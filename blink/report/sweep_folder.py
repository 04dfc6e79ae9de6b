"""What stands in the folder of a sweep, and reading it back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError

SWEEP_NAME = "sweep.json"


@dataclass(frozen=True, slots=True)
class StoredSweep:
    """A sweep that was kept: what was computed of it, and the text of its scenario."""

    path: Path
    data: dict[str, Any]
    scenario: str


def read_sweep(path: Path) -> StoredSweep:
    """Read a sweep's folder. Raises InputError naming the file that is absent or not of this form."""
    file = path / SWEEP_NAME
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        data["curves"], data["answer"]
        scenario = (path / "scenario.toml").read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{file}: is not what blink sweep keeps") from None
    return StoredSweep(path, data, scenario)
