"""`blink chaos`: seeded loads under faults, healed, drained and judged, on either backend."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blink.common.errors import InputError

if TYPE_CHECKING:
    from blink.common.drill import Drill
    from blink.workload.drill import Case

EXIT_FAILED = 2
EXIT_NOT_ALL = 3
BACKENDS = ("sim", "native")
SEED_LIMIT_S = 60
"""No seed may take longer, whatever it draws: then it hangs."""
_WORST_SEED = (1 << 63) - 1

Run = Callable[["Case", Path], "Drill"]


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    verb = verbs.add_parser(
        "chaos",
        help="run seeded loads under faults",
        description="For each seed: a random load under random faults, then the faults end, then everything must "
        "drain. Checks the trace, the slots, every client's tokens and answers, and the time. Exit code 0: nothing to "
        "complain about; 2: something is wrong, and the seed that repeats it is printed; 3: not every seed was run in "
        "the time.",
    )
    verb.add_argument(
        "--backend",
        choices=BACKENDS,
        default="sim",
        help="sim: virtual time (the default); native: the device scheduler compiled for the host and the frontend, "
        "each in a process of its own, which are really killed",
    )
    verb.add_argument("--seed", metavar="N|A..B", default="1", help="one seed, or a range (default: 1)")
    verb.add_argument(
        "--minutes", metavar="M", help="time for all seeds together; a single seed is followed by the next until then"
    )
    verb.add_argument("--out", metavar="DIR", help="keep the traces of seeds that fail in this folder")
    verb.add_argument("--json", action="store_true", help="print JSON to standard output, and nothing else there")
    verb.set_defaults(execute=execute)


def execute(options: argparse.Namespace) -> int:
    """Run the seeds and report; 0 if nothing is wrong."""
    first, last = _seeds(options.seed)
    minutes = _minutes(options.minutes)
    out = _folder(options.out)
    span_ns, run = _backend(options.backend)
    ran: list[tuple[Drill, list[str], float]] = []
    left_out = _campaign(options, (first, last), minutes, span_ns, run, out, ran)
    failed = [drill.seed for drill, complaints, _ in ran if complaints]
    if options.json:
        _print_json(options.backend, ran, left_out)
    else:
        _print_summary(options.backend, ran, failed, left_out)
    return EXIT_FAILED if failed else EXIT_NOT_ALL if left_out else 0


def _campaign(
    options: argparse.Namespace,
    seeds: tuple[int, int | None],
    minutes: float | None,
    span_ns: int,
    run: Run,
    out: Path | None,
    ran: list[tuple[Drill, list[str], float]],
) -> str:
    """Run the seeds one after another; which of them were left out for want of time, in words."""
    from blink.workload.drill import draw_case

    first, last = seeds
    end = None if minutes is None else time.monotonic() + 60 * minutes
    following = last is None and end is not None
    wanted = count(first) if following else range(first, (first if last is None else last) + 1)
    with _progress() as progress:
        for seed in wanted:
            if end is not None and ran and time.monotonic() >= end:
                return "" if following else f"{seed}..{last}"
            progress(seed, ran)
            began = time.monotonic()
            drill, complaints = _one(draw_case(seed, span_ns), run, out)
            ran.append((drill, complaints, time.monotonic() - began))
            if not options.json:
                _print_drill(options.backend, *ran[-1], out)
    return ""


def _one(case: Case, run: Run, out: Path | None) -> tuple[Drill, list[str]]:
    """One seed, within the time that a seed may take."""
    from blink.common.drill import Drill

    with tempfile.TemporaryDirectory(prefix="blink-chaos-") as scratch:
        folder = Path(scratch)
        try:
            with _limited(SEED_LIMIT_S):
                drill = run(case, folder)
                complaints = drill.judge()
        except _TooLongError:
            drill = Drill(case.seed, case.plan, case.text, [], case.probes)
            complaints = [f"hang: not over after {SEED_LIMIT_S} s"]
        if complaints and out is not None:
            for life in drill.lives:
                (out / life.trace.name).write_bytes(life.trace.read_bytes())
    return drill, complaints


class _TooLongError(Exception):
    """A seed is not over in time."""


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- options ---


def _seeds(text: str) -> tuple[int, int | None]:
    """First and last seed; no last one if a single seed is named."""
    first, dots, last = text.partition("..")
    numbers = [part for part in (first, last) if part.isascii() and part.isdigit() and int(part) <= _WORST_SEED]
    if len(numbers) != 1 + bool(dots) or (dots and int(last) < int(first)):
        raise InputError(f"--seed: {text!r} is not allowed; allowed: a number N, or a range A..B with A <= B")
    return int(first), int(last) if dots else None


def _minutes(text: str | None) -> float | None:
    try:
        minutes = None if text is None else float(text)
    except ValueError:
        minutes = -1.0
    if minutes is not None and not 0 < minutes < float("inf"):
        raise InputError(f"--minutes: {text!r} is not allowed; allowed: a number above 0")
    return minutes


def _folder(text: str | None) -> Path | None:
    if text is None:
        return None
    folder = Path(text)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {text}: {error.strerror}; allowed: a folder that can be written") from None
    return folder


def _backend(name: str) -> tuple[int, Run]:
    """The time in which faults happen, and what carries a case out."""
    if name == "sim":
        from blink.sim import drill as sim

        return sim.SPAN_NS, sim.drill
    from blink.hw.native import drill as native
    from blink.hw.native.build import require_compiler

    require_compiler()
    return native.SPAN_NS, native.drill


# --- reports ---


@contextmanager
def _progress() -> Iterator[Callable[[int, list[Any]], None]]:
    """On a terminal: the seed that runs."""
    if not sys.stderr.isatty():
        yield lambda seed, ran: None
        return
    from rich.console import Console

    with Console(stderr=True).status("chaos") as status:

        def update(seed: int, ran: list[Any]) -> None:
            failed = sum(bool(complaints) for _, complaints, _ in ran)
            status.update(f"seed {seed}; {len(ran)} done, {failed} failed")

        yield update


def _print_drill(backend: str, drill: Drill, complaints: list[str], seconds: float, out: Path | None) -> None:
    outcomes = ", ".join(f"{number} {name}" for name, number in drill.outcomes().items() if number)
    state = "FAILED" if complaints else "ok"
    rings = "1 ring" if len(drill.lives) == 1 else f"{len(drill.lives)} rings"
    print(
        f"seed {drill.seed:<6} {state:<6} {seconds:5.1f} s  {rings}, {len(drill.plan)} faults; {outcomes}", flush=True
    )
    if not complaints:
        return
    print(f"  {drill.load}")
    for fault in drill.plan:
        print(f"  {fault.text()}")
    for complaint in complaints:
        print(f"  wrong: {complaint}")
    print(f"  repeat with: blink chaos --backend {backend} --seed {drill.seed}")
    if out is not None and drill.lives:
        print(f"  traces: {', '.join(str(out / life.trace.name) for life in drill.lives)}")


def _totals(ran: list[tuple[Drill, list[str], float]]) -> dict[str, int]:
    """How often everything really happened, over all seeds."""
    total: Counter[str] = Counter()
    for drill, _, _ in ran:
        total.update(drill.counts)
    return {name: total[name] for name in sorted(total) if total[name]}


def _print_summary(
    backend: str, ran: list[tuple[Drill, list[str], float]], failed: list[int], left_out: str
) -> None:  # fmt: skip
    totals = _totals(ran)
    width = max((len(name) for name in totals), default=0)
    print("\nWhat really happened:")
    for name, number in totals.items():
        print(f"  {name:<{width}}  {number:>8,}")
    seconds = sum(took for _, _, took in ran)
    print(f"\n{len(ran)} seeds on {backend} in {seconds:.0f} s, {len(failed)} failed", end="")
    print(f": {', '.join(map(str, failed))}" if failed else "")
    if left_out:
        print(f"seeds {left_out} were not run: the time was over")


def _print_json(backend: str, ran: list[tuple[Drill, list[str], float]], left_out: str) -> None:
    from blink.report.rundir import to_json

    seeds = [
        {**drill.to_json(), "complaints": complaints, "seconds": round(seconds, 3)}
        for drill, complaints, seconds in ran
    ]
    found = {"backend": backend, "seeds": seeds, "happened": _totals(ran), "not_run": left_out}
    sys.stdout.write(to_json(found))
