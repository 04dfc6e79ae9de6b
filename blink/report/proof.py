"""The tables of `blink prove`: what was searched, what killed each mutant; and the same as Markdown for the docs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from blink.prove.campaign import Proof, Trial
from blink.prove.configurations import Configuration
from blink.prove.properties import INVARIANTS

CONFIGURATION_COLUMNS = ("configuration", "states", "transitions", "depth", "drain", "seconds", "invariants")
MUTANT_COLUMNS = ("mutant", "killed by", "in", "states", "events")
_NUMBERS = {"states", "transitions", "depth", "drain", "seconds", "events"}


def print_proofs(proofs: Sequence[Proof], console: Console) -> None:
    """One line a configuration."""
    table = _table(CONFIGURATION_COLUMNS)
    for proof in proofs:
        found = proof.search
        counts = (f"{found.states:,}", f"{found.transitions:,}", str(found.depth), str(found.drain_bound))
        table.add_row(proof.configuration.name, *counts, _seconds(proof.duration_ns), _held(proof))
    console.print(Padding(table, (1, 0, 0, 0)))


def print_trials(trials: Sequence[Trial], console: Console) -> None:
    """One line a mutant."""
    table = _table(MUTANT_COLUMNS)
    for trial in trials:
        found, where = trial.counterexample, trial.configuration
        outcome = Text(trial.outcome, style="green" if trial.as_expected else "bold red")
        name = where.name if where is not None else f"none of {trial.searched}"
        length = str(len(found.steps)) if found is not None else "-"
        table.add_row(trial.mutant.label, outcome, name, f"{trial.states:,}", length)
    console.print(Padding(table, (1, 0, 0, 0)))


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0))
    for name in columns:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=True)
    return table


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.2f}"


def _held(proof: Proof) -> Text:
    found = proof.search.counterexample
    if found is not None:
        return Text(f"{found.breach.invariant} broken", style="bold red")
    if proof.drift is not None:
        return Text("drift", style="bold red")
    return Text(f"all {len(INVARIANTS)} hold", style="green")


def summary(proofs: Sequence[Proof], trials: Sequence[Trial]) -> str:
    """The last lines: how much holds, how many mutants are killed, and what is wrong if anything is."""
    lines = []
    if proofs:
        held = sum(proof.holds for proof in proofs)
        states = sum(proof.search.states for proof in proofs)
        transitions = sum(proof.search.transitions for proof in proofs)
        lines.append(
            f"{held} of {len(proofs)} configurations hold: {states:,} states, {transitions:,} transitions, "
            f"{_seconds(sum(proof.duration_ns for proof in proofs))} s"
        )
        bound = max(proof.search.drain_bound for proof in proofs)
        if held == len(proofs):
            lines.append(f"once faults stop, at most {bound} events of progress drain the ring (L2)")
        lines += [f"{proof.configuration.name}: {proof.drift}" for proof in proofs if proof.drift is not None]
    if trials:
        killed = sum(trial.counterexample is not None for trial in trials)
        listed = [trial for trial in trials if trial.counterexample is None and trial.as_expected]
        seconds = _seconds(sum(trial.duration_ns for trial in trials))
        known = f", {len(listed)} equivalent" if listed else ""
        lines.append(f"{killed} of {len(trials)} mutants are killed{known}, {seconds} s")
        lines += [f"{trial.mutant.label} is {trial.mutant.value.why}." for trial in listed]
        lines += [f"{trial.mutant.label}: {_surprise(trial)}" for trial in trials if not trial.as_expected]
    return "\n".join(lines)


def _surprise(trial: Trial) -> str:
    if trial.counterexample is not None:
        return "is killed, but stands on the list of equivalents"
    if trial.same_counts:
        return "survives where it was tried, and does not stand on the list of equivalents"
    return "survives, and its states are not those of the protocol"


def configurations_markdown(configurations: Sequence[Configuration]) -> str:
    """The configurations as a table."""
    lines = ["| configuration | what | states | transitions | depth | drain |", "|---|---|---:|---:|---:|---:|"]
    for c in configurations:
        large = " (`--all`)" if c.large else ""
        counts = f"{c.states:,} | {c.transitions:,} | {c.depth} | {c.drain_bound}"
        lines.append(f"| `{c.name}`{large} | {c.what} | {counts} |")
    return "\n".join(lines) + "\n"


def mutants_markdown(trials: Sequence[Trial], shown: Sequence[str]) -> str:
    """The mutants as a table; `shown` has for each what the checker of traces says."""
    lines = [
        "| mutant | wrong belief | killed by | in | events | `blink check` | because |",
        "|---|---|---|---|---:|---|---|",
    ]
    for trial, verdict in zip(trials, shown, strict=True):
        found, where, error = trial.counterexample, trial.configuration, trial.mutant.value
        killed = trial.outcome if found is not None else "-"
        place = f"`{where.name}`" if where is not None else "-"
        length = len(found.steps) if found is not None else "-"
        lines.append(
            f"| `{trial.mutant.label}` | {error.belief} | {killed} | {place} | {length} | {verdict} | {error.why} |"
        )
    return "\n".join(lines) + "\n"
