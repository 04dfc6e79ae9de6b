"""How large a search is: the configurations, with the counts that each must find."""

from __future__ import annotations

from dataclasses import dataclass

from blink.common.layout import GENERATION_NONE


@dataclass(frozen=True, slots=True)
class Configuration:
    """How large the model is: slots, requests, tokens of a request at most, and how often each fault may strike.

    `errors` counts time limits and engine errors. `large` ones run only when asked for. `states`, `transitions`,
    `depth` and `drain_bound` are what the search must find: another number means that the model has drifted.
    """

    name: str
    what: str
    slots: int = 1
    requests: int = 2
    tokens: int = 2
    cancels: int = 0
    pauses: bool = False
    relaunches: int = 0
    crashes: int = 0
    errors: int = 0
    first_generation: int = 0
    large: bool = False
    states: int = 0
    transitions: int = 0
    depth: int = 0
    drain_bound: int = 0


LAST_GENERATION = GENERATION_NONE - 1
"""The generation after which the next one is 0."""

CONFIGURATIONS: tuple[Configuration, ...] = (
    Configuration(
        "one-request",
        "one slot, one request of one token",
        requests=1,
        tokens=1,
        states=53,
        transitions=94,
        depth=17,
        drain_bound=19,
    ),
    Configuration(
        "one-request-relaunch",
        "the scheduler is relaunched once",
        requests=1,
        tokens=1,
        relaunches=1,
        states=106,
        transitions=226,
        depth=18,
        drain_bound=19,
    ),
    Configuration(
        "two-requests",
        "one slot, two requests of one token",
        tokens=1,
        states=119,
        transitions=216,
        depth=34,
        drain_bound=21,
    ),
    Configuration(
        "one-request-crash",
        "the frontend crashes once",
        requests=1,
        tokens=1,
        crashes=1,
        states=232,
        transitions=433,
        depth=23,
        drain_bound=21,
    ),
    Configuration(
        "one-request-cancel",
        "two tokens, a cancel, pauses",
        requests=1,
        cancels=1,
        pauses=True,
        states=519,
        transitions=1_350,
        depth=26,
        drain_bound=30,
    ),
    Configuration(
        "one-slot",
        "one slot, two requests of two tokens, cancels, pauses",
        cancels=2,
        pauses=True,
        states=2_028,
        transitions=5_305,
        depth=44,
        drain_bound=33,
    ),
    Configuration(
        "one-slot-wrap",
        "three requests over the last generation and the first, a cancel, a crash",
        requests=3,
        tokens=1,
        cancels=1,
        crashes=1,
        first_generation=LAST_GENERATION,
        states=4_638,
        transitions=10_047,
        depth=59,
        drain_bound=23,
    ),
    Configuration(
        "one-slot-tokens",
        "three tokens, a cancel, pauses, a relaunch",
        tokens=3,
        cancels=1,
        pauses=True,
        relaunches=1,
        states=6_386,
        transitions=18_776,
        depth=53,
        drain_bound=42,
    ),
    Configuration(
        "one-slot-errors",
        "time limits and engine errors, with a cancel, pauses, a relaunch",
        cancels=1,
        pauses=True,
        relaunches=1,
        errors=2,
        states=8_490,
        transitions=24_171,
        depth=44,
        drain_bound=33,
    ),
    Configuration(
        "one-slot-faults",
        "cancels, pauses, a relaunch, a crash",
        cancels=2,
        pauses=True,
        relaunches=1,
        crashes=1,
        states=18_080,
        transitions=53_147,
        depth=51,
        drain_bound=33,
    ),
    Configuration(
        "two-slots-crash",
        "two slots, two requests of one token, a crash",
        slots=2,
        tokens=1,
        crashes=1,
        states=18_371,
        transitions=45_697,
        depth=43,
        drain_bound=48,
    ),
    Configuration(
        "one-slot-crashes",
        "three requests, two crashes, a cancel",
        requests=3,
        cancels=1,
        crashes=2,
        states=32_211,
        transitions=73_483,
        depth=67,
        drain_bound=32,
    ),
    Configuration(
        "two-slots",
        "two slots, two requests of two tokens, a cancel, pauses",
        slots=2,
        cancels=1,
        pauses=True,
        states=142_953,
        transitions=456_472,
        depth=46,
        drain_bound=73,
    ),
    Configuration(
        "two-slots-recovery",
        "two slots, pauses, a relaunch, a crash",
        slots=2,
        pauses=True,
        relaunches=1,
        crashes=1,
        large=True,
        states=189_636,
        transitions=592_005,
        depth=57,
        drain_bound=72,
    ),
    Configuration(
        "two-slots-three-requests",
        "two slots, three requests of two tokens, a cancel, pauses",
        slots=2,
        requests=3,
        cancels=1,
        pauses=True,
        large=True,
        states=768_625,
        transitions=2_440_304,
        depth=64,
        drain_bound=76,
    ),
    Configuration(
        "two-slots-faults",
        "two slots, a cancel, pauses, a relaunch, a crash",
        slots=2,
        cancels=1,
        pauses=True,
        relaunches=1,
        crashes=1,
        large=True,
        states=1_083_824,
        transitions=3_776_187,
        depth=59,
        drain_bound=73,
    ),
)
"""In the order in which they are searched, by size; two tokens, two requests and one slot unless it says so."""

CONFIGURATION_BY_NAME: dict[str, Configuration] = {row.name: row for row in CONFIGURATIONS}
