"""The keeper of a ring: owns its memory and its scheduler, which outlive the server that uses them.

Run as `python -m blink.serve.keeper JSON`. It listens on a Unix socket. A server that connects gets the memory's
descriptor, and for as long as the connection lasts the ring is its own. When the connection ends without a goodbye, the
server has died: the ring waits for the next one, which recovers it (E2). The keeper holds the trace of them all.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from blink.common.errors import InputError
from blink.common.events import Event
from blink.common.layout import EPOCH_MODULUS, layout_hash
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.states import SLOT_COUNT
from blink.common.trace import TraceHeader, open_writer
from blink.hw.native.process import Stop
from blink.hw.native.records import RecordReader
from blink.hw.native.run import monotonic_ns
from blink.serve.claim import Claim
from blink.serve.keeper_link import Incoming, columns_of, write_message
from blink.serve.kept import Kept, open_kept
from blink.serve.plan import Order, Plan, plan_of

_TURN_S = 0.02
_RELAY_S = 0.001
"""What a server reads of a scheduler on a GPU is so old at most, and as long as a turn takes."""
_CHUNK_BYTES = 1 << 18
_GONE = {"free": 0, "in_use": 0, "recovering": SLOT_COUNT}


class Hello(msgspec.Struct):
    """What a server gets with the descriptor. `life` counts the servers, from 0.

    `drains`: whether the server may drain the scheduler's records from the block.
    """

    digest: str
    size_bytes: int
    start_ns: int
    life: int
    traced: bool
    drains: bool
    pid: int


@dataclass(slots=True)
class _Trace:
    recorder: Recorder
    records: RecordReader
    owners: dict[tuple[int, int], Request]
    last_row_ns: int = 0


class Keeper:
    """The loop: one server at a time, the scheduler's health, the trace."""

    def __init__(self, order: Order, plan: Plan, kept: Kept) -> None:
        """`kept` becomes the keeper's to close."""
        self._order, self._kept, self._scheduler = order, kept, kept.scheduler
        self._digest = plan.digest(order)
        self._path = Path(order.socket)
        self._scheduler.wait_until_up()
        self._start_ns = monotonic_ns()
        self._trace = self._open_trace(plan) if order.trace else None
        self._life = 0
        self._ended = self._said = False
        self._slots, self._idle_reads, self._complete = _GONE, 0, False
        self._restarting: tuple[int, int] | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._listener.bind(order.socket)
        self._path.chmod(0o600)
        self._listener.listen(8)

    def _open_trace(self, plan: Plan) -> _Trace:
        scenario, evidence = plan.scenario, plan.evidence
        header = TraceHeader(
            run=f"serve-{self._start_ns}",
            backend=self._order.backend,
            seed=scenario.seed,
            layout_hash=layout_hash(),
            configuration=scenario.resolved(),
            clock=self._kept.clock,
            token_reads="each",
            evidence=evidence,
        )
        recorder = Recorder(open_writer(Path(self._order.trace), header), reads_each=True, evidence=evidence)
        owners: dict[tuple[int, int], Request] = {}
        start_ns = self._scheduler.record_ns(self._start_ns)
        records = RecordReader(recorder, lambda slot, generation: owners.get((slot, generation)), start_ns)
        return _Trace(recorder, records, owners)

    # --- the loop ---

    def stop(self, *_: object) -> None:
        """End at the next turn."""
        self._ended = True

    def run(self) -> None:
        """Until a server says goodbye, nobody comes for too long, or the scheduler fails."""
        waiting_since = time.monotonic()
        while not self._ended:
            if select.select([self._listener], [], [], _TURN_S)[0]:
                server, _ = self._listener.accept()
                with server:
                    self._serve(server)
                waiting_since = time.monotonic()
            if self._ended:
                return  # the scheduler has ended, as it was told to
            self._drain()
            if time.monotonic() - waiting_since > self._order.linger_s or self._is_faulty():
                self._ended = True

    def _is_faulty(self) -> bool:
        """Whether the scheduler will not go on; standard error hears why."""
        fault = self._scheduler.fault()
        if fault is not None and not self._said:
            self._said = True
            print(f"the keeper of the ring ends: {fault}", file=sys.stderr, flush=True)
        return fault is not None

    def _serve(self, server: socket.socket) -> None:
        """One server, until it is gone. Others are turned away meanwhile."""
        kept = self._kept
        hello = Hello(
            self._digest, kept.shared.size_bytes, self._start_ns, self._life, self._trace is not None,
            kept.relays or self._trace is None, os.getpid(),
        )  # fmt: skip
        try:
            socket.send_fds(server, [msgspec.msgpack.encode(hello)], [kept.shared.fd])
        except OSError:
            return
        incoming, said_goodbye, started = Incoming(), False, self._life == 0
        turn_s = _RELAY_S if kept.relays else _TURN_S
        while not self._ended:
            records = kept.drain() if self._drains else None
            ready = select.select([server, self._listener], [], [], turn_s)[0]
            messages: list[list[Any]] = []
            gone = False
            if server in ready:
                try:
                    data = server.recv(_CHUNK_BYTES)
                    messages = incoming.feed(data)
                except (OSError, ValueError):
                    data = b""
                gone = not data
            if self._listener in ready and _is_quiet(server):
                self._listener.accept()[0].close()  # it is alive and has said everything: no successor of it
            for message in messages:
                started = started or message[0] in ("restarted", "rows")
                said_goodbye = said_goodbye or message[0] == "bye"
            self._take(messages)
            if records is not None and records.size and self._trace:
                self._trace.records.take(records)
                self._flush()
            if gone or said_goodbye or self._is_faulty():
                break
        self._life += started
        if said_goodbye:
            self._ended = True
            self._finish(Stop.DRAIN)
            write_message(server, ("done",))
        elif self._trace and started:
            self._bury(self._trace)

    # --- the trace ---

    def _take(self, messages: list[list[Any]]) -> None:
        for what, *rest in messages:
            if what == "bye":
                self._slots, self._idle_reads, self._complete = rest[0], rest[1], bool(rest[2])
            elif self._trace is None:
                continue
            elif what == "rows":
                self._take_rows(self._trace, int(rest[0]), columns_of(rest[1]))
            elif what == "restarting":
                self._restarting = int(rest[0]), int(rest[1])
            elif what == "restarted":
                self._restarted(self._trace)

    def _take_rows(self, trace: _Trace, count: int, columns: dict[str, np.ndarray[Any, Any]]) -> None:
        stream = trace.recorder.reader
        rows = stream.reserve(count)
        for name, values in columns.items():
            if name != "seq" and name in stream.columns:
                stream.columns[name][rows] = values
        trace.last_row_ns = int(stream.columns["t_ns"][rows.stop - 1])
        event = stream.columns["event"][rows]
        for at in np.flatnonzero((event == Event.PROMPT_POSTED) | (event == Event.RECYCLE)).tolist():
            row = rows.start + at
            slot, generation, request_id, tokens = (
                int(stream.columns[name][row]) for name in ("slot", "generation", "request_id", "prompt_tokens")
            )
            if event[at] == Event.PROMPT_POSTED:
                trace.owners[slot, generation] = Request(request_id, -1, tokens, 0, 0, 0)
            else:  # what the gpu says of a generation stands before its recycling; keep one for what is under way
                trace.owners.pop((slot, generation - 2), None)

    def _restarted(self, trace: _Trace) -> None:
        """The new epoch is in the ring: the trace says so, at the time before its WRITE."""
        if self._restarting is not None:
            t_ns, epoch = self._restarting
            trace.recorder.reader.add(event=Event.RESTARTED, t_ns=t_ns, epoch=epoch % EPOCH_MODULUS)
            self._restarting = None

    def _bury(self, trace: _Trace) -> None:
        """A server died: the trace says so."""
        if self._restarting is not None and self._kept.header_epoch == self._restarting[1]:
            self._restarted(trace)
        self._restarting = None
        trace.recorder.reader.add(event=Event.CRASHED, t_ns=monotonic_ns() - self._start_ns)

    @property
    def _drains(self) -> bool:
        """Whether records are this process's to drain."""
        return self._trace is not None or self._kept.relays

    def _drain(self) -> None:
        while self._drains and (records := self._kept.drain()).size:
            if self._trace is not None:
                self._trace.records.take(records)

    def _flush(self) -> None:
        trace = self._trace
        if trace is not None and trace.recorder.due():
            trace.recorder.flush(min(trace.records.last_ns, trace.last_row_ns))

    # --- the end ---

    def _finish(self, how: Stop) -> None:
        lost = not self._scheduler.stop(how)
        self._drain()
        if self._trace is not None:
            dropped = self._kept.state()["trace_dropped"] + lost
            complete = self._complete and how is Stop.DRAIN
            self._trace.recorder.close(
                self._slots, complete=complete, idle_status_reads=self._idle_reads, dropped_by_gpu=dropped
            )
            self._trace = None

    def close(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self._listener.close()
        if self._trace is not None:
            self._finish(Stop.ABORT)
        self._kept.close()


def _is_quiet(server: socket.socket) -> bool:
    """Whether a connection is there, with nothing to be read: neither bytes nor its end."""
    try:
        server.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def main(text: str) -> int:
    """The process. Its lines on standard output are for the server that starts it: `- PROGRESS`, at last `up`, or
    `wrong SENTENCE` about something that the user can mend, or `failed SENTENCE`. It says nothing afterwards.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    order = msgspec.json.decode(text, type=Order)
    with contextlib.ExitStack() as held:
        try:
            claim = Claim(Path(order.socket))
            held.callback(claim.release)
            plan = plan_of(order)
            kept = open_kept(order, plan, lambda what: print(f"- {what}", flush=True))
            with contextlib.ExitStack() as unkept:
                unkept.callback(kept.close)
                keeper = Keeper(order, plan, kept)
                unkept.pop_all()
            held.callback(keeper.close)
            signal.signal(signal.SIGTERM, keeper.stop)
            print("up", flush=True)
        except Exception as error:
            with contextlib.suppress(BrokenPipeError):
                print(_complaint(error), flush=True)
            return 1
        finally:
            sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # the pipe's other end may be gone from here on
        keeper.run()
    return 0


def _complaint(error: Exception) -> str:
    sentence = " ".join(str(error).split())
    return f"wrong {sentence}" if isinstance(error, InputError) else f"failed {type(error).__name__}: {sentence}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
