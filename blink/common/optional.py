"""Packages that not every machine has, imported when something needs them."""

from __future__ import annotations

import importlib
from typing import Any

from blink.common.errors import InputError


def need(module: str, what: str, extra: str) -> Any:
    """Import `module`, or say that `what` needs it and which extra of this package brings it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise InputError(f"{what} needs the package {package}: pip install 'blink-twin[{extra}]'") from None
