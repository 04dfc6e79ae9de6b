"""Tokens at given times in place of a model: a TTFT and an ITL for every job, fixed or drawn. For tests of clients."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import numpy as np

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.common.states import SLOT_COUNT, SlotState
from blink.common.units import NS_PER_MS
from blink.frontend.slot_tracker import SlotTracker
from blink.perf.plant import Plant
from blink.serve.backend import Finish, Job, Stats, count_states
from blink.serve.bounds import bounds_of
from blink.serve.stub import StubText
from blink.workload.streams import Stream, generator

_NUMBER = r"(\d+(?:\.\d+)?)"
_FORMS = {
    "fixed": re.compile(rf"{_NUMBER}"),
    "normal": re.compile(rf"normal:{_NUMBER},{_NUMBER}"),
    "lognormal": re.compile(rf"lognormal:{_NUMBER},{_NUMBER}"),
    "uniform": re.compile(rf"uniform:{_NUMBER},{_NUMBER}"),
    "exponential": re.compile(rf"exponential:{_NUMBER}"),
}
DELAY_FORMS = "MS, normal:MEAN,SD, lognormal:MEAN,SIGMA, uniform:LOW,HIGH or exponential:MEAN, in milliseconds"
_TEXT_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Delay:
    """A distribution of delays, `draw` in nanoseconds; never below 0."""

    kind: str
    a_ns: float
    b: float = 0.0

    @classmethod
    def parse(cls, option: str, text: str) -> Delay:
        """Of an option's text. Raises InputError."""
        for kind, form in _FORMS.items():
            found = form.fullmatch(text)
            if found and len(text) < 64:
                a, b = float(found[1]) * NS_PER_MS, float(found[2]) if len(found.groups()) > 1 else 0.0
                if kind == "uniform" and b * NS_PER_MS < a:
                    break
                return cls(kind, a, b if kind == "lognormal" else b * NS_PER_MS)
        raise InputError(f"{option}: {text!r} is not allowed; allowed: {DELAY_FORMS}")

    def draw(self, rng: np.random.Generator) -> int:
        """One delay."""
        a, b = self.a_ns, self.b
        if self.kind == "fixed":
            return round(a)
        if self.kind == "normal":
            value = rng.normal(a, b)
        elif self.kind == "lognormal":  # `a` is the mean of the delays, not of their logarithms
            value = a * float(np.exp(rng.normal(-b * b / 2, b)))
        elif self.kind == "uniform":
            value = rng.uniform(a, b)
        else:
            value = rng.exponential(a)
        return max(0, round(value))


class TimedBackend:
    """A Backend. At most `batch_max` jobs run, the others wait for a place, first come first served."""

    name = "timed"

    def __init__(
        self,
        scenario: Scenario,
        text: StubText,
        ttft: Delay,
        itl: Delay,
        time_scale: float,
        now: Callable[[], int],
    ) -> None:
        plant = Plant.of(scenario)
        self.bounds = bounds_of(scenario, plant)
        self._batch_max = plant.limits.batch_max
        self._text, self._ttft, self._itl, self._scale, self._now = text, ttft, itl, time_scale, now
        self._rng = generator(scenario.seed, Stream.SERVING)
        self._slots = SlotTracker()
        self._states = bytearray(SLOT_COUNT)
        self._waiting: deque[Job] = deque()
        self._running: dict[int, _Run] = {}
        self._cancelled: set[int] = set()
        self._due: list[tuple[int, int, int]] = []
        self._order = count()
        self._lag_max_ns = 0

    def submit(self, job: Job) -> None:
        """See Backend."""
        self._waiting.append(job)
        self._fill(job.arrived_ns)

    def _fill(self, now_ns: int) -> None:
        while self._waiting and len(self._running) < self._batch_max:
            job = self._waiting.popleft()
            if job.number in self._cancelled:
                self._cancelled.discard(job.number)
                continue
            slot = self._slots.acquire()
            assert slot is not None  # a batch is no larger than the ring
            self._states[slot] = SlotState.PREFILL_PROCESSING
            job.claimed_ns = max(now_ns, job.arrived_ns)
            key = self._text.key(job)
            eos_at = self._text.eos_at(job, key)
            tokens = self._text.text(key, min(eos_at, job.output_tokens_max, _TEXT_MAX))
            self._running[job.number] = _Run(job, slot, tokens, eos_at <= job.output_tokens_max)
            self._push(max(now_ns, job.arrived_ns) + self._scaled(self._ttft), job.number)

    def _scaled(self, delay: Delay) -> int:
        return int(delay.draw(self._rng) * self._scale)

    def _push(self, due_ns: int, number: int) -> None:
        heappush(self._due, (due_ns, next(self._order), number))

    def cancel(self, job: Job) -> None:
        """See Backend."""
        run = self._running.get(job.number)
        if run is not None:
            self._end(run)
            self._fill(self._now())
        elif any(waiting is job for waiting in self._waiting):
            self._cancelled.add(job.number)

    def turn(self) -> int | None:
        """See Backend: a token for each job that is due, one at most."""
        now_ns, due = self._now(), self._due
        ready: list[tuple[int, int]] = []
        while due and due[0][0] <= now_ns:
            due_ns, _, number = heappop(due)
            ready.append((due_ns, number))
        if ready:
            self._lag_max_ns = max(self._lag_max_ns, now_ns - ready[0][0])
        for due_ns, number in ready:
            run = self._running.get(number)
            if run is not None:
                self._token(run, due_ns)
        return due[0][0] if due else None

    def _token(self, run: _Run, due_ns: int) -> None:
        at, job = run.given, run.job
        run.given = at + 1
        self._states[run.slot] = SlotState.DECODE_PROCESSING
        if run.given < len(run.tokens):
            self._push(due_ns + self._scaled(self._itl), job.number)
            job.take(run.tokens[at : at + 1], None)
            return
        self._end(run)
        self._fill(due_ns)
        job.take(run.tokens[at : at + 1], Finish.STOP if run.stops else Finish.LENGTH)

    def _end(self, run: _Run) -> None:
        del self._running[run.job.number]
        self._slots.release(run.slot)
        self._states[run.slot] = SlotState.EMPTY

    def slot_states(self) -> bytes:
        """See Backend."""
        return bytes(self._states)

    def stats(self) -> Stats:
        """See Backend."""
        return Stats(
            running=len(self._running),
            waiting=len(self._waiting) - len(self._cancelled),
            slots=count_states(self._states),
            batch_max=self._batch_max,
            lag_ns=max(0, self._now() - self._due[0][0]) if self._due else 0,
            lag_max_ns=self._lag_max_ns,
        )

    def close(self, *, complete: bool) -> None:
        """See Backend."""


@dataclass(slots=True)
class _Run:
    job: Job
    slot: int
    tokens: list[int]
    stops: bool
    given: int = 0
