"""The model: initial state, enabled actions, next state."""

from __future__ import annotations

from blink.prove import frontend, gpu, wire
from blink.prove.action import Action, Move
from blink.prove.rules import Rules
from blink.prove.state import State

ACTIONS: tuple[Action, ...] = (
    frontend.SUBMIT,
    frontend.CANCEL,
    frontend.POLL,
    frontend.DELIVER,
    frontend.RECYCLE,
    frontend.CRASH,
    frontend.RESTART,
    wire.LAND,
    wire.LAND_LATE,
    wire.CAPTURE,
    wire.SERVE_TOKENS,
    gpu.SEE,
    gpu.CLAIM,
    gpu.LOOK,
    gpu.ABORT,
    gpu.EXPIRE,
    gpu.FAIL,
    gpu.PAUSE,
    gpu.RESUME,
    gpu.RELAUNCH,
    gpu.LAUNCH_PREFILL,
    gpu.LAUNCH_DECODE,
    gpu.GRAPH_DONE,
    gpu.STORE_TOKEN,
    gpu.PUBLISH,
    gpu.PUBLISH_LAST,
)
"""Every action, of the frontend, of the wire and of the gpu."""


def moves(rules: Rules, state: State) -> list[Move]:
    """The actions that are possible now, each with its place, always in the same order."""
    found: list[Move] = []
    frontend.enabled(rules, state, found)
    wire.enabled(rules, state, found)
    gpu.enabled(rules, state, found)
    return found
