"""Profiles: TOML files of constants, each with a value, a unit, a kind and a source.

A profile is named (`h200`, shipped with the package) or given as the path of a TOML file. Every constant is a table

    kernel_floor_ns = { value = 2831, unit = "ns", kind = "fitted", source = "...", range = { batch = [1, 64] } }

`kind` says how far to trust it: `measured` and `fitted` constants carry the `range` they hold in. A file may state
`kind` and `source` once, at the top, for constants that do not say their own; and `carry_over = "h200"` takes what
the file leaves out from another profile, where it becomes `assumed`.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blink.common.errors import InputError

PROFILE_KINDS = (
    "gpu",
    "model",
    "engine",
    "dpu",
    "link",
    "lengths",
    "message",
    "host-engine",
    "host",
    "operation",
    "interferer",
    "colocation",
    "power",
    "price",
    "fleet",
    "fabric",
    "server",
)
CONSTANT_KINDS = ("measured", "published", "fitted", "assumed")
RANGED_KINDS = ("measured", "fitted")
RANGE_NAMES = (
    "prompt_tokens",
    "batch",
    "kv_tokens",
    "sequence",
    "tokens",
    "layers",
    "size_bytes",
    "slots",
    "nodes",
    "devices",
    "threads",
    "ways",
)
SHIPPED = Path(__file__).resolve().parents[1] / "profiles"

_CONSTANT_KEYS = frozenset({"value", "unit", "kind", "source", "range"})
_FILE_KEYS = frozenset({"profile", "name", "description", "kind", "source", "carry_over", "constants", "hop"})


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of a model. `range` maps a quantity to the closed interval in which a measured value holds."""

    name: str
    value: int | float | bool
    unit: str
    kind: str
    source: str
    range: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Profile:
    """An untyped profile: what the file says, checked for form. `hops` is used by link profiles alone."""

    kind: str
    name: str
    description: str
    origin: str
    constants: Mapping[str, Constant]
    hops: tuple[Mapping[str, Any], ...] = ()
    default_kind: str | None = None
    default_source: str | None = None


def list_profiles(kind: str) -> list[str]:
    """Names of the shipped profiles of a kind, sorted."""
    _allowed("list_profiles", "kind", kind, PROFILE_KINDS)
    return sorted(path.stem for path in (SHIPPED / kind).glob("*.toml"))


def load_profile(kind: str, name_or_path: str | Path) -> Profile:
    """Read a shipped profile by name, or a user's by path (ends in .toml or has a folder in it).

    Raises InputError that names the file, the field, its value and what is allowed.
    """
    path = profile_path(kind, name_or_path)
    # A shipped file is named without the folder the package happens to lie in.
    origin = f"{kind} profile {path.stem}" if path.parent.parent == SHIPPED else str(path)
    raw = read_toml(path, origin)
    for key in raw:
        _allowed(origin, "key", key, sorted(_FILE_KEYS))
    _allowed(origin, "profile", raw.get("profile"), (kind,))
    name, description = _text(origin, "name", raw), _text(origin, "description", raw)
    default_kind, default_source = raw.get("kind"), raw.get("source")
    if default_kind is not None:
        _allowed(origin, "kind", default_kind, CONSTANT_KINDS)
    tables = raw.get("constants", {})
    if not isinstance(tables, dict):
        raise InputError(f"{origin}: constants: {tables!r} is not a table of constants")
    own = {
        key: parse_constant(origin, f"constants.{key}", key, table, default_kind, default_source)
        for key, table in tables.items()
    }
    base = _carried(kind, path, raw["carry_over"], origin) if "carry_over" in raw else {}
    hops = raw.get("hop", [])
    if not isinstance(hops, list) or not all(isinstance(hop, dict) for hop in hops):
        raise InputError(f"{origin}: hop: {hops!r} is not an array of tables")
    return Profile(kind, name, description, origin, {**base, **own}, tuple(hops), default_kind, default_source)


def profile_path(kind: str, name_or_path: str | Path) -> Path:
    """Where a profile lies; InputError lists the shipped names when there is none of that name."""
    _allowed("load_profile", "kind", kind, PROFILE_KINDS)
    text = str(name_or_path)
    if text.endswith(".toml") or "/" in text or isinstance(name_or_path, Path):
        return Path(name_or_path)
    _allowed("profile", kind, text, list_profiles(kind), hint=" or the path of a .toml file")
    return SHIPPED / kind / f"{text}.toml"


def read_toml(path: Path, origin: str) -> dict[str, Any]:
    """A TOML file as a dict; InputError if it is absent, unreadable or not TOML."""
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise InputError(f"{origin}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{origin}: not valid TOML: {error}") from error


def parse_constant(
    origin: str, where: str, name: str, table: object, default_kind: str | None, default_source: str | None
) -> Constant:
    """One constant's table, checked for form; the unit and the limits are checked by `typed_values`."""
    if not isinstance(table, dict):
        raise InputError(f"{origin}: {where}: {table!r} is not a table with value, unit, kind and source")
    for key in table:
        _allowed(origin, f"{where} key", key, sorted(_CONSTANT_KEYS))
    value = table.get("value")
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise InputError(f"{origin}: {where}.value: {value!r} is not allowed; allowed: a finite number or a flag")
    kind = table.get("kind", default_kind)
    _allowed(origin, f"{where}.kind", kind, CONSTANT_KINDS)
    source = table.get("source", default_source)
    if not isinstance(source, str) or not source.strip():
        raise InputError(f"{origin}: {where}.source: {source!r} is not allowed; allowed: a text that says where from")
    unit = _text(origin, f"{where}.unit", {f"{where}.unit": table.get("unit")})
    ranges = _parse_range(origin, f"{where}.range", table.get("range", {}))
    if kind in RANGED_KINDS and not ranges:
        raise InputError(f"{origin}: {where}.range: missing; a {kind} constant states the range it holds in")
    return Constant(name, value, unit, str(kind), source, ranges)


def constant(unit: str, low: float = 0, high: float = math.inf, default: Any = dataclasses.MISSING) -> Any:
    """Dataclass field of a typed profile: a constant with this unit, within [low, high]; absent only with a default."""
    return dataclasses.field(metadata={"unit": unit, "low": low, "high": high}, default=default)


def typed_values(cls: type[Any], profile: Profile) -> dict[str, Any]:
    """Values for the constant fields of dataclass `cls`, checked for presence, unit, type and limits."""
    specs = {field.name: field for field in dataclasses.fields(cls) if "unit" in field.metadata}
    for name in profile.constants:
        _allowed(profile.origin, "constants", name, sorted(specs))
    values: dict[str, Any] = {}
    for name, field in specs.items():
        found = profile.constants.get(name)
        if found is not None:
            values[name] = typed_value(profile.origin, f"constants.{name}", found, field)
        elif field.default is dataclasses.MISSING:
            unit = field.metadata["unit"]
            raise InputError(f"{profile.origin}: constants.{name}: missing; needed with unit {unit!r}")
    return values


def typed_value(origin: str, where: str, found: Constant, field: dataclasses.Field[Any]) -> Any:
    """The value of one constant as the type of its field; InputError for a wrong unit, type or size."""
    unit, low, high = field.metadata["unit"], field.metadata["low"], field.metadata["high"]
    _allowed(origin, f"{where}.unit", found.unit, (unit,))
    value, wanted = found.value, str(field.type)
    fits = {"bool": isinstance(value, bool), "int": type(value) is int, "float": type(value) in (int, float)}
    if not fits[wanted]:
        raise InputError(f"{origin}: {where}.value: {value!r} is not allowed; allowed: {wanted}")
    if not low <= value <= high:
        limit = f"at least {low:g}" if high == math.inf else f"{low:g} to {high:g}"
        raise InputError(f"{origin}: {where}.value: {value!r} is not allowed; allowed: {limit}")
    return float(value) if wanted == "float" else value


def _carried(kind: str, path: Path, name: object, origin: str) -> dict[str, Constant]:
    """The constants of another profile, demoted to `assumed`, since they were not established for this device."""
    if not isinstance(name, str) or name == path.stem:
        raise InputError(f"{origin}: carry_over: {name!r} is not allowed; allowed: the name of another {kind} profile")
    base = load_profile(kind, name)
    return {
        key: dataclasses.replace(
            item, kind="assumed", source=f"carried over from {base.name} ({item.kind} there): {item.source}"
        )
        for key, item in base.constants.items()
    }


def _parse_range(origin: str, where: str, table: object) -> dict[str, tuple[int, int]]:
    if not isinstance(table, dict):
        raise InputError(f"{origin}: {where}: {table!r} is not a table such as {{ batch = [1, 64] }}")
    ranges: dict[str, tuple[int, int]] = {}
    for key, pair in table.items():
        _allowed(origin, f"{where} key", key, RANGE_NAMES)
        if not (isinstance(pair, list) and len(pair) == 2 and all(type(x) is int for x in pair) and pair[0] <= pair[1]):
            raise InputError(f"{origin}: {where}.{key}: {pair!r} is not allowed; allowed: [low, high] of integers")
        ranges[key] = (pair[0], pair[1])
    return ranges


def _text(origin: str, field: str, table: Mapping[str, Any]) -> str:
    value = table.get(field)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{origin}: {field}: {value!r} is not allowed; allowed: a text")
    return value


def _allowed(origin: str, field: str, value: object, allowed: list[str] | tuple[str, ...], hint: str = "") -> None:
    if value not in allowed:
        raise InputError(f"{origin}: {field}: {value!r} is not allowed; allowed: {', '.join(allowed)}{hint}")
