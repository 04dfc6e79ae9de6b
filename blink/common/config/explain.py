"""One line for what is wrong with a scenario: file, field, value, what is allowed."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from blink.common.config.scenario import json_schema
from blink.common.config.toml import inline

Schema = dict[str, Any]


def explain(
    error: ValidationError,
    document: dict[str, Any],
    source: str,
    overrides: dict[str, str],
    root: Schema | None = None,
) -> str:
    """The first finding as one line, with the number of the others.

    `overrides` maps a dotted field to the option of the command line that set it, named in place of the file. `root`
    is the JSON schema of what was read, a scenario unless it is given.
    """
    findings = error.errors(include_url=False)
    field, text = _finding(findings[0], document, root or _ROOT)
    setters = [path for path in overrides if _same_branch(field, path)]
    origin = overrides[max(setters, key=len)] if setters else source  # the longest path is the most specific
    separator = " " if text.startswith("= ") else ": "
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return f"{origin}: {field}{separator}{text}{more}" if field else f"{origin}: {text}{more}"


def _same_branch(field: str, path: str) -> bool:
    one, other = f"{field.replace('[', '.')}.", f"{path}."
    return one.startswith(other) or other.startswith(one)


def _finding(details: ErrorDetails, document: dict[str, Any], root: Schema) -> tuple[str, str]:
    context = details.get("ctx", {})
    path = _data_path(details["loc"], document)
    if details["type"] == "rule":
        return _dotted((*path, *str(context["field"]).split("."))), str(context["message"])
    if details["type"] == "extra_forbidden":
        return _dotted(path), _unknown_key(str(path[-1]), _schema_at(path[:-1], document, root))
    if details["type"] in ("union_tag_not_found", "union_tag_invalid"):
        path = (*path, "kind")
    missing = details["type"] in ("missing", "union_tag_not_found")
    allowed = describe(_schema_at(path, document, root)) or details["msg"][:1].lower() + details["msg"][1:]
    if missing:
        return _dotted(path), f"is missing: {allowed}"
    return _dotted(path), f"= {_shown(_value_at(path, document))}: {allowed}"


def _data_path(location: tuple[int | str, ...], document: dict[str, Any]) -> tuple[int | str, ...]:
    """pydantic's location without the tags of discriminated unions, which are no keys of the file."""
    path: list[int | str] = []
    value: Any = document
    for part in location:
        if isinstance(value, dict) and part not in value and value.get("kind") == part:
            continue
        path.append(part)
        value = _step(value, part)
    return tuple(path)


def _step(value: Any, part: int | str) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def _value_at(path: tuple[int | str, ...], document: dict[str, Any]) -> Any:
    value: Any = document
    for part in path:
        value = _step(value, part)
    return value


def _dotted(path: tuple[int | str, ...]) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".")


def _shown(value: Any) -> str:
    try:
        text = inline(value)
    except TypeError:  # a date or a time: TOML has them, a scenario does not
        text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _unknown_key(key: str, schema: Schema) -> str:
    known = list(schema.get("properties", {}))
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key; {hint}"


_ROOT = json_schema()


def _schema_at(path: tuple[int | str, ...], document: dict[str, Any], root: Schema) -> Schema:
    schema, value = root, document
    for part in path:
        schema = _resolve(schema, value, root)
        if isinstance(part, int):
            prefix = schema.get("prefixItems", [])
            schema = prefix[part] if part < len(prefix) else schema.get("items", {})
        else:
            schema = schema.get("properties", {}).get(part) or schema.get("additionalProperties") or {}
        value = _step(value, part)
    return _resolve(schema, value, root)


def _resolve(schema: Schema, value: Any, root: Schema) -> Schema:
    """The schema behind references and optional or tagged unions, the tag chosen by the value's `kind`."""
    if "$ref" in schema:
        return _resolve(root["$defs"][schema["$ref"].rsplit("/", 1)[1]], value, root)
    branches = [branch for branch in schema.get("anyOf", []) if branch.get("type") != "null"]
    if len(branches) == 1:
        return _resolve(branches[0], value, root)
    if "oneOf" in schema:
        mapping = schema["discriminator"]["mapping"]
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind in mapping:
            return _resolve({"$ref": mapping[kind]}, value, root)
        return {"type": "object", "properties": {"kind": {"enum": list(mapping)}}}
    return schema


def describe(schema: Schema) -> str:
    """What a schema allows, in words: `must be between 1 and 4096`. Empty if it says nothing."""
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return "must be " + _either([inline(value) for value in values])
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _range("whole number" if kind == "integer" else "number", schema)
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]
        count = f"{len(items)} values" if "prefixItems" in schema else "values"
        each = describe(items[0]).removeprefix("must be ")
        return f"must be a list of {count}, each {each}" if each else "must be a list of tables"
    names = {"string": "must be text, not empty", "object": "must be a table", "boolean": "must be true or false"}
    return names.get(str(kind), "")


def _range(noun: str, schema: Schema) -> str:
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f"must be a {noun} between {_number(low)} and {_number(high)}"
    words = [
        f"{text} {_number(bound)}"
        for text, bound in (("at least", low), ("above", above), ("at most", high), ("below", below))
        if bound is not None
    ]
    return f"must be a {noun} " + " and ".join(words) if words else f"must be a {noun}"


def _number(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else repr(bound)


def _either(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
