"""Which Python binding of libibverbs is used: where it comes from, and what differs between versions.

pyverbs is part of rdma-core and compiled for one interpreter. The distribution's is used where this interpreter can
load it, from within a virtual environment, too. rdma-core 57 renamed the module of constants. Elsewhere the package
`ibverbs` stands in (abi3_binding.py).
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.hw.verbs import abi3_binding

BINDINGS = ("pyverbs", "ibverbs")
"""In the order in which they are tried."""
DISTRIBUTION_FOLDERS = (Path("/usr/lib/python3/dist-packages"), Path("/usr/lib64/python3/site-packages"))
"""Where Debian and Ubuntu, and others, put pyverbs for the system's own interpreter."""
ENUM_MODULES = ("pyverbs.enums", "pyverbs.libibverbs_enums")
"""Before rdma-core 57, and from there on."""
_CLASSES = {
    "Context": "device", "get_device_list": "device", "PD": "pd", "MR": "mr", "DmaBufMR": "mr", "CQ": "cq", "QP": "qp",
    "QPCap": "qp", "QPInitAttr": "qp", "QPAttr": "qp", "AHAttr": "addr", "GlobalRoute": "addr", "GID": "addr",
    "SGE": "wr", "SendWR": "wr", "PyverbsError": "pyverbs_error",
}  # fmt: skip


@dataclass(frozen=True)
class Binding:
    """What is used of pyverbs, by the names that it has there; `enums` is its module of constants."""

    enums: Any
    classes: dict[str, Any]
    name: str = "pyverbs"

    def __getattr__(self, name: str) -> Any:
        try:
            return self.classes[name]
        except KeyError:
            raise AttributeError(name) from None


@lru_cache
def load() -> Binding:
    """The one that $BLINK_VERBS names, else pyverbs, else ibverbs. Raises InputError with what to install."""
    asked = os.environ.get("BLINK_VERBS", "")
    if asked and asked not in BINDINGS:
        raise InputError(f"BLINK_VERBS: {asked!r} is not allowed; allowed: {', '.join(BINDINGS)}")
    why = []
    for name in (asked,) if asked else BINDINGS:
        try:
            return _pyverbs() if name == "pyverbs" else _ibverbs()
        except ImportError as error:
            why.append(f"{name}: {error}")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    raise InputError(
        f"RDMA needs pyverbs or ibverbs for this interpreter (Python {version}): install the distribution's package "
        "python3-pyverbs and run on the distribution's Python, or pip install 'blink-twin[rdma]' on any other; both "
        f"need the distribution's libibverbs ({'; '.join(why)})"
    )


def _pyverbs() -> Binding:
    if importlib.util.find_spec("pyverbs") is None:
        _adopt_the_distributions()
    enums = _enums()
    classes = {name: getattr(importlib.import_module(f"pyverbs.{part}"), name) for name, part in _CLASSES.items()}
    return Binding(enums, classes)


def _ibverbs() -> Binding:
    package = abi3_binding.load_package()
    return Binding(abi3_binding.enums(package), abi3_binding.classes(package), "ibverbs")


def _enums() -> Any:
    for name in ENUM_MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ImportError(f"none of {', '.join(ENUM_MODULES)}")


def _adopt_the_distributions() -> None:
    """Make the distribution's package importable, and no other beside it. Raises ImportError if it is not there.

    Its compiled modules must be made for this interpreter: the file name says so.
    """
    suffixes = tuple(suffix for suffix in importlib.machinery.EXTENSION_SUFFIXES if "cpython" in suffix)
    for folder in DISTRIBUTION_FOLDERS:
        package = folder / "pyverbs"
        if any((package / f"device{suffix}").exists() for suffix in suffixes):
            spec = importlib.util.spec_from_file_location(
                "pyverbs", package / "__init__.py", submodule_search_locations=[str(package)]
            )
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules["pyverbs"] = module
            spec.loader.exec_module(module)
            return
    raise ImportError("not installed for this interpreter")
