"""From a TOML file and the command line's overrides to a validated scenario."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from blink.common.config.explain import explain
from blink.common.config.scenario import Scenario, path_entries
from blink.common.errors import InputError

Override = str | tuple[str, str]
"""`table.key=value`, or a pair of the command line's option that stands for it and that text."""


def load_scenario(path: str | Path, overrides: Sequence[Override] = ()) -> Scenario:
    """Read one scenario; each override is `table.key=value`, the value in TOML, or text if it is not TOML.

    Relative paths in the file are taken from the file's folder, those in an override from the working directory.
    Raises InputError: one line that names the file, the field, the value and what is allowed.
    """
    source = str(path)
    document = read_toml(Path(path))
    for table, key in path_entries(document):
        table[key] = (Path(path).parent / table[key]).as_posix()
    return parse_scenario(document, source, overrides)


def parse_scenario(document: dict[str, Any], source: str, overrides: Sequence[Override] = ()) -> Scenario:
    """The same from plain data; `source` names it in messages."""
    document, origins = copy.deepcopy(document), {}
    for override in overrides:
        option, text = ("--set", override) if isinstance(override, str) else override
        origins[_override(document, option, text)] = option
    try:
        return Scenario.model_validate(document)
    except ValidationError as error:
        raise InputError(explain(error, document, source, origins)) from None


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain data. Raises InputError with the line of a syntax error."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8: a scenario is TOML text") from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: {_syntax(str(error))}") from None


def _syntax(message: str) -> str:
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column (\d+)|end of document)\)", message, re.DOTALL)
    if not found:
        return f"not TOML: {message}"
    place = f"line {found[2]}, column {found[3]}" if found[2] else "at the end"
    return f"{place}: not TOML: {found[1]}"


def _override(document: dict[str, Any], option: str, text: str) -> str:
    dotted, separator, value = text.partition("=")
    dotted = dotted.strip()
    parts = dotted.split(".")
    if not separator or not all(parts):
        raise InputError(f"{option} {text}: must have the form table.key=value")
    table = document
    for depth, part in enumerate(parts[:-1]):
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            raise InputError(f"{option} {text}: {'.'.join(parts[: depth + 1])} is a value, not a table")
        table = inner
    table[parts[-1]] = _toml_value(value.strip())
    return dotted


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}\n")
    except tomllib.TOMLDecodeError:
        return text
    return parsed["value"] if set(parsed) == {"value"} else text
