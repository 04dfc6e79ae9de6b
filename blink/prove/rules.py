"""What holds in a search: its configuration, and the switches of the mutants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from blink.prove.configurations import Configuration
from blink.prove.mutants import Mutant


@dataclass(frozen=True, slots=True)
class Rules:
    """A configuration and, for each mutant, whether its wrong belief is held."""

    configuration: Configuration
    flag_before_payload: bool = False
    relaxed_write_order: bool = False
    count_published_before_token: bool = False
    count_in_a_second_word: bool = False
    no_generation_check: bool = False
    trust_an_empty_seen_on_the_wire: bool = False
    generation_not_bumped: bool = False
    recycle_before_the_reads_are_done: bool = False
    cancel_through_ctl: bool = False
    claim_without_cas: bool = False
    cancel_without_generation: bool = False
    cancel_ignored_while_paused: bool = False
    relaunch_that_adopts_nothing: bool = False
    restart_that_frees_everything: bool = False
    old_connection_left_alive: bool = False
    no_epoch_fence: bool = False
    no_capacity_guard: bool = False
    never_resume: bool = False

    @classmethod
    def of(cls, configuration: Configuration, mutants: Iterable[Mutant] = ()) -> Rules:
        """The rules with these mutants switched on."""
        return cls(configuration, **{mutant.switch: True for mutant in mutants})


SWITCHES: frozenset[str] = frozenset(field.name for field in fields(Rules)) - {"configuration"}
