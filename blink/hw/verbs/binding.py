"""The one place that knows pyverbs: where it comes from, and what differs between its versions.

pyverbs is part of rdma-core and compiled for one interpreter. The distribution's is used where this interpreter can
load it, from within a virtual environment, too. rdma-core 57 renamed the module of constants.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from blink.common.errors import InputError

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
    """What this package uses of pyverbs, by the names that it has there; `enums` is its module of constants."""

    enums: Any
    classes: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.classes[name]
        except KeyError:
            raise AttributeError(name) from None


@lru_cache
def load() -> Binding:
    """pyverbs. Raises InputError with what to install."""
    if importlib.util.find_spec("pyverbs") is None:
        _adopt_the_distributions()
    try:
        enums = _enums()
        classes = {name: getattr(importlib.import_module(f"pyverbs.{part}"), name) for name, part in _CLASSES.items()}
    except ImportError as error:
        raise InputError(f"{_ADVICE} ({error})") from None
    return Binding(enums, classes)


_ADVICE = (
    "RDMA needs pyverbs for this interpreter (Python "
    f"{sys.version_info.major}.{sys.version_info.minor}): install the distribution's package python3-pyverbs and run "
    "on the distribution's version of Python, or build pyverbs from an rdma-core of the version that is installed"
)


def _enums() -> Any:
    for name in ENUM_MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ImportError(f"none of {', '.join(ENUM_MODULES)}")


def _adopt_the_distributions() -> None:
    """Make the distribution's package importable, and no other package beside it. Raises InputError if it is not there.

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
    raise InputError(_ADVICE)
