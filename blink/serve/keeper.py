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
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from blink.common.config import Scenario, load_scenario
from blink.common.events import Event
from blink.common.layout import EPOCH_MODULUS, layout_hash
from blink.common.recorder import Recorder
from blink.common.request import Request
from blink.common.states import SLOT_COUNT
from blink.common.trace import TraceHeader, open_writer
from blink.hw.native.driver import EVIDENCE
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.process import SchedulerProcess, Stop, default_threads
from blink.hw.native.records import RecordReader
from blink.hw.native.run import MONOTONIC_CLOCK, monotonic_ns, settings_of
from blink.hw.native.settings import NativeSettings
from blink.perf.plant import Plant
from blink.serve.keeper_link import Incoming, columns_of, write_message

_TURN_S = 0.02
_CHUNK_BYTES = 1 << 18
_LIFE_SHIFT = 32
_GONE = {"free": 0, "in_use": 0, "recovering": SLOT_COUNT}


class Order(msgspec.Struct):
    """What a keeper is started with. `trace` "" for none."""

    socket: str
    scenario: str
    overrides: list[tuple[str, str]]
    time_scale: float
    linger_s: float
    trace: str


class Hello(msgspec.Struct):
    """What a server gets with the descriptor. `life` counts the servers, from 0."""

    digest: str
    size_bytes: int
    start_ns: int
    life: int
    traced: bool
    pid: int


def settings_digest(settings: NativeSettings) -> str:
    """The same for settings that can share a ring."""
    durations = settings.durations
    parts = (sorted(settings.fields().items()), settings.shapes(), durations.prefill_ns.tolist())
    return blake2b(repr((parts, durations.decode_ns.tolist())).encode(), digest_size=8).hexdigest()


def load(order: Order) -> tuple[Scenario, NativeSettings]:
    """The scenario of an order and what its scheduler is created with."""
    scenario = load_scenario(order.scenario, [(name, text) for name, text in order.overrides])
    return scenario, settings_of(scenario, Plant.of(scenario), order.time_scale)


@dataclass(slots=True)
class _Trace:
    recorder: Recorder
    records: RecordReader
    owners: dict[tuple[int, int], Request]
    last_row_ns: int = 0


class Keeper:
    """The loop: one server at a time, the scheduler's health, the trace."""

    def __init__(self, order: Order) -> None:
        scenario, settings = load(order)
        self._order, self._settings = order, settings
        self._path = Path(order.socket)
        self._instance = Instance(load_library(), settings)
        self._scheduler = SchedulerProcess(self._instance, default_threads())
        self._start_ns = monotonic_ns()
        self._trace = self._open_trace(scenario) if order.trace else None
        self._life = 0
        self._ended = False
        self._slots, self._idle_reads, self._complete = _GONE, 0, False
        self._restarting: tuple[int, int] | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        self._listener.bind(order.socket)
        self._path.chmod(0o600)
        self._listener.listen(8)
        self._scheduler.wait_until_up()

    def _open_trace(self, scenario: Scenario) -> _Trace:
        header = TraceHeader(
            run=f"serve-{self._start_ns}",
            backend="native",
            seed=scenario.seed,
            layout_hash=layout_hash(),
            configuration=scenario.resolved(),
            clock=MONOTONIC_CLOCK,
            token_reads="each",
            evidence=EVIDENCE,
        )
        recorder = Recorder(open_writer(Path(self._order.trace), header), reads_each=True, evidence=EVIDENCE)
        owners: dict[tuple[int, int], Request] = {}
        records = RecordReader(recorder, lambda slot, generation: owners.get((slot, generation)), self._start_ns)
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
            self._drain([])
            if time.monotonic() - waiting_since > self._order.linger_s or self._scheduler.fault() is not None:
                self._ended = True

    def _serve(self, server: socket.socket) -> None:
        """One server, until it is gone. Others are turned away meanwhile."""
        hello = Hello(
            settings_digest(self._settings), self._instance.shared.size_bytes, self._start_ns, self._life,
            self._trace is not None, os.getpid(),
        )  # fmt: skip
        try:
            socket.send_fds(server, [msgspec.msgpack.encode(hello)], [self._instance.shared.fd])
        except OSError:
            return
        incoming, said_goodbye, started = Incoming(), False, self._life == 0
        while not self._ended:
            records = self._instance.drain() if self._trace else None
            ready = select.select([server, self._listener], [], [], _TURN_S)[0]
            if self._listener in ready:
                self._listener.accept()[0].close()
            messages: list[list[Any]] = []
            gone = False
            if server in ready:
                try:
                    data = server.recv(_CHUNK_BYTES)
                    messages = incoming.feed(data)
                except (OSError, ValueError):
                    data = b""
                gone = not data
            for message in messages:
                started = started or message[0] in ("restarted", "rows")
                said_goodbye = said_goodbye or message[0] == "bye"
            self._take(messages)
            if records is not None and records.size and self._trace:
                self._trace.records.take(records)
                self._flush()
            if gone or said_goodbye or self._scheduler.fault() is not None:
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
        if self._restarting is not None and self._instance.header_epoch == self._restarting[1]:
            self._restarted(trace)
        self._restarting = None
        trace.recorder.reader.add(event=Event.CRASHED, t_ns=monotonic_ns() - self._start_ns)

    def _drain(self, messages: list[list[Any]]) -> None:
        self._take(messages)
        if self._trace is not None:
            while (records := self._instance.drain()).size:
                self._trace.records.take(records)

    def _flush(self) -> None:
        trace = self._trace
        if trace is not None and trace.recorder.due():
            trace.recorder.flush(min(trace.records.last_ns, trace.last_row_ns))

    # --- the end ---

    def _finish(self, how: Stop) -> None:
        lost = not self._scheduler.stop(how)
        self._drain([])
        if self._trace is not None:
            dropped = self._instance.state()["trace_dropped"] + lost
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
        self._scheduler.kill()
        self._instance.close()


def main(text: str) -> int:
    """The process. Its first line on standard output is `up`, or what is wrong; it says nothing afterwards."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server
    try:
        keeper = Keeper(msgspec.json.decode(text, type=Order))
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", flush=True)
        return 1
    signal.signal(signal.SIGTERM, keeper.stop)
    print("up", flush=True)
    sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115  # the pipe's other end may be gone from here on
    try:
        keeper.run()
    finally:
        keeper.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
