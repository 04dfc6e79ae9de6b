"""Drills on the native backend: both processes are killed for real, and planted bugs are found by the same checks."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from blink.common.drill import Drill
from blink.common.faults import Fault, FaultKind, Moment
from blink.common.results import Outcome
from blink.common.states import SLOT_COUNT, SlotStatus
from blink.hw.native import drill as native
from blink.hw.native import frontend_process
from blink.hw.native.link import Link
from blink.workload.build import NEVER_NS
from blink.workload.drill import PROBE_COUNT, Case, Shape, draw_case
from blink.workload.requests import synthetic
from tests.hw.native_help import needs_compiler
from tests.shared import ROOT

SPAN_NS = 300_000_000
MIDDLE = SPAN_NS // 3


def case_of(seed: int, *faults: Fault) -> Case:
    """The load of a seed under these faults and no others."""
    return replace(draw_case(seed, SPAN_NS, (Shape.STEADY,)), plan=faults)


def queue_case(*faults: Fault, at_once: int = 0) -> Case:
    """Requests that come faster than they are served: at any time some run and many wait in the ring.

    `at_once` more come at the beginning.
    """
    case = draw_case(4, SPAN_NS, (Shape.KV,))
    sent = at_once + 100
    shares = np.zeros(at_once), np.linspace(0, 0.9, 100), np.linspace(1.3, 1.4, PROBE_COUNT)
    arrival = np.concatenate(shares) * SPAN_NS
    size = np.ones(len(arrival), np.int64)
    return replace(
        case,
        plan=faults,
        load=synthetic(arrival.astype(np.int64), 20 * size, 40 * size),
        asked=40 * size,
        patience_ns=NEVER_NS * size,
        probes=frozenset(range(sent, len(arrival))),
        kv_block_count=12,
    )


def done(case: Case, folder: Path) -> Drill:
    """One drill with its judgement, after which no process of it is left."""
    before = set(children())  # such as the tracker of processes that other tests started
    result = native.drill(case, folder)
    result.complaints = result.judge()
    assert set(children()) <= before
    return result


def children(parent: int | None = None) -> list[int]:
    """Processes whose parent is this one, or another."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == (parent or os.getpid()) and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


class PatientClock:
    """Time of a plan that waits: with the crash until many requests are in the ring, then until a frontend serves.

    Between two looks it moves by a moment at most. So it does not matter how fast processes start on this machine, or
    when they get a core.
    """

    IN_RING, STEP_NS, WAIT_MAX_NS = 300, 1_000_000, 180_000_000_000

    def __init__(self) -> None:
        self._real = native._NativeDrill._now
        self._now_ns = self._seen_ns = self._waited_ns = 0

    def now(self, drill: native._NativeDrill) -> int:
        """In place of the drill's own."""
        real_ns = self._real(drill)
        passed_ns, self._seen_ns = max(0, real_ns - self._seen_ns), real_ns
        if self._waited_ns < self.WAIT_MAX_NS and self._waits(drill):
            self._waited_ns += passed_ns
        else:
            self._now_ns += min(passed_ns, self.STEP_NS)
        return self._now_ns

    def _waits(self, drill: native._NativeDrill) -> bool:
        ring = drill._ring
        if ring is None or ring.frontend is None:
            return False
        if not ring.ready or drill._faults.crash is not None:
            return True
        near = self._now_ns > 0.9 * MIDDLE and drill._faults.crash_to_come
        return near and ring.busy_count < self.IN_RING


@needs_compiler
@pytest.mark.parametrize("moment", Moment)
def test_a_frontend_is_killed_and_the_next_one_takes_the_ring_over(
    moment: Moment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots are recovered, the old requests are fenced or over, new ones are served, nothing leaks."""
    clock = PatientClock()
    monkeypatch.setattr(native._NativeDrill, "_now", lambda drill: clock.now(drill))
    crash = Fault(MIDDLE, FaultKind.FRONTEND_CRASH, 1_000_000, moment=moment)
    result = done(queue_case(crash, at_once=400), tmp_path)
    assert result.complaints == []
    assert result.counts["frontend crash"] == (2 if moment is Moment.RECOVERY else 1)
    assert result.counts["requests failed by a frontend crash"] > 0
    assert result.counts["slots recovered"] > 0
    if moment is not Moment.RECOVERY:  # the third frontend needs time to start, and the old requests come to their end
        assert result.coverage[0]["statuses"]["fenced"] > 0
    assert len(result.lives) == 1  # the scheduler went on
    assert result.lives[0].slots == {"free": SLOT_COUNT, "in_use": 0, "recovering": 0}
    assert any(row.outcome is Outcome.COMPLETED for row in result.rows if MIDDLE < row.sent_ns < SPAN_NS)


@needs_compiler
def test_a_crash_over_a_write_happens_however_late_the_frontend_writes(tmp_path: Path) -> None:
    """A slow machine's comes to no WRITE before the faults are to be over: that waits."""
    crash = Fault(MIDDLE, FaultKind.FRONTEND_CRASH, 1_000_000, moment=Moment.WRITES)
    result = done(replace(queue_case(crash), heal_ns=MIDDLE), tmp_path)
    assert result.complaints == []
    assert result.counts["frontend crash"] == 1


@needs_compiler
def test_a_drill_that_takes_long_does_not_hang_while_clients_are_given_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = native._NativeDrill._now
    monkeypatch.setattr(native._NativeDrill, "_now", lambda self: 40 * now(self))  # as on a machine that slow
    result = done(queue_case(), tmp_path)
    assert result.complaints == []
    assert result.duration_ns > native._SILENCE_NS
    assert result.outcomes()["completed"] == len(result.rows)


@needs_compiler
def test_a_killed_scheduler_is_declared_dead_and_every_client_gets_an_error(tmp_path: Path) -> None:
    result = done(queue_case(Fault(MIDDLE, FaultKind.SCHEDULER_CRASH)), tmp_path)
    assert result.complaints == []
    assert result.counts["rings declared dead by their heartbeat"] == 1
    assert result.counts["requests failed by a dead ring"] > 0
    assert [life.ended_by for life in result.lives] == ["the scheduler's heart stands still", ""]


@needs_compiler
def test_a_damaged_descriptor_fails_its_request_and_no_other(tmp_path: Path) -> None:
    result = done(queue_case(Fault(MIDDLE, FaultKind.BAD_DESCRIPTOR, size=200)), tmp_path)
    assert result.complaints == []
    assert result.counts["bad descriptor"] == result.counts["requests ended as bad_descriptor"] == 1
    failed = [row for row in result.rows if row.outcome is Outcome.FAILED]
    assert [row.status for row in failed] == [SlotStatus.BAD_DESCRIPTOR]


@needs_compiler
def test_a_damaged_descriptor_whose_frontend_dies_is_recovered(tmp_path: Path) -> None:
    """The next frontend cannot tell whose it is, and frees its slot all the same."""
    damage = Fault(MIDDLE, FaultKind.BAD_DESCRIPTOR, size=3)
    crash = Fault(MIDDLE, FaultKind.FRONTEND_CRASH, 1_000_000, moment=Moment.ANY)
    result = done(queue_case(damage, replace(crash, at_ns=MIDDLE + 10_000_000)), tmp_path)
    assert result.complaints == []
    assert result.counts["frontend crash"] == 1


@needs_compiler
def test_a_time_limit_ends_what_lives_too_long_and_nothing_after_it(tmp_path: Path) -> None:
    result = done(queue_case(Fault(MIDDLE, FaultKind.TIME_LIMIT, SPAN_NS // 4, 500)), tmp_path)
    assert result.complaints == []
    ended = [row for row in result.rows if row.status == SlotStatus.TIME_LIMIT]
    assert result.counts["requests ended as time_limit"] >= len(ended) > 0
    assert all(row.outcome is Outcome.FAILED for row in ended)


@needs_compiler
def test_a_stuck_graph_ends_as_engine_and_its_ring_still_drains(tmp_path: Path) -> None:
    result = done(queue_case(Fault(MIDDLE, FaultKind.STUCK_GRAPH)), tmp_path)
    assert result.complaints == []
    assert result.counts["watchdog gave a graph up"] == 1
    assert sum(coverage["statuses"]["engine"] for coverage in result.coverage) > 0
    assert result.lives[0].slots["free"] == SLOT_COUNT


@needs_compiler
def test_late_and_reordered_reads_lose_and_repeat_nothing(tmp_path: Path) -> None:
    faults = (
        Fault(0, FaultKind.REORDERED_READS, SPAN_NS // 2, 300),
        Fault(SPAN_NS // 2, FaultKind.STALE_READS, SPAN_NS, 800),
    )
    result = done(case_of(6, *faults), tmp_path)
    assert result.complaints == []
    assert result.counts["status READs out of order"] > 10
    assert result.counts["status READs stale"] > 10
    assert not result.outcomes()["failed"]


CRASHES = tuple(
    Fault(at, FaultKind.FRONTEND_CRASH, 500_000, moment=Moment.ANY) for at in (SPAN_NS // 6, SPAN_NS // 3, SPAN_NS // 2)
)


@needs_compiler
@pytest.mark.parametrize(
    ("bug", "plan", "named"),
    [
        ("frees_everything", CRASHES, ("I1", "I2", "I6", "I9")),
        ("keeps_the_epoch", CRASHES, ("I8",)),
        ("recycles_undrained", (Fault(0, FaultKind.STALE_READS, SPAN_NS, 3_000),), ("I7", "its client has")),
        ("hands_over_again", (), ("I7", "second time")),
        ("nobody_watches", (Fault(MIDDLE, FaultKind.SCHEDULER_CRASH),), ("hang",)),
    ],
)
def test_planted_bugs_are_found(
    bug: str, plan: tuple[Fault, ...], named: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frontend_process, "MODULE", "tests.hw.buggy_frontend")
    monkeypatch.setattr(native, "_SILENCE_NS", 4_000_000_000)
    monkeypatch.setenv("BLINK_TEST_BUG", bug)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    found = done(queue_case(*plan), tmp_path).complaints
    assert any(name in text for name in named for text in found), found


# --- the host's own end ---


def campaign() -> subprocess.Popen[str]:
    """`blink chaos` in a process group of its own, some way into its seeds."""
    command = [sys.executable, "-m", "blink.cli", "chaos", "--backend", "native", "--seed", "3..99"]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    due = time.monotonic() + 20
    while len(children(process.pid)) < 2 and time.monotonic() < due:
        time.sleep(0.02)
    time.sleep(0.3)
    return process


def gone(pids: list[int]) -> bool:
    """Whether these processes end within a few seconds."""
    due = time.monotonic() + 5
    while time.monotonic() < due:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.02)
    return False


@needs_compiler
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_however_the_command_ends_no_process_stays(end: signal.Signals) -> None:
    process = campaign()
    pids = children(process.pid)
    assert len(pids) >= 2
    os.kill(process.pid, end)
    _, errors = process.communicate(timeout=20)
    assert gone(pids)
    if end is signal.SIGINT:
        assert process.returncode == 130
        assert errors == "blink: stopped\n"


def test_a_message_that_was_cut_off_does_not_arrive() -> None:
    mine, its = socket.socketpair()
    link, other = Link(mine, patient=False), Link(its, patient=True)
    other.send("whole", 1)
    data = pickle.dumps(("cut", 2))
    its.sendall(len(data).to_bytes(4, "little") + data[:-1])
    other.close()
    assert link.receive(1.0) == [("whole", 1)]
    assert link.closed
    link.send("nobody hears this")
    link.close()


def test_a_host_never_waits_for_a_frontend_that_does_not_listen() -> None:
    mine, its = socket.socketpair()
    link, other = Link(mine, patient=False), Link(its, patient=True)
    for number in range(20_000):
        link.send("request", number)
    received: list[object] = []
    while len(received) < 20_000:
        link.pump()
        received += other.receive()
    assert received == [("request", number) for number in range(20_000)]
    link.close()
    other.close()
