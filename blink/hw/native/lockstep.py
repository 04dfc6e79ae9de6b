"""The native scheduler in lock-step: arrivals and cancels at step numbers instead of times, every decision recorded.

One iteration is: what is due is written into the ring; the scheduler does one boundary, one decision and what follows
from it; the frontend reads, checks and recycles everything that has ended. Nothing depends on a clock or on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Protocol

import numpy as np

from blink.common.events import Event, GraphKind
from blink.common.lockstep import (
    STEP_NS,
    Arrival,
    Cancel,
    Claimed,
    Machine,
    Operation,
    StepDecision,
    iterate,
)
from blink.common.policy import Action, Blocked, GraphShape
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import I64, Outcome
from blink.common.states import SLOT_COUNT
from blink.hw.native.driver import Frontend
from blink.hw.native.instance import Config, Instance
from blink.hw.native.library import load_library
from blink.hw.native.records import Columns, RecordReader
from blink.hw.native.settings import Durations, NativeSettings
from blink.hw.ring import Records, Ring, Tokens

__all__ = ["STEP_NS", "Arrival", "Cancel", "Claimed", "LockStep", "StepDecision", "lockstep_settings"]

_ACTIONS = (Action.IDLE, Action.PREFILL, Action.DECODE, Action.RELAUNCH)
_BLOCKED = (Blocked.NOT, Blocked.BATCH, Blocked.KV, Blocked.WINDOW, Blocked.TURN)
_TRACE_CAPACITY = 1 << 14
"""Records of one iteration at most: a pause, a claim, a token and a resume of every slot."""


def lockstep_settings(machine: Machine) -> NativeSettings:
    """The settings of a scheduler in lock-step; its graphs take no time."""
    return NativeSettings(
        limits=machine.limits,
        prefill_table=machine.prefill_table,
        decode_table=machine.decode_table,
        kv_block_count=machine.kv_block_count,
        prompt_area_tokens=SLOT_COUNT * machine.prompt_capacity_tokens,
        output_capacity_tokens=machine.output_capacity_tokens,
        slot_count=SLOT_COUNT,
        durations=Durations.none(machine.prefill_table, machine.decode_table),
        time_limit_ns=machine.time_limit_ns,
        trace_capacity=_TRACE_CAPACITY,
    )


class SteppedRing(Ring, Protocol):
    """A ring whose scheduler goes one iteration at a time, and whose structures can be read in between."""

    config: Config

    @property
    def report_bytes(self) -> int:
        """Size of the report in front of its lists."""

    def step(self, now_ns: int) -> int:
        """One iteration at a virtual time; the code of what it did."""

    def read(self, name: str, structure: str, count: int = 1) -> Records:
        """A copy of `count` structures that stand at an offset of the configuration."""

    def words(self, name: str, offset_bytes: int, count: int) -> Tokens:
        """A copy of `count` u32 words, so far behind an offset of the configuration."""


class LockStep:
    """A scheduler that goes one iteration at a time. `close` it, or use it as a context manager.

    `settings` are those of a run; the virtual clock, the report and a scheduler without threads are set here. Time
    advances by `step_ns` an iteration. A `recorder` gets the whole trace, both sides. `open_ring` puts the scheduler
    elsewhere than into this process.
    """

    def __init__(
        self,
        settings: NativeSettings,
        *,
        flags: tuple[str, ...] = (),
        recorder: Recorder | None = None,
        step_ns: int = STEP_NS,
        open_ring: Callable[[NativeSettings], SteppedRing] | None = None,
    ) -> None:
        settings = replace(settings, virtual_clock=True, report=True, engine_thread=False)
        self.instance = open_ring(settings) if open_ring else Instance(load_library(flags), settings)
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
        return int(self.instance.read("state_offset", "state")["step"][0])

    @property
    def in_ring_count(self) -> int:
        """Requests that hold a slot."""
        return self.frontend.in_ring_count

    def asked(self, *, whole: bool) -> dict[str, tuple[int, int]]:
        """What the graphs so far asked of a step model (`Asked.observed`)."""
        return self._records.asked.observed(whole=whole)

    def apply(self, operations: Sequence[Operation]) -> None:
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
        code = self.instance.step(self._now_ns)
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

    def run(self, operations: Sequence[Operation], iterations_max: int = 1_000_000) -> list[StepDecision]:
        """Every iteration until all is over. Operations of later steps come forward when nothing is left to do.

        Raises RuntimeError if it is not over after `iterations_max` iterations.
        """
        decisions = list(islice(iterate(self, operations), iterations_max))
        if len(decisions) == iterations_max:
            raise RuntimeError(f"{self.in_ring_count} requests are not over after {iterations_max} steps")
        return decisions

    # --- the report ---

    def _list(self, skip: int, count: int) -> list[int]:
        """Entries of the lists behind the report: claimed slots, then (SLOT_COUNT further on) members."""
        return [
            int(word) for word in self.instance.words("report_offset", self.instance.report_bytes + 4 * skip, count)
        ]

    def _claimed(self, count: int) -> Iterator[Claimed]:
        config, slots = self.instance.config, self._list(0, count)
        live = self.instance.read("live_offset", "live", max(slots) + 1) if slots else ()
        for slot in slots:
            row = live[slot]
            table = 4 * int(row["place"]) * int(config["blocks_per_place"][0])
            blocks = self.instance.words("block_tables_offset", table, int(row["block_count"]))
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
