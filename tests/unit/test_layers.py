"""The layers of docs/architecture.md: who may import whom, at the top of a file or inside a function."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.shared import ROOT

PACKAGE = ROOT / "blink"
TOP = {"api", "report", "plan", "conform", "twin", "serve", "commands", "cli", "__main__"}
"""What stands on everything else; nothing below imports it."""
LOWER = {"common", "frontend", "workload", "perf", "prove"}
"""What every backend may use."""
ALLOWED = {
    "": {"api"},
    "api": {*LOWER, "sim", "report", "plan"},
    "common": set[str](),
    "frontend": {"common"},
    "workload": {"common"},
    "perf": {"common"},
    "prove": {"common"},
    "sim": LOWER - {"prove"},
    "hw": LOWER - {"prove"},
    "report": LOWER,
    "plan": {*LOWER, "sim", "report"},
    "conform": {*LOWER, "sim", "hw"},
    "twin": {*LOWER, "sim", "report", "conform"},
    "serve": {*LOWER, "sim", "hw"},
    "commands": {*LOWER, "sim", "hw", "report", "plan", "conform", "twin", "serve"},
    "cli": {"common", "commands"},
}
"""Layer -> the other layers that it may import; the version in blink/__init__.py is everybody's."""

COMMON_PACKAGES = {"numpy"}
PYDANTIC = {"pydantic", "pydantic_core"}
PARQUET_FILES = {"trace_parquet.py", "lifecycle.py"}
"""The files of common that read and write traces as Parquet."""
NEVER_IN_COMMON = {"socket", "simpy", "cupy", "torch"}
HEAVY = ("matplotlib", "torch", "cupy", "cuda", "pyverbs", "tensorrt")
OTHER_PACKAGES = {
    "frontend": {"numpy", "msgspec"},
    "workload": {"numpy"},
    "perf": {"numpy", "networkx"},
    "prove": {"numpy"},
    "sim": {"numpy", "simpy", "networkx"},
}
"""Layer -> packages beyond the standard library; hw and the top need what their machines have."""

Import = tuple[str, int]  # module, line


def layer_of(path: Path) -> str:
    """The layer that a file of the package belongs to, empty for the package's own __init__."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


def imports(path: Path) -> Iterator[Import]:
    """Every module that a file names in an import, wherever it stands."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are absolute here"
            assert node.module is not None
            # `from blink import sim` names a layer as much as `import blink.sim` does.
            named = (f"blink.{alias.name}" for alias in node.names) if node.module == "blink" else (node.module,)
            yield from ((name, node.lineno) for name in named)


FILES = sorted(PACKAGE.rglob("*.py"))
IMPORTS = {path: list(imports(path)) for path in FILES}


def broken(layer: str, wrong: Callable[[Path, str], bool]) -> list[str]:
    """Where the files of a layer import a module that is `wrong` for that file."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {module}"
        for path, found in IMPORTS.items()
        if layer_of(path) == layer
        for module, line in found
        if wrong(path, module)
    ]


def test_every_folder_is_a_known_layer() -> None:
    layers = {layer_of(path) for path in FILES}
    assert layers <= set(ALLOWED)
    assert {"common", "frontend", "workload", "perf", "sim", "report", "commands", "cli"} <= layers


@pytest.mark.parametrize("layer", ALLOWED)
def test_a_layer_imports_only_what_lies_below_it(layer: str) -> None:
    allowed = {*ALLOWED[layer], layer}
    inner = {name for name in {layer_of(path) for path in FILES} if name}

    def wrong(path: Path, module: str) -> bool:
        package, _, rest = module.partition(".")
        name = rest.partition(".")[0]
        return package == "blink" and name in inner and name not in allowed

    assert broken(layer, wrong) == []


def test_the_rules_put_sim_and_hw_side_by_side_and_the_top_above_all() -> None:
    assert "hw" not in ALLOWED["sim"]
    assert "sim" not in ALLOWED["hw"]
    for layer in (*LOWER, "sim", "hw"):
        assert not TOP & ALLOWED[layer]
    order: list[str] = []
    while len(order) < len(ALLOWED):
        ready = [layer for layer, below in ALLOWED.items() if layer not in order and below <= set(order)]
        assert ready, "the layers form a cycle"
        order += ready


def test_common_needs_the_standard_library_and_numpy_alone() -> None:
    def wrong(path: Path, module: str) -> bool:
        package = module.partition(".")[0]
        inside = path.relative_to(PACKAGE / "common")
        allowed = {"blink"} | COMMON_PACKAGES
        if inside.parts[0] == "config":
            allowed |= PYDANTIC
        if inside.name in PARQUET_FILES:
            allowed.add("pyarrow")
        foreign = package not in sys.stdlib_module_names and package not in allowed
        return foreign or package in NEVER_IN_COMMON

    assert broken("common", wrong) == []


def test_common_loads_pyarrow_only_when_a_parquet_file_is_touched() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in FILES
        if layer_of(path) == "common" and path.name not in {"trace_parquet.py", "__init__.py"}
    ]
    code = f"import sys, {', '.join(modules)}; print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("layer", OTHER_PACKAGES)
def test_a_layer_brings_in_no_other_package(layer: str) -> None:
    allowed = {"blink"} | OTHER_PACKAGES[layer]
    assert broken(layer, lambda _, module: module.partition(".")[0] not in {*sys.stdlib_module_names, *allowed}) == []


def test_the_frontends_logic_opens_no_socket_and_reads_no_clock() -> None:
    """The logic is sans-I/O; a server or a transport would be a file of its own, named here."""
    effects = {"socket", "asyncio", "ssl", "http", "time", "threading", "random", "subprocess"}
    assert broken("frontend", lambda _, module: module.partition(".")[0] in effects) == []


@pytest.mark.parametrize("layer", ["common", "frontend", "workload", "perf", "sim", "prove"])
def test_randomness_is_passed_in(layer: str) -> None:
    """No module draws from the global generator of `random`, and no model asks for the time of day."""
    assert broken(layer, lambda _, module: module in {"random", "secrets", "time"}) == []


def test_simulating_loads_no_package_of_real_hardware_and_no_plotting(tmp_path: Path) -> None:
    code = (
        "import sys, blink.cli as cli\n"
        "cli.parser()\n"
        "started = [name for name in HEAVY if name in sys.modules]\n"
        "code = cli.main(['run', SCENARIO, '--json'])\n"
        "ran = [name for name in HEAVY if name in sys.modules]\n"
        "print(code, started, ran, 'simpy' in sys.modules, file=sys.stderr)\n"
    )
    code = code.replace("HEAVY", repr(HEAVY)).replace("SCENARIO", repr(str(ROOT / "scenarios" / "ci-tiny.toml")))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stderr == "0 [] [] True\n"
