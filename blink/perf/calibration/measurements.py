"""Measurements: what one run of the programme leaves behind, in one file, so that it can be fitted anywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any

import numpy as np

from blink.common.errors import InputError
from blink.common.results import I64
from blink.common.steps import StepTable

VERSION = 1
GROUPS = ("gpu", "host", "host-busy")
"""Whose steps: of the scheduler on the GPU, of the same one on the host, alone and beside busy processes."""
_ABOUT = "about"
_STEPS = tuple(column.name for column in fields(StepTable))


@dataclass(frozen=True, slots=True)
class Measurements:
    """`about`: version, date, machine, command, model, engine, limits, interference, and small results as plain data.

    `steps`: the runs of each of GROUPS. `frontend`: columns of the requests of a served probe, and `live`, the batch
    when each had its first token. `times`: nanoseconds of single operations, by what they are.
    """

    about: dict[str, Any]
    steps: dict[str, list[StepTable]]
    frontend: dict[str, I64]
    times: dict[str, I64] = field(default_factory=dict)

    def save(self, path: Path | IO[bytes]) -> None:
        """Write a compressed file of arrays."""
        arrays: dict[str, Any] = {_ABOUT: np.array(json.dumps(self.about))}
        for group, runs in self.steps.items():
            for number, run in enumerate(runs):
                arrays |= {f"steps/{group}/{number}/{name}": getattr(run, name) for name in _STEPS}
        arrays |= {f"frontend/{name}": values for name, values in self.frontend.items()}
        arrays |= {f"times/{name}": values for name, values in self.times.items()}
        np.savez_compressed(path, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: Path) -> Measurements:
        """Read a file of `save`. InputError if it is not one."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            about = json.loads(str(arrays.pop(_ABOUT)))
            if about["version"] != VERSION:
                raise InputError(f"{path}: version {about['version']}; allowed: {VERSION}")
            return cls(about, _runs(arrays), _under(arrays, "frontend/"), _under(arrays, "times/"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"{path}: not a file of measurements: {error}") from error


def _runs(arrays: Mapping[str, Any]) -> dict[str, list[StepTable]]:
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for name, values in arrays.items():
        if name.startswith("steps/"):
            _, group, number, column = name.split("/")
            found.setdefault(group, {}).setdefault(int(number), {})[column] = values
    return {
        group: [StepTable(**{name: runs[number][name] for name in _STEPS}) for number in sorted(runs)]
        for group, runs in found.items()
    }


def _under(arrays: Mapping[str, Any], prefix: str) -> dict[str, I64]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
