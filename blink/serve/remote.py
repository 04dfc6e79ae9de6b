"""A ring on another host as a backend: the frontend runs in this server and reaches the ring by one-sided RDMA."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from blink.common.errors import InputError
from blink.common.events import Event
from blink.common.layout import EPOCH_MODULUS, layout_hash
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.trace import TraceHeader, open_writer
from blink.frontend.recovery import HeartbeatWatch
from blink.hw.native.frontend_child import Setup
from blink.hw.native.records import RecordReader
from blink.hw.native.run import MONOTONIC_CLOCK, monotonic_ns
from blink.hw.verbs.attach import Attachment, Door, Remote
from blink.hw.verbs.device import DeviceChoice
from blink.hw.verbs.failure import ConnectionFailedError
from blink.hw.verbs.hello import Identity
from blink.hw.verbs.host import with_boot
from blink.hw.verbs.ring import VerbsRing
from blink.hw.verbs.trace_tail import TraceTail
from blink.serve.backend import Finish, Job, Stats
from blink.serve.keeper_link import KeeperLink
from blink.serve.log import Log
from blink.serve.plan import Order, Plan
from blink.serve.remote_order import remote_digest
from blink.serve.ring import FIRST_NUMBER_SHIFT, HEART_BOUND_NS, MakeFrontend, NoRows, RingBackend

SPIN_NS, LOOK_NS = 30_000, 100_000
"""How long a turn waits for the READ of all control words, an adapter's round trip, and when it looks again."""
_RETRY_LOOK_NS = 20_000_000
_CLOSE_LIMIT_NS = 5_000_000_000


class Ear(KeeperLink):
    """What a frontend would tell its keeper, heard here: what belongs into the trace, and counts."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.counts: dict[str, int] = {}
        self.closed = False
        self.restarting: tuple[int, int] | None = None

    def send(self, *message: Any) -> None:
        """See Link."""
        what, *rest = message
        if what == "count":
            self.counts[rest[0]] = self.counts.get(rest[0], 0) + rest[1]
        elif what == "restarting":
            self.restarting = rest[0], rest[1]
        elif what == "restarted":
            self.restarted()

    def restarted(self) -> None:
        """The new epoch is in the ring: the trace says so, at the time before its WRITE."""
        if self.restarting is not None:
            t_ns, epoch = self.restarting
            self._recorder.reader.add(event=Event.RESTARTED, t_ns=t_ns, epoch=epoch % EPOCH_MODULUS)
            self.restarting = None

    def is_alive(self) -> bool:
        """It is this process."""
        return True


class RemoteBackend(RingBackend):
    """A Backend over a ring that another host keeps.

    If the connection fails, every open job ends with an error, the old queue pair is destroyed, and a thread connects
    again, so many times; then the ring is recovered (E2) and jobs that came meanwhile are served. Once the tries are
    used up the backend says that it is broken.
    """

    def __init__(
        self, remote: Remote, order: Order, plan: Plan, make: MakeFrontend, trace: Path | None, log: Log
    ) -> None:
        """`make` makes the frontend. Raises InputError if the ring is not to be had, or is another one."""
        self.bounds, self._plan, self._make, self._log = plan.bounds, plan, make, log
        self._choice = remote.device
        self._door = Door(*remote.address, Identity("", remote_digest(order, plan)))
        try:
            attachment = self._door.open_with(self._choice)
        except ConnectionFailedError as error:
            raise InputError(str(error)) from None
        except InputError as error:
            hint = "; both sides need the same scenario, --set, --seed, --time-scale, --engine and --model"
            raise InputError(f"{error}{hint if ' settings: ' in str(error) else ''}") from None
        hello = attachment.hello
        self._door = replace(self._door, identity=with_boot(self._door.identity, hello.identity.boot_id))
        self.name = f"{hello.backend}-rdma"
        self.first_number = hello.life << FIRST_NUMBER_SHIFT
        self._start_ns = monotonic_ns()
        self._fresh = not hello.life or VerbsRing(attachment, plan.settings).is_untouched
        self._recorder = self._open_recorder(trace, attachment)
        self._traced = trace is not None
        self._link = self._ear = Ear(self._recorder)
        self._watch = HeartbeatWatch(HEART_BOUND_NS)
        limits = plan.settings.limits
        self._stats = Stats(
            batch_max=limits.batch_max, kv_blocks=plan.settings.kv_block_count, window=limits.window,
            block_tokens=limits.block_tokens,
        )  # fmt: skip
        self._states = bytes(plan.settings.slot_count)
        self._quiet, self._held = 0, list[Job]()
        self._given_up = ""
        self._coming: _Coming | None = None
        self._tail: TraceTail | None = None
        self._known: Callable[[int, int], Request | None] = lambda slot, generation: None
        self._records = RecordReader(
            self._recorder if self._traced else None, lambda slot, generation: self._known(slot, generation),
            self._start_ns + attachment.record_offset_ns,
        )  # fmt: skip
        self._new_records = lambda: self._remote.drain()
        self._take_ring(attachment)
        log.say(
            f"has the ring of {self._door.host}:{self._door.port}", backend=hello.backend, life=hello.life,
            adapter=attachment.device.name, its_adapter=hello.found.get("device", "unknown"),
        )  # fmt: skip

    def _open_recorder(self, trace: Path | None, attachment: Attachment) -> Recorder:
        evidence = self._plan.evidence
        if trace is None:
            recorder = Recorder(NoRows(), reads_each=True, initial_rows=1 << 10, evidence=evidence)
        elif not self._fresh:
            attachment.close()
            raise InputError(
                f"--trace {trace}: another frontend had this ring before; a trace begins with a fresh ring"
            )
        else:
            shared = attachment.clocks.shared and not attachment.hello.record_offset_ns
            header = TraceHeader(
                run=f"serve-{self._start_ns}",
                backend=self.name,
                seed=self._plan.scenario.seed,
                layout_hash=layout_hash(),
                configuration=self._plan.scenario.resolved(),
                clock={**MONOTONIC_CLOCK, "shared": shared},
                token_reads="each",
                evidence=evidence,
            )
            recorder = Recorder(open_writer(trace, header), reads_each=True, evidence=evidence)
        recorder.submitter = recorder.reader
        return recorder

    # --- having the ring, and losing it ---

    def _take_ring(self, attachment: Attachment) -> None:
        """A frontend over a new connection, which recovers the ring unless nobody has used it before."""
        settings, config = self._plan.settings, self._plan.scenario.frontend
        recover, self._fresh = not self._fresh, False
        self._remote = remote = VerbsRing(attachment, settings, self._tail)
        epoch = remote.header_epoch
        if recover:
            remote.settings = replace(settings, frontend_epoch=epoch + 1)
        if self._ear.restarting is not None and epoch == self._ear.restarting[1]:
            self._ear.restarted()  # the connection before this one failed just after its WRITE had landed
            self._recorder.reader.add(event=Event.CRASHED, t_ns=monotonic_ns() - self._start_ns)
        self._ear.restarting = None
        setup = Setup(
            library=Path(), settings=settings, start_ns=self._start_ns, reads_max=config.token_reads_per_poll_max,
            burst_max=config.submissions_per_burst_max, ring_dead_after_ns=HEART_BOUND_NS,
            seed=self._plan.scenario.seed, recover=recover,
        )  # fmt: skip
        self._instance = remote
        self._frontend = self._make(setup, remote, self._link, self._recorder)
        if not self._traced:
            self._frontend._rec = None  # nobody reads the rows
        self._frontend.before_tokens = self._drain
        before, now = self._known, self._frontend.request_of
        self._known = lambda slot, generation: now(slot, generation) or before(slot, generation)
        self._watch.rest()
        if recover:
            self._frontend.recover(epoch, -1)
            self._frontend.flush()

    def _lost(self, error: ConnectionFailedError) -> None:
        """The connection has failed: nobody's tokens come any more. The old queue pair goes first (E2)."""
        self._log.say("the connection to the ring has failed; connecting again", reason=error)
        now = self._frontend.request_of
        self._known = lambda slot, generation: now(slot, generation)
        if self._traced:
            self._frontend.flush()
            self._recorder.reader.add(event=Event.CRASHED, t_ns=monotonic_ns() - self._start_ns)
        self._tail = self._remote.tail
        self._remote.close()
        for job in self._frontend.abandon():
            job.take((), Finish.ERROR)
        self._coming = _Coming(self._door, self._choice)

    def _come_back(self, coming: _Coming) -> None:
        """Whether the other thread has brought a connection, or has given up."""
        if coming.is_trying:
            return
        self._coming = None
        if coming.attachment is None:
            self._given_up = f"the ring is lost: {coming.error}"
            for job in self._take_held():
                job.take((), Finish.ERROR)
            return
        try:
            self._take_ring(coming.attachment)
        except ConnectionFailedError as error:
            self._lost(error)
            return
        self._log.say("has the ring again", life=coming.attachment.hello.life)
        for job in self._take_held():
            self._frontend.submit(job)

    def _take_held(self) -> list[Job]:
        held, self._held = self._held, []
        return held

    # --- the backend ---

    def submit(self, job: Job) -> None:
        """See Backend; while there is no connection, a job waits for one."""
        if self._coming is not None or self._given_up:
            self._held.append(job)
        else:
            super().submit(job)

    def cancel(self, job: Job) -> None:
        """See Backend."""
        if job in self._held:
            self._held.remove(job)
            return
        try:
            super().cancel(job)
        except ConnectionFailedError as error:
            self._lost(error)

    def turn(self) -> int | None:
        """See Backend."""
        if self._coming is not None:
            self._come_back(self._coming)
        if self._given_up:
            for job in self._take_held():
                job.take((), Finish.ERROR)
            return None
        if self._coming is None:
            try:
                return self._ordinary_turn()
            except ConnectionFailedError as error:
                self._lost(error)
        return monotonic_ns() + _RETRY_LOOK_NS

    def _ordinary_turn(self) -> int | None:
        """Submissions go at once; the rest waits, in a later turn, for the READ that this one posts."""
        self._frontend.post()
        if self._frontend.expects and not self._remote.look_for_status(SPIN_NS):
            return monotonic_ns() + LOOK_NS
        return super().turn()

    def slot_states(self) -> bytes:
        """See Backend: as they were when they could last be read."""
        if self._coming is None and not self._given_up:
            try:
                self._states = super().slot_states()
            except ConnectionFailedError as error:
                self._lost(error)
        return self._states

    def stats(self) -> Stats:
        """See Backend."""
        if self._coming is not None:
            self._come_back(self._coming)
        if self._coming is None and not self._given_up:
            try:
                return super().stats()
            except ConnectionFailedError as error:
                self._lost(error)
        self._stats.note = self._given_up
        return self._stats

    def _trouble(self, state: dict[str, int]) -> str:
        if state["failed"]:
            return "a graph was overdue: the scheduler launches nothing any more"
        if self._frontend.expects and not self._watch.look(self._remote.heartbeat(), monotonic_ns()):
            return "the scheduler's heart stands still"
        return ""

    def close(self, *, complete: bool) -> None:
        """See Backend: what was cancelled leaves the ring, which stays with its host for the next frontend."""
        frontend, whole = self._frontend, False
        if self._coming is not None:
            self._coming.stop()
        elif not self._given_up:
            try:
                whole = self._drain_ring()
            except ConnectionFailedError as error:
                self._log.say("the connection to the ring has failed", reason=error)
            self._remote.close()
        self._recorder.close(
            frontend.slot_counts(), complete=complete and whole,
            idle_status_reads=frontend.counters.idle_status_reads, dropped_by_gpu=0 if whole else 1,
        )  # fmt: skip

    def _drain_ring(self) -> bool:
        """Let what was cancelled come to its end, and read the rest of the trace. Whether all of it is here."""
        due_ns = monotonic_ns() + _CLOSE_LIMIT_NS
        while self._frontend.expects and monotonic_ns() < due_ns:
            super().turn()
        self._remote.flush()
        self._remote.attachment.ask({"ask": "records"})
        self._remote.drain_gap_ns = 0
        while (records := self._remote.drain()).size:
            self._records.take(records)
        self._frontend.flush()
        return not self._frontend.expects and not self._remote.state()["trace_dropped"]


class _Coming:
    """A connection on its way, tried by a thread of its own so that nobody waits for it."""

    def __init__(self, door: Door, choice: DeviceChoice) -> None:
        self.attachment: Attachment | None = None
        self.error: Exception | None = None
        self._door, self._choice = door, choice
        self._thread = threading.Thread(target=self._try, name="blink-reconnect", daemon=True)
        self._thread.start()

    def _try(self) -> None:
        try:
            self.attachment = self._door.open_with(self._choice)
        except (ConnectionFailedError, InputError) as error:
            self.error = error

    @property
    def is_trying(self) -> bool:
        """Whether there is no outcome yet."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Nobody wants it any more."""
        self._thread.join()
        if self.attachment is not None:
            self.attachment.close()
