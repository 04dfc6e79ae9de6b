"""`blink profiles`: the constants of the models, each with its unit, its kind and its source."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blink.common.profile import Constant, Profile


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser("profiles", help="list or print the profiles of models, GPUs, hosts, links and the rest")
    actions = verb.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="names of the shipped profiles")
    listing.add_argument("kind", metavar="KIND", nargs="?", help="such as gpu or host (default: all kinds)")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(execute=_list)
    show = actions.add_parser("show", help="every constant of a profile, with unit, kind and source")
    show.add_argument("kind", metavar="KIND", help="such as gpu or host; `blink profiles list` has all")
    show.add_argument("name", metavar="NAME", help="name of a shipped profile, or the path of a TOML file")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(execute=_show)


def _list(options: argparse.Namespace) -> int:
    from blink.common.profile import PROFILE_KINDS, list_profiles, load_profile
    from blink.report.rundir import to_json

    kinds = (options.kind,) if options.kind else PROFILE_KINDS
    found = {kind: {name: load_profile(kind, name).description for name in list_profiles(kind)} for kind in kinds}
    if options.json:
        sys.stdout.write(to_json(found))
        return 0
    for kind, profiles in found.items():
        for name, description in profiles.items():
            print(f"{kind:<11} {name:<18} {description}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from blink.common.profile import load_profile
    from blink.report.rundir import to_json

    profile = load_profile(options.kind, options.name)
    if options.json:
        sys.stdout.write(to_json(_plain(profile)))
    else:
        _print(profile)
    return 0


def _plain(profile: Profile) -> dict[str, Any]:
    constants = {name: _constant(constant) for name, constant in profile.constants.items()}
    head = {"kind": profile.kind, "name": profile.name, "description": profile.description, "constants": constants}
    return {**head, "hops": [dict(hop) for hop in profile.hops]} if profile.hops else head


def _constant(constant: Constant) -> dict[str, Any]:
    plain = {"value": constant.value, "unit": constant.unit, "kind": constant.kind, "source": constant.source}
    ranges = {name: list(bounds) for name, bounds in constant.range.items()}
    return {**plain, "range": ranges} if ranges else plain


def _print(profile: Profile) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(file=sys.stdout)
    console.print(Text(f"{profile.name}: {profile.description}"))
    rows = _rows(profile)
    width = max(len(name) for name, *_ in rows)
    for name, value, unit, kind, source in rows:
        console.print(Text.assemble("\n", (f"{name:<{width}}", "bold"), f"  {_value(value)} {unit}, {kind}"))
        console.print(Padding(Text(source, style="dim"), (0, 0, 0, 4)))


def _rows(profile: Profile) -> list[tuple[str, Any, str, str, str]]:
    rows: list[tuple[str, Any, str, str, str]] = [
        (constant.name, constant.value, constant.unit, constant.kind, constant.source)
        for constant in profile.constants.values()
    ]
    for hop in profile.hops:
        for key, entry in hop.items():
            if isinstance(entry, dict):
                kind, source = entry.get("kind", profile.default_kind), entry.get("source", profile.default_source)
                rows.append((f"{hop['name']}.{key}", entry["value"], entry["unit"], str(kind), str(source)))
    return rows


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
