"""A ring that a keeper holds, as a backend: the scheduler runs beside this server, on a host or on a GPU."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from blink.common.layout import STATE_MASK
from blink.common.recorder import Recorder
from blink.common.states import SlotState
from blink.common.trace import Ints, TraceFooter
from blink.frontend.recovery import HeartbeatWatch
from blink.hw.native.frontend_child import RowSender, Setup
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.looker import Looker
from blink.hw.native.memory import SharedBlock
from blink.hw.native.records import RecordReader
from blink.hw.native.run import monotonic_ns
from blink.hw.ring import Records, TakenRing
from blink.serve.backend import Job, Stats, count_states
from blink.serve.keeper import Hello
from blink.serve.keeper_link import KeeperLink
from blink.serve.kept import HOST_STEP_MAX_NS
from blink.serve.live import LiveFrontend
from blink.serve.plan import Order, Plan

GAP_MIN_NS, GAP_MAX_NS = 100_000, 500_000
"""Between two polls while something is expected; it doubles while nothing is new."""
HEART_BOUND_NS = 5_000_000_000
FIRST_NUMBER_SHIFT = 32
"""Request ids of the n-th server on a ring begin at n << 32: none is used twice."""
END_LIMIT_S = 15.0

MakeFrontend = Callable[[Setup, TakenRing, KeeperLink, Recorder], LiveFrontend]


class NoRows:
    """A TraceWriter for a server without a trace."""

    def write(self, columns: Mapping[str, Ints], count: int) -> None: ...

    def close(self, footer: TraceFooter | None) -> None: ...

    def abort(self) -> None: ...


class RingBackend:
    """A Backend over a ring that a keeper holds."""

    def __init__(
        self, order: Order, plan: Plan, end: socket.socket, hello: Hello, block: SharedBlock, make: MakeFrontend
    ) -> None:
        """`end` is connected to the keeper that sent `hello` and `block`; `make` makes the frontend."""
        self.name, self.bounds = order.backend, plan.bounds
        scenario, settings = plan.scenario, plan.settings
        recover = hello.life > 0
        self._end, self._link = end, KeeperLink(end, traced=hello.traced)
        instance = Instance.attach(load_library(), settings, block)
        self._instance: TakenRing = instance
        epoch = instance.header_epoch
        if recover:
            instance.settings = replace(settings, frontend_epoch=epoch + 1)
        frontend = scenario.frontend
        setup = Setup(
            library=instance.library.path, settings=settings, start_ns=hello.start_ns,
            reads_max=frontend.token_reads_per_poll_max, burst_max=frontend.submissions_per_burst_max,
            ring_dead_after_ns=HEART_BOUND_NS, seed=scenario.seed, recover=recover,
        )  # fmt: skip
        sink = RowSender(self._link) if hello.traced else NoRows()
        recorder = Recorder(sink, reads_each=True, initial_rows=1 << 10, evidence=plan.evidence)
        recorder.submitter = recorder.reader
        self._frontend = make(setup, instance, self._link, recorder)
        if not hello.traced:
            self._frontend._rec = None  # nobody reads the rows
        self._records = RecordReader(None, self._frontend.request_of, hello.start_ns)
        self._new_records: Callable[[], Records] = instance.drain if hello.drains else Looker(instance).look
        self._frontend.before_tokens = self._drain
        self._traced = hello.traced
        self.first_number = hello.life << FIRST_NUMBER_SHIFT
        self.keeper_pid = hello.pid
        self._watch = HeartbeatWatch(HOST_STEP_MAX_NS if plan.engine and order.backend == "native" else HEART_BOUND_NS)
        self._quiet = 0
        self._stats = Stats(
            batch_max=settings.limits.batch_max, kv_blocks=settings.kv_block_count, window=settings.limits.window,
            block_tokens=settings.limits.block_tokens,
        )  # fmt: skip
        if recover:
            self._frontend.recover(epoch, -1)
            self._frontend.flush()

    # --- jobs ---

    def submit(self, job: Job) -> None:
        """See Backend."""
        self._frontend.submit(job)
        self._quiet = 0

    def cancel(self, job: Job) -> None:
        """See Backend."""
        self._frontend.give_up(job)
        self._quiet = 0

    # --- turns ---

    def turn(self) -> int | None:
        """See Backend: one burst, one poll."""
        frontend = self._frontend
        busy = frontend.post()
        busy = frontend.poll() or busy
        self._drain()
        if self._traced:
            frontend.flush()
        if not frontend.expects:
            self._watch.rest()
            return None
        self._quiet = 0 if busy else self._quiet + 1
        return monotonic_ns() + min(GAP_MAX_NS, GAP_MIN_NS << min(self._quiet, 8))

    def _drain(self) -> None:
        """Records of the scheduler: they tell when it claimed a request, and when its first token was stored."""
        if (records := self._new_records()).size:
            self._records.take(records)

    # --- the state of things ---

    def slot_states(self) -> bytes:
        """See Backend: as the ring is now."""
        words = np.frombuffer(self._instance.read_status(), np.uint64)
        return (words & np.uint64(STATE_MASK)).astype(np.uint8).tobytes()

    def stats(self) -> Stats:
        """See Backend; it also looks whether keeper and scheduler are well."""
        frontend, stats, state = self._frontend, self._stats, self._instance.state()
        states = self.slot_states()
        stats.slots = count_states(states)
        running = (SlotState.PREFILL_PROCESSING, SlotState.DECODE_PROCESSING, SlotState.DECODE_PAUSED)
        stats.running = sum(stats.slots[one.label] for one in running)
        stats.waiting = max(0, frontend.live_count - stats.running)
        stats.kv_share = (1 - state["free_block_count"] / max(1, stats.kv_blocks)) if state["started"] else 0.0
        stats.window_used, stats.relaunches = state["launches"], state["relaunches"]
        counters = frontend.counters
        stats.poll_count = counters.status_reads + counters.idle_status_reads
        stats.recovering, stats.wrong_tokens = frontend.slots.recovering_count, counters.wrong_tokens
        stats.note = self._trouble(state)
        return stats

    def _trouble(self, state: dict[str, int]) -> str:
        if not self._link.is_alive():
            return "the keeper of the ring is gone, and the scheduler with it"
        if state["failed"]:
            return "a graph was overdue: the scheduler launches nothing any more"
        if self._frontend.expects and not self._watch.look(self._instance.heartbeat(), monotonic_ns()):
            return "the scheduler's heart stands still"
        return ""

    def close(self, *, complete: bool) -> None:
        """See Backend: what was cancelled leaves the ring, then the keeper ends."""
        frontend = self._frontend
        due_ns = monotonic_ns() + 5_000_000_000
        while frontend.expects and monotonic_ns() < due_ns and self._link.is_alive():
            self.turn()
        frontend.flush()
        idle = frontend.counters.idle_status_reads
        self._link.send("bye", frontend.slot_counts(), idle, complete and not frontend.expects)
        self._end.settimeout(END_LIMIT_S)
        with contextlib.suppress(OSError):
            self._end.recv(64)  # the keeper is done, with the trace, too
        self._end.close()
        self._instance.close()
