"""The whole proof: every configuration holds, and every mutant is killed or stands on the list of equivalents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blink.prove.configurations import Configuration
from blink.prove.explorer import Counterexample, Search, search
from blink.prove.mutants import EQUIVALENT, Mutant
from blink.prove.recording import is_shown
from blink.prove.rules import Rules

Clock = Callable[[], int]
"""Nanoseconds; passed in, because a model asks for no time."""
Progress = Callable[[str, int, int], None]
"""Called now and then with (what is searched, states found, depth)."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A configuration that was searched."""

    configuration: Configuration
    search: Search
    duration_ns: int

    @property
    def drift(self) -> str | None:
        """How the counts differ from those that the configuration declares; None if they do not."""
        c, found = self.configuration, self.search
        declared = (c.states, c.transitions, c.depth, c.drain_bound)
        counted = (found.states, found.transitions, found.depth, found.drain_bound)
        if found.counterexample is not None or declared == counted:
            return None
        return f"states, transitions, depth and drain are {counted}, declared are {declared}: the model has drifted"

    @property
    def holds(self) -> bool:
        """Whether every invariant holds and the counts are those that were declared."""
        return self.search.counterexample is None and self.drift is None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        found = self.search
        return {
            "configuration": self.configuration.name,
            "what": self.configuration.what,
            "states": found.states,
            "transitions": found.transitions,
            "depth": found.depth,
            "drain_depth": found.drain_depth,
            "drain_bound": found.drain_bound,
            "seconds": self.duration_ns / 1e9,
            "holds": self.holds,
            "broken": None if found.counterexample is None else found.counterexample.breach.invariant,
            "drift": self.drift,
        }


@dataclass(frozen=True, slots=True)
class Trial:
    """A mutant that was searched for a counterexample, in one configuration after the other until one killed it.

    `configuration` is that which killed it, None if none did; `states` and `searched` count over all of them.
    `same_counts`: wherever it survived, it had as many states and transitions as the protocol itself.
    """

    mutant: Mutant
    rules: Rules
    counterexample: Counterexample | None
    configuration: Configuration | None
    states: int
    searched: int
    same_counts: bool
    duration_ns: int

    @property
    def as_expected(self) -> bool:
        """Killed, or on the list of equivalents and indistinguishable from the protocol."""
        if self.mutant in EQUIVALENT:
            return self.counterexample is None and self.same_counts
        return self.counterexample is not None

    @property
    def outcome(self) -> str:
        """One word or two for a table: the invariant that killed it, or why none did."""
        if self.counterexample is not None:
            return self.counterexample.breach.invariant
        return "equivalent" if self.as_expected else "survives"

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        found = self.counterexample
        return {
            "mutant": self.mutant.label,
            "belief": self.mutant.value.belief,
            "killed_by": None if found is None else found.breach.invariant,
            "configuration": None if self.configuration is None else self.configuration.name,
            "states": self.states,
            "configurations_searched": self.searched,
            "story_length": None if found is None else len(found.steps),
            "equivalent": self.mutant in EQUIVALENT,
            "why": self.mutant.value.why,
            "as_expected": self.as_expected,
            "seconds": self.duration_ns / 1e9,
        }


def prove(configurations: Sequence[Configuration], clock: Clock, progress: Progress | None = None) -> Iterator[Proof]:
    """Search the protocol in each configuration."""
    for configuration in configurations:
        begin = clock()
        found = search(Rules.of(configuration), _told(progress, configuration.name))
        yield Proof(configuration, found, clock() - begin)


def try_mutants(
    mutants: Sequence[Mutant], configurations: Sequence[Configuration], clock: Clock, progress: Progress | None = None
) -> Iterator[Trial]:
    """Search each mutant until a configuration kills it; they are tried in the order given."""
    for mutant in mutants:
        yield _tried(mutant, configurations, clock, progress)


def _tried(mutant: Mutant, configurations: Sequence[Configuration], clock: Clock, progress: Progress | None) -> Trial:
    begin, states, same = clock(), 0, True
    for searched, configuration in enumerate(configurations, 1):
        rules = Rules.of(configuration, [mutant])
        found = search(rules, _told(progress, f"{mutant.label} in {configuration.name}"))
        states += found.states
        if found.counterexample is not None:
            duration_ns = clock() - begin
            return Trial(mutant, rules, found.counterexample, configuration, states, searched, same, duration_ns)
        same = same and (found.states, found.transitions) == (configuration.states, configuration.transitions)
    return Trial(mutant, rules, None, None, states, len(configurations), same, clock() - begin)


def shown_counterexample(trial: Trial, configurations: Sequence[Configuration]) -> tuple[Rules, Counterexample] | None:
    """The shortest counterexample whose trace the checker rejects for the same invariant, None if there is none.

    The shortest of all may end before any event of a trace shows what is wrong: then a longer one is looked for.
    """
    if trial.counterexample is None:
        return None
    if is_shown(trial.rules, trial.counterexample):
        return trial.rules, trial.counterexample
    invariant = trial.counterexample.breach.invariant
    for configuration in configurations:
        rules = Rules.of(configuration, [trial.mutant])

        def shows(found: Counterexample, rules: Rules = rules) -> bool:
            return found.breach.invariant == invariant and is_shown(rules, found)

        longer = search(rules, accept=shows).counterexample
        if longer is not None:
            return rules, longer
    return None


def _told(progress: Progress | None, what: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda states, depth: progress(what, states, depth)
