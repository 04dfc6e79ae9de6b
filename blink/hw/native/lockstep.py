"""The native scheduler in lock-step: arrivals and cancels at step numbers instead of times, every decision recorded.

One iteration is: what is due is written into the ring; the scheduler does one boundary, one decision and what follows
from it; the frontend reads, checks and recycles everything that has ended. Nothing depends on a clock or on threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blink.common.events import Event, GraphKind
from blink.common.policy import Action, Blocked, GraphShape
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import I64, Outcome
from blink.common.states import SLOT_COUNT
from blink.hw.native.driver import Frontend
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.records import Columns, RecordReader
from blink.hw.native.settings import NativeSettings

_ACTIONS = (Action.IDLE, Action.PREFILL, Action.DECODE, Action.RELAUNCH)
_BLOCKED = (Blocked.NOT, Blocked.BATCH, Blocked.KV, Blocked.WINDOW, Blocked.TURN)
STEP_NS = 1_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt that is in the ring before the first boundary at or after step `at_step`."""

    at_step: int
    request_id: int
    prompt_tokens: int
    output_tokens_max: int
    eos_at: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """A cancel word of a request that arrived before, in the ring before the first boundary at or after `at_step`."""

    at_step: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A request that a step claimed, with its KV blocks in the order of its tokens."""

    request_id: int
    slot: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepDecision:
    """One iteration of the scheduler.

    `step` is the number of graphs launched before it. `members` are the slots of the launched graph in the order of its
    rows. `events` are the scheduler's trace events of the iteration in order, as (event, slot, request_id, token_count,
    status); -1 where one does not apply.
    """

    step: int
    action: Action
    blocked: Blocked
    claimed: tuple[Claimed, ...]
    graph: GraphShape | None
    members: tuple[int, ...]
    events: tuple[tuple[Event, int, int, int, int], ...]


class LockStep:
    """A scheduler that goes one iteration at a time. `close` it, or use it as a context manager.

    `settings` are those of a run; the virtual clock, the report and a scheduler without threads are set here. Time
    advances by `step_ns` an iteration. A `recorder` gets the whole trace, both sides.
    """

    def __init__(
        self,
        settings: NativeSettings,
        *,
        flags: tuple[str, ...] = (),
        recorder: Recorder | None = None,
        step_ns: int = STEP_NS,
    ) -> None:
        settings = replace(settings, virtual_clock=True, report=True, engine_thread=False)
        self.instance = Instance(load_library(flags), settings)
        self._step_ns, self._now_ns = step_ns, 0
        self.requests: dict[int, Request] = {}
        self.frontend = Frontend(
            self.instance, lambda: self._now_ns, lambda request, now_ns: None, recorder,
            prompt_area_tokens=settings.prompt_area_tokens, reads_max=SLOT_COUNT, burst_max=SLOT_COUNT,
        )  # fmt: skip
        self._records = RecordReader(recorder, self.frontend.request_of)

    def __enter__(self) -> LockStep:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back."""
        self.instance.close()

    @property
    def step_number(self) -> int:
        """Graphs launched so far."""
        return self.instance.state()["step"]

    def apply(self, operations: Sequence[Arrival | Cancel]) -> None:
        """Write these into the ring now: the arrivals in one burst, in order, then the cancels, in order."""
        for operation in operations:
            if isinstance(operation, Arrival):
                request = Request(
                    operation.request_id, -1, operation.prompt_tokens, operation.eos_at, operation.output_tokens_max,
                    self._now_ns,
                )  # fmt: skip
                self.requests[request.request_id] = request
                self.frontend.receive(request)
        self.frontend.post()
        for operation in operations:
            if isinstance(operation, Cancel):
                request = self.requests[operation.request_id]
                if request.outcome is Outcome.UNFINISHED:
                    self.frontend.cancel(request)

    def step(self) -> StepDecision:
        """One iteration of the scheduler, then one cycle of the frontend."""
        number = self.step_number
        self._now_ns += self._step_ns
        code = self.instance.library.step(self.instance.base, self._now_ns)
        records = self.instance.drain()
        columns = self._records.take(records) if records.size else None
        report = self.instance.read("report_offset", "report")[0]
        decision = StepDecision(
            number,
            _ACTIONS[code],
            _BLOCKED[int(report["blocked"])],
            tuple(self._claimed(int(report["claim_count"]))),
            self._graph(report),
            tuple(self._list(SLOT_COUNT, int(report["member_count"]))),
            tuple(_events(columns)) if columns else (),
        )
        self.frontend.poll()
        return decision

    def run(self, operations: Sequence[Arrival | Cancel], iterations_max: int = 1_000_000) -> list[StepDecision]:
        """Every iteration until all is over. Operations of later steps come forward when nothing is left to do.

        Raises RuntimeError if it is not over after `iterations_max` iterations.
        """
        left = sorted(operations, key=lambda operation: operation.at_step)  # stable: the given order within a step
        decisions: list[StepDecision] = []
        until = 0
        while left or self.frontend.in_ring_count:
            until = max(until, self.step_number)
            due = [operation for operation in left if operation.at_step <= until]
            left = left[len(due) :]
            self.apply(due)
            decision = self.step()
            decisions.append(decision)
            if decision.action is Action.IDLE and not self.frontend.in_ring_count and left:
                until = left[0].at_step
            if len(decisions) >= iterations_max:
                raise RuntimeError(f"{self.frontend.in_ring_count} requests are not over after {iterations_max} steps")
        return decisions

    # --- the report ---

    def _list(self, skip: int, count: int) -> list[int]:
        """Entries of the lists behind the report: claimed slots, then (SLOT_COUNT further on) members."""
        start = int(self.instance.config["report_offset"][0]) + self.instance.library.dtypes["report"].itemsize
        return [int(word) for word in self.instance.words(start + 4 * skip, count)]

    def _claimed(self, count: int) -> Iterator[Claimed]:
        config = self.instance.config
        live = self.instance.read("live_offset", "live", SLOT_COUNT) if count else ()
        for slot in self._list(0, count):
            row = live[slot]
            table = int(config["block_tables_offset"][0]) + 4 * int(row["place"]) * int(config["blocks_per_place"][0])
            blocks = self.instance.words(table, int(row["block_count"]))
            yield Claimed(int(row["request_id"]), slot, tuple(int(block) for block in blocks))

    def _graph(self, report: np.void) -> GraphShape | None:
        if not report["member_count"]:
            return None
        kind = GraphKind(int(report["graph"]))
        return GraphShape(kind, int(report["graph_batch"]), int(report["graph_sequence"]))


def _events(columns: Columns) -> Iterator[tuple[Event, int, int, int, int]]:
    names = ("event", "slot", "request_id", "token_count", "status")
    rows: list[I64] = [columns[name] for name in names]
    for event, *rest in zip(*(values.tolist() for values in rows), strict=True):
        yield (Event(event), *rest)
