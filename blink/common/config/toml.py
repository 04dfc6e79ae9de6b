"""A small TOML writer for plain data: tables, arrays, strings, numbers, booleans."""

from __future__ import annotations

import json
import re
from typing import Any

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(document: dict[str, Any]) -> str:
    """The document as TOML, keys in the order given; `tomllib.loads` gives back an equal document.

    Raises TypeError for a value that TOML cannot hold, None among them.
    """
    lines: list[str] = []
    _table(document, "", lines)
    return "\n".join(lines).lstrip("\n") + "\n" if lines else ""


def _table(table: dict[str, Any], prefix: str, lines: list[str]) -> None:
    scalars = {key: value for key, value in table.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    if prefix and (scalars or not tables):
        lines.extend(("", f"[{prefix}]"))
    lines.extend(f"{_key(key)} = {inline(value)}" for key, value in scalars.items())
    for key, value in tables.items():
        _table(value, f"{prefix}.{_key(key)}" if prefix else _key(key), lines)


def inline(value: Any) -> str:
    """One value as TOML writes it in a line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(inline(entry) for entry in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)} = {inline(entry)}" for key, entry in value.items()) + "}"
    raise TypeError(f"TOML has no form for {type(value).__name__}")


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but TOML wants DEL escaped too.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
