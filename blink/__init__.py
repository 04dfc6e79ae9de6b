"""Blink: a digital twin, with a hardware backend, of an LLM serving system that needs no host CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blink.api import Curve, Fleet, InputError, Plan, Run, Scenario, Sweep, load, plan, run, sweep

__version__ = "0.1.0"
__all__ = [
    "Curve",
    "Fleet",
    "InputError",
    "Plan",
    "Run",
    "Scenario",
    "Sweep",
    "__version__",
    "load",
    "plan",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """The names of blink.api, which brings in the simulator: whoever imports a part of the package needs not pay."""
    if name in __all__:
        from blink import api

        return getattr(api, name)
    raise AttributeError(f"module 'blink' has no attribute {name!r}")
