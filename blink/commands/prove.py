"""`blink prove`: the exhaustive search of the slot protocol and of its mutants."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from blink.common.errors import InputError

if TYPE_CHECKING:
    from blink.prove.campaign import Progress, Proof, Trial
    from blink.prove.configurations import Configuration

EXIT_NOT_PROVED = 2
SUFFIXES = (".ndjson", ".parquet")
T = TypeVar("T")


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "prove",
        help="search the slot protocol exhaustively",
        description="Search every reachable state of the protocol in each configuration, then its mutants. Exit code "
        "0: every invariant holds and every mutant is killed or known to be equivalent; 2: not so.",
    )
    verb.add_argument("--config", metavar="NAME", action="append", help="search this configuration (repeatable)")
    verb.add_argument("--mutant", metavar="NAME", action="append", help="try this mutant, tell its story (repeatable)")
    verb.add_argument("--all", action="store_true", help="search the large configurations too (minutes)")
    verb.add_argument("--save", metavar="FILE", help="write the trace of the counterexample (.ndjson, .parquet)")
    verb.add_argument("--list", action="store_true", help="name configurations and mutants, search nothing")
    verb.add_argument("--json", action="store_true", help="print JSON")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Search and report; 0 if all is as it must be."""
    from blink.prove.campaign import prove, try_mutants
    from blink.prove.configurations import CONFIGURATION_BY_NAME, CONFIGURATIONS
    from blink.prove.mutants import MUTANT_BY_LABEL, Mutant

    configurations = _named("--config", options.config, CONFIGURATION_BY_NAME)
    mutants = _named("--mutant", options.mutant, MUTANT_BY_LABEL)
    if options.list:
        return _list()
    target = _target(options.save, one=len(mutants) == 1 or bool(configurations and not mutants))
    usual = [row for row in CONFIGURATIONS if options.all or not row.large]
    searched = [] if mutants else configurations or usual
    if not mutants and not configurations:
        mutants = list(Mutant)
    ladder = configurations or [row for row in CONFIGURATIONS if not row.large]
    with _progress() as progress:
        proofs = list(prove(searched, time.perf_counter_ns, progress))
        trials = list(try_mutants(mutants, ladder, time.perf_counter_ns, progress))
    _report(options, proofs, trials)
    if target is not None:
        _save(target, proofs, trials, ladder)
    proved = all(proof.holds for proof in proofs) and all(trial.as_expected for trial in trials)
    return 0 if proved else EXIT_NOT_PROVED


def _named(option: str, wanted: Sequence[str] | None, known: Mapping[str, T]) -> list[T]:
    for name in wanted or ():
        if name not in known:
            raise InputError(f"{option}: {name!r} does not exist; allowed: {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(wanted or ())]


def _target(save: str | None, *, one: bool) -> Path | None:
    """Where the trace goes; whatever is wrong with the path is said before the search."""
    if save is None:
        return None
    path = Path(save)
    if not one:
        raise InputError(
            f"--save {path}: needs to know which counterexample; allowed: with one --mutant, or with --config"
        )
    if path.suffix not in SUFFIXES:
        raise InputError(f"--save {path}: suffix is {path.suffix!r}; allowed: {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise InputError(f"--save {path}: {path.parent} is no folder; allowed: a file in a folder that exists")
    return path


def _list() -> int:
    from blink.prove.configurations import CONFIGURATIONS
    from blink.prove.mutants import Mutant

    for row in CONFIGURATIONS:
        print(f"{row.name:<36}{row.what}{' (large)' if row.large else ''}")
    print()
    for mutant in Mutant:
        print(f"{mutant.label:<36}{mutant.value.belief}")
    return 0


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """One line on a terminal that says what is searched and how far it is."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("searching") as status:

        def update(what: str, states: int, depth: int) -> None:
            status.update(f"{escape(what)}: {states:,} states, depth {depth}")

        yield update


def _report(options: argparse.Namespace, proofs: Sequence[Proof], trials: Sequence[Trial]) -> None:
    from blink.prove.story import story
    from blink.report.rundir import to_json

    if options.json:
        stories = {
            "configurations": [proof.to_json() for proof in proofs],
            "mutants": [
                {**trial.to_json(), "story": story(trial.counterexample) if trial.counterexample else []}
                for trial in trials
            ],
        }
        sys.stdout.write(to_json(stories))
        return
    _print(proofs, trials, tell=bool(options.mutant))


def _print(proofs: Sequence[Proof], trials: Sequence[Trial], *, tell: bool) -> None:
    from rich.console import Console

    from blink.prove.story import story
    from blink.report.proof import print_proofs, print_trials, summary

    console = Console()
    broken = [(proof.configuration.name, proof.search.counterexample) for proof in proofs]
    killed = [(trial.mutant.label, trial.counterexample) for trial in trials if tell]
    for name, found in (*broken, *killed):
        if found is not None:
            print("\n".join(["", name, *story(found)]))
    if proofs:
        print_proofs(proofs, console)
    if trials:
        print_trials(trials, console)
    console.print("\n" + summary(proofs, trials), markup=False, highlight=False)


def _save(path: Path, proofs: Sequence[Proof], trials: Sequence[Trial], ladder: Sequence[Configuration]) -> None:
    """Write the trace of the first counterexample: of a mutant the shortest that a trace can show."""
    from blink.prove.campaign import shown_counterexample
    from blink.prove.recording import save, trace_of_counterexample

    note = ""
    for trial in trials:
        if trial.counterexample is not None:
            shown = shown_counterexample(trial, ladder)
            rules, found = shown or (trial.rules, trial.counterexample)
            if shown is None:
                note = "; the checker cannot see it: no event shows it"
            break
    else:
        broken = [proof.search for proof in proofs if proof.search.counterexample is not None]
        if not broken or broken[0].counterexample is None:
            print(f"blink: nothing written to {path}: there is no counterexample", file=sys.stderr)
            return
        rules, found = broken[0].rules, broken[0].counterexample
    save(path, trace_of_counterexample(rules, found))
    print(f"blink: wrote {path}: {found.breach.invariant} after {len(found.steps)} events{note}", file=sys.stderr)
