"""Profiles: the constants of the workload models, each with unit, source and kind, in TOML beside this file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from blink.common.errors import InputError

KINDS = ("measured", "published", "fitted", "assumed")
FOLDER = Path(__file__).parent / "profiles"


@dataclass(frozen=True, slots=True)
class Constant:
    value: float
    unit: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class Profile:
    """The constants of one file, by dotted name such as `prompt_tokens.mean`."""

    name: str
    constants: dict[str, Constant]

    def number(self, name: str) -> float:
        if name not in self.constants:
            raise InputError(f"{self.name}.toml: {name} is missing; it holds {', '.join(sorted(self.constants))}")
        return self.constants[name].value

    def whole(self, name: str) -> int:
        value = self.number(name)
        if value != int(value):
            raise InputError(f"{self.name}.toml: {name} is {value}; it must be a whole number")
        return int(value)


@lru_cache(maxsize=16)
def load_profile(name: str, folder: Path = FOLDER) -> Profile:
    """Read profiles/NAME.toml.

    Raises InputError naming the file and the constant when one lacks its unit, kind or source.
    """
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in known:
        raise InputError(f"workload profile {name!r} is unknown; known: {', '.join(known)}")
    path = folder / f"{name}.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path.name}: not TOML: {error}") from None
    constants: dict[str, Constant] = {}
    _collect(path.name, document, "", constants)
    return Profile(name, constants)


def _collect(file: str, table: dict[str, object], prefix: str, constants: dict[str, Constant]) -> None:
    for key, entry in table.items():
        name = f"{prefix}{key}"
        if isinstance(entry, dict) and "value" in entry:
            constants[name] = _constant(file, name, entry)
        elif isinstance(entry, dict):
            _collect(file, entry, f"{name}.", constants)


def _constant(file: str, name: str, entry: dict[str, object]) -> Constant:
    value, unit, kind, source = (entry.get(key) for key in ("value", "unit", "kind", "source"))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{file}: {name}: value {value!r} is not a number")
    if kind not in KINDS:
        raise InputError(f"{file}: {name}: kind {kind!r} is not one of {', '.join(KINDS)}")
    if not (isinstance(unit, str) and isinstance(source, str) and source):
        raise InputError(f"{file}: {name}: unit and source must be given as text")
    return Constant(value, unit, str(kind), source)
