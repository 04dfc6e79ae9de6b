"""Mutants that can be compiled into the native scheduler, each named for the wrong belief, and what finds them."""

from __future__ import annotations

from blink.common.errors import InputError

MUTANTS = {
    "claim-without-cas": "a scan that saw a slot pending is enough to store the claim",
    "count-before-token": "the count may be published before the token is stored",
    "cancel-seen-and-ignored": "to record that a cancel was seen is to obey it",
    "relaunch-adopts-nothing": "a fresh scheduler instance may start with an empty batch",
    "never-resume": "what a prefill paused goes on by itself",
    "no-capacity-guard": "a text ends by itself before its output area does",
    "kv-blocks-returned-at-claim": "KV blocks may go back to the free stack while their request runs",
}
"""Mutant -> the wrong belief. The code of each stands in kernels/include/blink under BLINK_MUTANT_<NAME>."""


def flags_of(mutant: str | None) -> tuple[str, ...]:
    """Compiler flags that make the native scheduler this mutant; none for None. Raises InputError if it is unknown."""
    if mutant is None:
        return ()
    label = mutant.lower().replace("_", "-")
    if label not in MUTANTS:
        raise InputError(f"--mutant: {mutant!r} does not exist; allowed: {', '.join(MUTANTS)}")
    return (f"-DBLINK_MUTANT_{label.upper().replace('-', '_')}",)
