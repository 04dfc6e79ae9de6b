"""Races of two scheduler instances for one slot, as a relaunch that overlaps its predecessor would make them."""

from __future__ import annotations

from dataclasses import replace

from blink.common.events import GraphKind
from blink.common.lockstep import NO_EOS, Machine
from blink.common.policy import GraphShape, GraphTable, Limits
from blink.common.request import Request
from blink.hw.native.driver import Frontend
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.lockstep import lockstep_settings
from blink.hw.native.settings import NativeSettings

_TABLES = [GraphTable(kind, (1,), (8,), 8, GraphShape(kind, 1, 8)) for kind in GraphKind]
_MACHINE = Machine(Limits(1, 1, 4, 8), _TABLES[0], _TABLES[1], 4, 4, 4)


def race_settings() -> NativeSettings:
    """Of an instance that races: time stands still."""
    return replace(lockstep_settings(_MACHINE), virtual_clock=True)


def pending_slot(instance: Instance) -> int:
    """Submit a request; its slot."""
    frontend = Frontend(
        instance,
        lambda: 0,
        lambda request, now_ns: None,
        None,
        prompt_area_tokens=instance.settings.prompt_area_tokens,
    )
    request = Request(0, -1, 3, NO_EOS, 2, 0)
    frontend.receive(request)
    frontend.post()
    return request.slot


def double_claims(rounds: int, flags: tuple[str, ...] = ()) -> int:
    """How often two threads both believed that they had claimed the same pending slot, in that many races: 0."""
    instance = Instance(load_library(flags), race_settings(), copies=2)
    try:
        return int(instance.library.race_claims(instance.base, pending_slot(instance), rounds))
    finally:
        instance.close()
