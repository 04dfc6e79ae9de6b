"""The four levels of conformance on one scenario, and what each says: a row of what was compared, and a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory

from blink.common.checker import check_trace
from blink.common.config import Scenario
from blink.common.lockstep import Machine
from blink.common.results import Outcome, RunResult
from blink.common.trace import Trace, read_trace
from blink.common.verdict import CONFORMS, INCONCLUSIVE, STUCK, VIOLATES
from blink.conform.backend import Backend
from blink.conform.compare import Difference
from blink.conform.equivalent import compare_lives
from blink.conform.lockstep import compare_scripts, random_scripts
from blink.conform.replay import compare_rows, record, replay
from blink.conform.script import Script
from blink.conform.shrink import shrink
from blink.perf.plant import Plant
from blink.workload.requests import Requests

RACES = 2_000
STALL_S = 10.0
"""A run in which no request ends for so long is stuck, unless the scenario's own times are longer."""
_KV_BLOCKS_MAX = 1 << 22  # of the native backend; nobody notices more

Tick = Callable[[str, int], None]


class Level(Enum):
    """Of protocol.md, "What identical transitions means"."""

    LEGAL = "legal"
    EQUIVALENT = "equivalent"
    LOCKSTEP = "lockstep"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One level, between which backends, over how much, and what came of it."""

    level: Level
    backends: tuple[str, ...]
    compared: dict[str, int]
    code: int = CONFORMS
    reason: str = ""
    difference: Difference | None = None

    @property
    def verdict(self) -> str:
        """In one word or a few."""
        return {CONFORMS: "conforms", INCONCLUSIVE: "inconclusive"}.get(self.code, "differs")

    def to_json(self) -> dict[str, object]:
        """For `--json`."""
        found = None if self.difference is None else {"what": self.difference.what, "context": self.difference.context}
        return {
            "level": self.level.value,
            "backends": list(self.backends),
            "compared": self.compared,
            "verdict": self.verdict,
            "reason": self.reason,
            "difference": found,
        }


@dataclass(frozen=True, slots=True)
class Run:
    """One backend's run of the scenario."""

    result: RunResult
    trace: Trace


@dataclass(slots=True)
class Campaign:
    """Some backends on one scenario. The first of them is what the others are compared with."""

    backends: Sequence[Backend]
    scenario: Scenario
    requests: Requests
    tick: Tick = lambda what, done: None
    stall_s: float = STALL_S
    _runs: dict[str, Run] = field(default_factory=dict)

    def compare(self, levels: Sequence[Level], scripts: int, seed: int) -> Iterator[Comparison]:
        """The levels in their order."""
        for level in Level:
            if level not in levels:
                continue
            first, *others = self.backends
            if level is Level.LEGAL:
                yield from (self.legal(backend) for backend in self.backends)
            elif level is Level.EQUIVALENT:
                yield from (self.equivalent(first, other) for other in others)
            elif level is Level.LOCKSTEP:
                yield from (self.lockstep(first, other, scripts, seed) for other in others)
            else:
                yield from (self.replay(backend) for backend in self.backends if backend.in_real_time)

    def run(self, backend: Backend) -> Run:
        """A backend's run of the scenario, made when it is first asked for."""
        if backend.name not in self._runs:
            self._runs[backend.name] = self._run(backend)
        return self._runs[backend.name]

    def _run(self, backend: Backend) -> Run:
        patience = Patience(self.stall_s)

        def progress(ended: int, total: int, now_ns: int) -> None:
            patience.saw(ended)
            self.tick(f"{backend.name} serves {total} requests", ended)

        with TemporaryDirectory(prefix="blink-conform-") as folder:
            path = Path(folder) / "trace.parquet"
            stop = patience.is_over if backend.in_real_time else _never
            result = backend.run(self.scenario, self.requests, path, progress, stop)
            return Run(result, read_trace(path))

    # --- legal ---

    def legal(self, backend: Backend) -> Comparison:
        """The checker over the trace, every token the one that was sampled, no slot claimed twice in a race."""
        name, run = backend.name, self.run(backend)
        self.tick(f"checking the trace of {name}", 0)
        verdict = check_trace(run.trace)
        compared = {"requests": len(run.result.requests["request_id"]), "events": len(run.trace)}
        code, reason, difference = _code_of(verdict.code), verdict.reason, None
        if verdict.violations:
            finding = verdict.violations[0]
            difference = Difference(f"{name}: {finding.lines()[0]}", tuple(finding.lines()[1:]))
        wrong = run.result.counters.get("wrong_tokens", 0)
        if code == CONFORMS and wrong:
            what = f"I7: {name}: {wrong} tokens that reached the frontend are not those that the engine sampled"
            code, difference = VIOLATES, Difference(what, ())
        if code == CONFORMS and run.result.partial:
            code, difference = (
                VIOLATES,
                Difference(f"L2: {name}: {_unfinished(run)} requests never ended", tuple(run.result.notes)),
            )
        if code == CONFORMS:
            races, code, difference = self._races(backend)
            compared |= races
        return Comparison(Level.LEGAL, (name,), compared, code, reason if code == INCONCLUSIVE else "", difference)

    def _races(self, backend: Backend) -> tuple[dict[str, int], int, Difference | None]:
        self.tick(f"two instances of {backend.name} race for one slot", 0)
        doubles = backend.double_claims(RACES)
        if doubles is None:
            return {}, CONFORMS, None
        if not doubles:
            return {"races": RACES}, CONFORMS, None
        what = f"I4: {backend.name}: in {doubles} of {RACES} races two instances claimed the same (slot, generation)"
        return {"races": RACES}, VIOLATES, Difference(what, ())

    # --- equivalent ---

    def equivalent(self, first: Backend, other: Backend) -> Comparison:
        """Each request's transitions on both."""
        names, ours, theirs = (first.name, other.name), self.run(first), self.run(other)
        self.tick(f"comparing transitions of {names[0]} and {names[1]}", 0)
        compared, difference = compare_lives(names, (ours.trace, theirs.trace), (ours.result, theirs.result))
        if difference is not None:
            return Comparison(Level.EQUIVALENT, names, compared, VIOLATES, "", difference)
        if not compared["requests"]:
            reason = "every request was ended by a clock or refused: nothing can be compared"
            return Comparison(Level.EQUIVALENT, names, compared, INCONCLUSIVE, reason)
        return Comparison(Level.EQUIVALENT, names, compared)

    # --- lock-step ---

    def lockstep(self, first: Backend, other: Backend, scripts: int, seed: int) -> Comparison:
        """The scenario's own arrivals at the steps at which the first backend saw them, then random scripts."""
        names, openers = (first.name, other.name), (first.stepper, other.stepper)

        def candidates() -> Iterator[Script]:
            yield Script(machine_of(self.scenario), tuple(record(self.run(first).trace).operations))
            yield from random_scripts(seed, scripts)

        tally, difference = compare_scripts(
            names, openers, candidates(), lambda done: self.tick(f"scripts, {names[0]} and {names[1]}", done)
        )
        compared = {
            "scripts": tally.scripts,
            "requests": tally.requests,
            "decisions": tally.decisions,
            "events": tally.events,
        }
        if difference is None:
            return Comparison(Level.LOCKSTEP, names, compared)
        assert tally.script is not None
        smaller = shrink(names, openers, tally.script)
        return Comparison(Level.LOCKSTEP, names, compared, VIOLATES, "", smaller or difference)

    # --- replay ---

    def replay(self, backend: Backend) -> Comparison:
        """What a backend's scheduler saw, and how long each step took, given to the simulator's."""
        names, run = (backend.name, "sim"), self.run(backend)
        self.tick(f"replaying the run of {names[0]} in the simulator", 0)
        footer = run.trace.footer
        if run.result.partial or footer is None or any(footer.dropped.values()):
            reason = f"the run of {names[0]} ended early or its trace has drops"
            return Comparison(Level.REPLAY, names, {"events": 0}, INCONCLUSIVE, reason)
        recording = record(run.trace)
        again = replay(recording, machine_of(self.scenario, backend.time_scale))
        compared = {
            "requests": len(recording.slots),
            "decisions": len(recording.steps) + len(recording.relaunched_ns),
            "events": int(recording.rows["event"].size),
        }
        difference = compare_rows(names, recording.rows, again)
        return Comparison(Level.REPLAY, names, compared, VIOLATES if difference else CONFORMS, "", difference)


class Patience:
    """Whether a run still gets somewhere, on this machine's own clock."""

    def __init__(self, stall_s: float) -> None:
        self._stall_s, self._ended, self._since_s = stall_s, -1, time.monotonic()

    def saw(self, ended: int) -> None:
        """So many requests have ended."""
        if ended != self._ended:
            self._ended, self._since_s = ended, time.monotonic()

    def is_over(self) -> bool:
        """No request has ended for too long."""
        return time.monotonic() - self._since_s > self._stall_s


def machine_of(scenario: Scenario, time_scale: float = 1.0) -> Machine:
    """The scheduler's bounds under a scenario whose times are multiplied by `time_scale`."""
    plant = Plant.of(scenario)
    return Machine(
        plant.limits,
        plant.prefill_table,
        plant.decode_table,
        min(plant.memory.kv_block_count, _KV_BLOCKS_MAX),
        scenario.limits.prompt_capacity_tokens,
        scenario.limits.output_capacity_tokens,
        round(scenario.limits.time_limit_ns * time_scale),
    )


def _code_of(code: int) -> int:
    """A stuck trace is a difference, too: the specification asks for its end."""
    return VIOLATES if code == STUCK else code


def _unfinished(run: Run) -> int:
    return int((run.result.requests["outcome"] == Outcome.UNFINISHED).sum())


def _never() -> bool:
    return False
