"""`blink scenario`: check scenarios without running them, print one with its defaults, print the schema."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from blink.common.errors import InputError

if TYPE_CHECKING:
    from blink.common.config.scenario import Scenario

EXIT_INPUT = 2


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser("scenario", help="check, print or describe scenario files")
    actions = verb.add_subparsers(dest="action", required=True, metavar="ACTION")
    validate = actions.add_parser("validate", help="check files, and the profiles and hops they name, without running")
    validate.add_argument("files", metavar="FILE", nargs="+")
    validate.add_argument("--json", action="store_true", help="print the findings as JSON")
    validate.set_defaults(execute=_validate)
    show = actions.add_parser("show", help="print a scenario with every default filled in")
    show.add_argument("file", metavar="FILE")
    show.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="override an option")
    show.add_argument("--json", action="store_true", help="JSON in place of TOML")
    show.set_defaults(execute=_show)
    schema = actions.add_parser("schema", help="print the JSON schema of a scenario")
    schema.add_argument("--json", action="store_true", help="the schema is JSON already; accepted for uniformity")
    schema.set_defaults(execute=_schema)


def _validate(options: argparse.Namespace) -> int:
    from blink.common.config import load_scenario
    from blink.report.rundir import to_json

    findings: dict[str, str | None] = {}
    for file in options.files:
        findings[file] = None
        try:
            check_profiles(load_scenario(file))
        except InputError as error:
            findings[file] = str(error)
    if options.json:
        files = [{"file": file, "valid": finding is None, "error": finding} for file, finding in findings.items()]
        sys.stdout.write(to_json({"files": files}))
    for file, finding in findings.items():
        if finding is not None:
            print(f"blink: error: {finding}", file=sys.stderr)
        elif not options.json:
            print(f"{file}: valid")
    return EXIT_INPUT if any(findings.values()) else 0


def check_profiles(scenario: Scenario) -> None:
    """Load every profile that a scenario names, and look up its hops. Raises InputError."""
    from blink.perf.dpu import DpuProfile
    from blink.perf.engine import EngineProfile
    from blink.perf.gpu import GpuProfile
    from blink.perf.host_engine import HostEngineProfile
    from blink.perf.plant import engine_name
    from blink.perf.shape import ModelShape
    from blink.sim.topology import topology

    model = scenario.model
    ModelShape.load(model.profile or str(model.hf_config))
    EngineProfile.load(engine_name(scenario))
    if scenario.system.kind != "blink":
        HostEngineProfile.load(scenario.system.profile)
    GpuProfile.load(scenario.gpu.profile)
    DpuProfile.load(scenario.dpu.profile)
    topology(scenario)


def _show(options: argparse.Namespace) -> int:
    from blink.common.config import load_scenario, to_toml
    from blink.report.rundir import to_json

    resolved = load_scenario(options.file, options.set).resolved()
    sys.stdout.write(to_json(resolved) if options.json else to_toml(resolved))
    return 0


def _schema(options: argparse.Namespace) -> int:
    from blink.common.config import json_schema
    from blink.report.rundir import to_json

    sys.stdout.write(to_json(json_schema()))
    return 0
