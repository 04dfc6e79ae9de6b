"""Requests by hand through a real scheduler: bursts and staircases, and what its records say of every graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import monotonic_ns

import numpy as np

from blink.common.lockstep import NO_EOS
from blink.common.request import Request
from blink.common.results import I64
from blink.common.steps import ROW_COLUMNS, StepTable
from blink.hw.cuda.engine_run import Answers, System, drawn_prompts
from blink.hw.native.driver import Frontend
from blink.hw.native.process import Stop
from blink.hw.native.records import RecordReader
from blink.hw.texts import Texts

LIMIT_S = 60.0
Rows = dict[str, I64]


@dataclass(frozen=True, slots=True)
class Burst:
    """Prompts that are posted together once at most `left` requests are in the ring: (prompt, output) tokens each."""

    prompts: tuple[tuple[int, int], ...]
    left: int


def staircase(prompt_tokens: int, batch: int, steps_each: int) -> Burst:
    """`batch` prompts whose outputs end `steps_each` tokens apart: every batch size from `batch` down to 1 occurs."""
    return Burst(tuple((prompt_tokens, 2 + batch + steps_each * (index + 1)) for index in range(batch)), 0)


def prefill_bursts(shapes: Sequence[tuple[int, int]], repeats: int, background: tuple[int, int]) -> Iterator[Burst]:
    """Bursts of (batch, sequence) prompts of two tokens each beside one long request, so that each is claimed whole.

    The background request decodes meanwhile: a scheduler without work would claim the first prompt of a burst alone.
    """
    yield Burst((background,), 0)
    for batch, sequence in shapes:
        for _ in range(repeats):
            yield Burst(((sequence, 2),) * batch, 1)


def run_session(
    system: System, bursts: Sequence[Burst], vocabulary_count: int, *, more: Callable[[], bool] = lambda: True
) -> tuple[StepTable, Rows, list[Request]]:
    """Serve the bursts one after another: every launched graph, the scheduler's rows, the requests with their times."""
    system.ring.reset()
    frontend = Frontend(
        system.ring, monotonic_ns, lambda request, now_ns: None, None,
        prompt_area_tokens=system.ring.settings.prompt_area_tokens,
        texts=Texts(drawn_prompts(vocabulary_count), Answers().take),
        burst_max=system.ring.settings.limits.batch_max,
    )  # fmt: skip
    system.scheduler.wait_until_up()
    reader = RecordReader(None, frontend.request_of, system.scheduler.record_ns(0))
    requests: list[Request] = []
    found: list[Rows] = []

    def drain() -> None:
        while (records := system.ring.drain()).size:
            found.append(reader.take(records))

    for burst in (*bursts, Burst((), 0)):
        _until_left(system, frontend, burst.left, drain)
        for prompt_tokens, output_tokens in burst.prompts:
            request = Request(len(requests), -1, prompt_tokens, NO_EOS, output_tokens, monotonic_ns())
            requests.append(request)
            frontend.receive(request)
        while frontend.waiting_count:
            frontend.post()
        if not more():
            break
    _until_left(system, frontend, 0, drain)
    if not system.scheduler.stop(Stop.DRAIN):
        raise RuntimeError("the scheduler did not stop")
    drain()
    rows = {name: np.concatenate([part[name] for part in found]) for name in (*ROW_COLUMNS, "slot", "status")}
    prompts = {request.request_id: request.prompt_tokens for request in requests}
    return StepTable.of(rows, prompts), rows, requests


def _until_left(system: System, frontend: Frontend, left: int, drain: Callable[[], None]) -> None:
    due = time.monotonic() + LIMIT_S
    while frontend.in_ring_count > left:
        if not frontend.poll():
            time.sleep(0.0001)
        drain()
        if time.monotonic() > due:
            raise RuntimeError(f"{system.scheduler.fault() or 'it takes too long'}: {frontend.in_ring_count} are open")
