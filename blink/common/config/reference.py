"""docs/scenario.md, generated from the models: `python -m blink.common.config.reference > docs/scenario.md`."""

from __future__ import annotations

import sys
from typing import Any

from blink.common.config.explain import describe
from blink.common.config.scenario import json_schema
from blink.common.config.toml import inline

Schema = dict[str, Any]

INTRODUCTION = """\
# The scenario file

A scenario is one TOML file: what is served, on what, under which load. This page is generated from the models that read
it (`python -m blink.common.config.reference`); `blink scenario schema` prints the same as a JSON schema for editors.

- Unknown keys, wrong types and values out of range are refused in one line that names the file, the field, the value
  and what is allowed. `blink scenario validate FILE` checks without running.
- `blink scenario show FILE` prints the scenario with every default filled in.
- `blink run FILE --set table.key=value` overrides one option; the value is TOML, or text if it is not TOML. An inline
  table replaces a whole table: `--set 'workload.arrivals={kind="all-at-once"}'`.
- Relative paths in the file are taken from the file's folder, paths on the command line from the working directory.
"""


def reference() -> str:
    """The whole page, in Markdown."""
    root = json_schema()
    parts = [INTRODUCTION, "## Top level\n", _rows(root, root, only_values=True)]
    for name, field in root["properties"].items():
        table = _table_of(root, field)
        if _choices(field):
            parts += [f"## [{name}]\n", f"{_meaning(root, field)} One of these kinds:\n"]
            for kind, reference_ in _choices(field).items():
                parts += _kind(root, name, kind, _follow(root, {"$ref": reference_}))
        if table is not None:
            needed = " Required." if name in root["required"] else ""
            parts += [
                f"## [{name}]\n",
                f"{_meaning(root, field)}{needed}\n",
                _rows(root, table),
                *_children(root, name, table),
            ]
    return "\n".join(parts)


def _children(root: Schema, prefix: str, table: Schema) -> list[str]:
    parts: list[str] = []
    for name, field in table["properties"].items():
        dotted = f"{prefix}.{name}"
        choices = _choices(field)
        child = _table_of(root, field)
        if choices:
            parts += [f"### [{dotted}]\n", f"{_meaning(root, field)} One of these kinds:\n"]
            for kind, reference_ in choices.items():
                parts += _kind(root, dotted, kind, _follow(root, {"$ref": reference_}))
        elif child is not None and "properties" in child:
            parts += [f"### [{dotted}]\n", f"{_meaning(root, field)}\n", _rows(root, child)]
        elif "items" in field and (entry := _table_of(root, field["items"])) is not None:
            parts += [f"### [[{dotted}]]\n", f"{_meaning(root, field)} Each entry has:\n", _rows(root, entry)]
    return parts


def _kind(root: Schema, dotted: str, kind: str, table: Schema) -> list[str]:
    fields = {name: field for name, field in table["properties"].items() if name != "kind"}
    parts = [f'**`kind = "{kind}"`**: {table["description"]}\n']
    if fields:
        parts.append(_rows(root, {**table, "properties": fields}))
    for name, field in fields.items():
        child = _table_of(root, field)
        if child is not None and name == next(iter(fields)):
            parts += [f"The tables `{dotted}.{'` and `'.join(fields)}` each have:\n", _rows(root, child)]
    return parts


def _rows(root: Schema, table: Schema, only_values: bool = False) -> str:
    lines = ["| key | default | allowed | unit | meaning |", "|---|---|---|---|---|"]
    for name, field in table["properties"].items():
        if only_values and _table_of(root, field) is not None:
            continue
        default = _default(name, field, table)
        cells = (f"`{name}`", default, _allowed(root, field), field.get("unit", ""), _meaning(root, field))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _default(name: str, field: Schema, table: Schema) -> str:
    if name in table.get("required", ()):
        return "required"
    default = field.get("default")
    if default is None:
        return "unset"
    return "see below" if isinstance(default, dict) and default else f"`{inline(default)}`"


def _allowed(root: Schema, field: Schema) -> str:
    choices = _choices(field)
    if choices:
        return "a table of one of the kinds below"
    schema = _follow(root, field)
    if "additionalProperties" in schema and isinstance(schema["additionalProperties"], dict):
        return "a table of names, each " + describe(_follow(root, schema["additionalProperties"])).removeprefix(
            "must be "
        )
    return describe(schema).removeprefix("must be ").replace('"', "`")


def _table_of(root: Schema, field: Schema) -> Schema | None:
    schema = _follow(root, field)
    return schema if schema.get("type") == "object" and "properties" in schema else None


def _choices(field: Schema) -> dict[str, str]:
    for branch in (field, *field.get("anyOf", ())):
        if "discriminator" in branch:
            return dict(branch["discriminator"]["mapping"])
    return {}


def _follow(root: Schema, schema: Schema) -> Schema:
    while True:
        branches = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
        if "$ref" in schema:
            schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
        elif len(branches) == 1:
            schema = branches[0]
        else:
            return schema


def _meaning(root: Schema, field: Schema) -> str:
    text = field.get("description") or _follow(root, field).get("description", "")
    return str(text).replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(reference())
