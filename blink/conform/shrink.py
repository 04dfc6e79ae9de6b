"""Makes a script that shows a difference shorter, as long as it still shows one."""

from __future__ import annotations

from dataclasses import replace

from blink.common.lockstep import Arrival, Operation
from blink.conform.compare import Difference
from blink.conform.lockstep import Compared, Opener, compare_script
from blink.conform.script import Script

TRIES_MAX = 300


def shrink(names: tuple[str, str], openers: tuple[Opener, Opener], script: Script) -> Difference | None:
    """The difference on the shortest script found by leaving out requests and cancels, one after another."""
    difference = compare_script(names, openers, script, Compared())
    tries = 0
    shorter = True
    while shorter and tries < TRIES_MAX:
        shorter = False
        for operation in reversed(script.operations):
            smaller = _at_once(_without(script, operation))
            if not smaller.operations or tries == TRIES_MAX:
                continue
            tries += 1
            found = compare_script(names, openers, smaller, Compared())
            if found is not None:
                script, difference, shorter = smaller, found, True
                break
    return difference


def _at_once(script: Script) -> Script:
    """The script from its first operation on."""
    first = min((operation.at_step for operation in script.operations), default=0)
    return replace(script, operations=tuple(replace(op, at_step=op.at_step - first) for op in script.operations))


def _without(script: Script, gone: Operation) -> Script:
    """The script without a cancel, or without an arrival and its cancels."""

    def stays(operation: Operation) -> bool:
        if isinstance(gone, Arrival):
            return operation.request_id != gone.request_id
        return operation is not gone

    return replace(script, operations=tuple(op for op in script.operations if stays(op)))
