"""The frontend's process: attaches to the ring that it inherits, recovers it if it is not the first, and serves.

Run as `python -m blink.hw.native.frontend_child FD`; FD is its end of a Link. It stands by until the first message says
what to do: Setup, descriptor and size of the block. It may be killed at any point: rows of the trace that tell of a
WRITE are sent before the WRITE is carried out.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from blink.common.events import Event, Phase
from blink.common.faults import FaultKind, with_bit_flipped
from blink.common.layout import EPOCH_MODULUS
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.results import I64, Outcome
from blink.common.trace import Ints, TraceFooter
from blink.frontend.operations import Region, Write
from blink.frontend.recovery import HeartbeatWatch, Left, Recovery
from blink.frontend.token_reader import News
from blink.hw.native.driver import EVIDENCE, Frontend, nap
from blink.hw.native.instance import Instance
from blink.hw.native.library import Library
from blink.hw.native.link import Link, Message
from blink.hw.native.memory import SharedBlock
from blink.hw.native.settings import NativeSettings
from blink.hw.ring import TakenRing
from blink.hw.texts import Texts

_CHECK_NS = 2_000_000
_EVERYTHING_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Setup:
    """What a frontend needs to begin. `start_ns` is 0 of the run's clock; `seed` is of its READs' delays.

    `opener` gives the ring if it is reached otherwise than through the inherited memory; it is pickled.
    `recover`: take the ring over from a dead frontend. `die_at`: kill itself at that point of the recovery (0: before
    the epoch is told, 1: before it is written, 2: after that, 3: with the ring read and nothing recycled; -1: nowhere).
    """

    library: Path
    settings: NativeSettings
    start_ns: int
    reads_max: int
    burst_max: int
    ring_dead_after_ns: int
    seed: int
    recover: bool = False
    die_at: int = -1
    opener: Callable[[NativeSettings], TakenRing] | None = None


class RowSender:
    """A TraceWriter whose file is at the other end of the link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def write(self, columns: Mapping[str, Ints], count: int) -> None:
        """Send some rows."""
        self._link.send("rows", count, {name: values for name, values in columns.items() if (values != -1).any()})

    def close(self, footer: TraceFooter | None) -> None: ...

    def abort(self) -> None: ...


def die() -> None:
    """As `kill -9` would end this process, at this very point."""
    os.kill(os.getpid(), signal.SIGKILL)


class ServingFrontend(Frontend):
    """The frontend of a run, with a dead one's slots to recover, READs that may be late, and points to die at."""

    def __init__(
        self, setup: Setup, instance: TakenRing, link: Link, recorder: Recorder, texts: Texts | None = None
    ) -> None:
        self._instance, self._start_ns, self._link, self._recorder = instance, setup.start_ns, link, recorder
        super().__init__(
            instance, self.now, self._tell, recorder,
            prompt_area_tokens=setup.settings.prompt_area_tokens,
            reads_max=setup.reads_max,
            burst_max=setup.burst_max,
            texts=texts,
        )  # fmt: skip
        self.recovery: Recovery | None = None
        self.writes_to_live: int | None = None
        self.damage: int | None = None  # this bit of the next descriptor flips on its way
        self.trouble: tuple[str, int, int] | None = None  # kind, until_ns, the longest delay in us
        self._rng = np.random.default_rng(setup.seed)

    def now(self) -> int:
        """Nanoseconds since the start of the run."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC) - self._start_ns

    # --- what the host hears ---

    def flush(self) -> None:
        """Send the rows that are recorded."""
        self._recorder.flush(_EVERYTHING_NS)

    def _tell(self, request: Request, now_ns: int) -> None:
        self._link.send("ended", request.request_id, int(request.outcome), request.status, request.output_tokens)

    def _hand_over(self, news: News, count: I64, read_ns: int) -> None:
        columns = (news.slots, news.token_from, news.token_count)
        given = [
            (self._by_slot[slot].request_id, start, end)
            for slot, start, end in zip(*(column.tolist() for column in columns), strict=True)
            if end > start and self._by_slot[slot].cancelled_ns is None
        ]
        if given:
            self._link.send("tokens", given)
        super()._hand_over(news, count, read_ns)

    # --- WRITEs ---

    def _carry_out(self, write: Write) -> None:
        """A row is at the host before the WRITE that it tells of is in the ring."""
        if write.region is not Region.PROMPT:
            self.flush()
        if self.damage is not None and write.data is not None and write.holds_descriptors:
            write, self.damage = write._replace(data=with_bit_flipped(write.data, self.damage)), None
            self._link.send("count", FaultKind.BAD_DESCRIPTOR.value, 1)
        if self.writes_to_live is not None:
            self.writes_to_live -= 1
            if self.writes_to_live < 0:
                self._part_of(write)
                die()
        super()._carry_out(write)

    def _part_of(self, write: Write) -> None:
        """The last WRITE of a frontend that dies over it: none, some or all of its slots' words arrive."""
        stride = {Region.STATUS: 16, Region.DESCRIPTOR: 64}.get(write.region, write.size_bytes)
        whole = -(-write.size_bytes // stride)
        kept = int(self._rng.integers(0, whole + 1))
        size = min(write.size_bytes, kept * stride - 8 * (write.region is Region.STATUS))
        if size > 0 and write.data is not None:
            self._instance.write(Write(write.region, write.offset_bytes, size, write.data[:size]))

    # --- READs ---

    def poll(self) -> bool:
        """One cycle, with the trouble that READs have now."""
        if self.recovery is not None and not self.recovery.done:
            self._recover_more(self.recovery)
        trouble = self.trouble
        if trouble is None or self.now() > trouble[1]:
            return super().poll()
        return self._poll_twice(trouble[2]) if trouble[0] == "reordered" else self._poll_late(trouble[2])

    def _poll_late(self, most_us: int) -> bool:
        """The READ completes long after it captured the ring."""
        posted_ns = self.now()
        words = self._instance.read_status().copy()
        self._wait(most_us)
        self._read_row(posted_ns, Phase.POSTED)
        self._read_row(self.now(), Phase.DONE)
        self._link.send("count", "status READs stale", 1)
        news = self._reader.on_status(words)
        if news is not None:
            self._recycle(self._receive(news))
        return news is not None

    def _poll_twice(self, most_us: int) -> bool:
        """Two READs in flight: the older snapshot completes last. Recycling waits for both."""
        ended: list[int] = []
        snapshots = []
        for _ in range(2):
            self._read_row(self.now(), Phase.POSTED)
            snapshots.append(self._instance.read_status().copy())
            self._wait(most_us)
        self._link.send("count", "status READs out of order", 1)
        seen = False
        for words in reversed(snapshots):
            self._read_row(self.now(), Phase.DONE)
            news = self._reader.on_status(words)
            if news is not None:
                seen = True
                ended += self._receive(news)
        self._recycle(ended)
        return seen

    def _wait(self, most_us: int) -> None:
        time.sleep(float(self._rng.uniform(0, most_us)) * 1e-6)

    def _read_row(self, t_ns: int, phase: Phase) -> None:
        self._recorder.reader.add(event=Event.STATUS_READ, t_ns=t_ns, phase=phase)

    # --- E2 ---

    def recover(self, header_epoch: int, die_at: int) -> None:
        """Take the ring over: the old process is gone, and with it everything that it could still write."""
        self.recovery = recovery = Recovery(self.slots, self.prompts, header_epoch)
        write = recovery.begin()
        if die_at == 0:
            die()
        self._link.send("restarting", self.now(), recovery.epoch)
        if die_at == 1:
            die()
        self._instance.write(write)
        if die_at == 2:
            die()
        self._link.send("restarted")
        left = recovery.adopt(self._instance.read_status(), self._instance.read_descriptors())
        for found in left:
            self._link.send("count", f"slots found {found.state.label} by a restart", 1)
        if die_at == 3:
            die()

    def _recover_more(self, recovery: Recovery) -> None:
        """T10 of what has completed meanwhile; the READ that showed it is done."""
        posted_ns = self.now()
        found = recovery.completed(self._instance.read_status())
        if not found:
            return
        self._read_row(posted_ns, Phase.POSTED)
        self._read_row(self.now(), Phase.DONE)
        for left in found:
            self._free(recovery, left)
        self._link.send("count", "slots recovered", len(found))

    def _free(self, recovery: Recovery, left: Left) -> None:
        write = recovery.recycle(left.slot)
        self._recorder.move(
            self._recorder.reader, Event.RECYCLE, self.now(), left.slot, self.slots.generation(left.slot),
            recovery.epoch % EPOCH_MODULUS, left.request_id, 0,
        )  # fmt: skip
        self._carry_out(write)

    # --- the state of things ---

    @property
    def expects(self) -> bool:
        """Whether anything is still to come from the ring."""
        waits = self.recovery is not None and not self.recovery.done
        return waits or self.in_ring_count > 0 or bool(self._waiting)

    def open_requests(self) -> list[Request]:
        """Requests whose clients wait, in the ring or before it."""
        return [*self._waiting.values(), *self.unfinished()]

    def slot_counts(self) -> dict[str, int]:
        """For the trace's footer."""
        slots = self.slots
        return {"free": slots.free_count, "in_use": slots.in_use_count, "recovering": slots.recovering_count}


class Child:
    """The loop of the process."""

    def __init__(self, setup: Setup, block: SharedBlock, link: Link) -> None:
        self._instance: TakenRing = (
            setup.opener(setup.settings)
            if setup.opener is not None
            else Instance.attach(Library(setup.library), setup.settings, block)
        )
        epoch = self._instance.header_epoch
        if setup.recover:
            self._instance.settings = replace(setup.settings, frontend_epoch=epoch + 1)
        recorder = Recorder(RowSender(link), reads_each=True, initial_rows=1 << 10, evidence=EVIDENCE)
        recorder.submitter = recorder.reader
        self._link, self._frontend = link, ServingFrontend(setup, self._instance, link, recorder)
        self._watch = HeartbeatWatch(setup.ring_dead_after_ns)
        self._requests: dict[int, Request] = {}
        self._given_up = self._finishing = False
        self._checked_ns = 0
        if setup.recover:
            self._frontend.recover(epoch, setup.die_at)
        link.send("ready")

    def run(self) -> None:
        """Serve until the host says that it is over, or is gone, or the ring is dead."""
        frontend, quiet = self._frontend, 0
        while not self._link.closed:
            busy = False
            for message in self._link.receive():
                busy = True
                self.take(message)
            busy = frontend.post() or busy
            busy = frontend.poll() or busy
            frontend.flush()
            if not self._well():
                return
            if not frontend.expects and (self._finishing or self._given_up):
                self._leave("a graph hangs" if self._given_up else "")
                return
            quiet = 0 if busy else quiet + 1
            if not busy:
                nap(None if frontend.expects else frontend.now() + 500_000, frontend.now(), quiet, frontend.expects)

    def take(self, message: Message) -> None:
        """Do what the host says."""
        what, *rest = message
        if what == "request":
            request_id, prompt_tokens, eos_at, output_tokens_max = rest
            now = self._frontend.now()
            self._receive(Request(request_id, -1, prompt_tokens, eos_at, output_tokens_max, now))
        elif what == "cancel":
            known = self._requests.get(rest[0])
            if known is not None and known.outcome is Outcome.UNFINISHED:
                self._frontend.cancel(known)
        elif what == "trouble":
            self._frontend.trouble = (rest[0], rest[1], rest[2])
        elif what == "die":
            self._frontend.writes_to_live = rest[0]
            if rest[0] is None:
                self._link.send("disarmed")
        elif what == "damage":
            self._frontend.damage = rest[0]
        elif what == "finish":
            self._finishing = True

    def _receive(self, request: Request) -> None:
        self._requests[request.request_id] = request
        if self._given_up:
            request.outcome = Outcome.FAILED
            self._link.send("ended", request.request_id, int(Outcome.FAILED), -1, 0)
        else:
            self._frontend.receive(request)

    # --- the scheduler's health ---

    def _well(self) -> bool:
        """False once the ring is dead. A graph that hangs ends the service, but the ring still drains."""
        frontend = self._frontend
        now = frontend.now()
        if now - self._checked_ns < _CHECK_NS:
            return True
        self._checked_ns = now
        if not self._given_up and self._instance.state()["failed"]:
            self._given_up = True
            self._link.send("given_up")
            self._fail("requests failed by a stuck graph")
        if not frontend.expects:
            self._watch.rest()
            return True
        if self._watch.look(self._instance.heartbeat(), now):
            return True
        self._link.send("count", "rings declared dead by their heartbeat", 1)
        self._fail("requests failed by a dead ring")
        self._leave("the scheduler's heart stands still")
        return False

    def _fail(self, name: str) -> None:
        """Every client that waits gets an error."""
        open_requests = self._frontend.open_requests()
        self._link.send("count", name, len(open_requests))
        for request in open_requests:
            self._frontend.cancel(request, Outcome.FAILED)

    def _leave(self, why: str) -> None:
        self._frontend.flush()
        self._link.send("left", why, self._frontend.slot_counts(), asdict(self._frontend.counters))


def main(fd: str) -> None:
    """The process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host, which ends this process in order
    link = Link(socket.socket(fileno=int(fd)), patient=True)
    first: list[Message] = []
    while not first and not link.closed:
        first = link.receive(1.0)
    if first:
        setup, block_fd, block_bytes = first[0]
        child = Child(setup, SharedBlock(block_bytes, block_fd), link)
        for message in first[1:]:
            child.take(message)
        child.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
