"""What-if on top of whole runs: variants of a scenario, many runs at once, sweeps, plans, confidence over seeds.

The package is also the call `blink.plan(question)` of the Python interface, whose name it shares: calling the module
answers a question of capacity.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module that can be called."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        """As `blink.api.plan`."""
        # By name: the interface stands above this package, which must not import it.
        return import_module("blink.api").plan(*args, **options)


sys.modules[__name__].__class__ = _Callable
