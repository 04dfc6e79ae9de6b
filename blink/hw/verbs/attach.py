"""The frontend's side of getting a ring: hello over TCP, then a queue pair that is joined to the ring's."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from blink.common.errors import InputError
from blink.hw.verbs.channel import COMPLETION_LIMIT_S, Channel
from blink.hw.verbs.device import Device, DeviceChoice, device_names
from blink.hw.verbs.failure import ConnectionFailedError, ControlLostError, LocalError
from blink.hw.verbs.frames import Frame, FrameError, FrameSocket
from blink.hw.verbs.hello import HelloError, Identity, NotNowError, RingHello, ring_hello_of
from blink.hw.verbs.host import machine_id
from blink.hw.verbs.memory import RemoteRegion
from blink.hw.verbs.patience import Patience

CONNECT_LIMIT_S = 5.0
ANSWER_LIMIT_S = 15.0
"""For what is asked beside the verbs: a scheduler that is told to drain takes a while."""
ATTEMPTS = 8
"""How often a connection is tried before it is given up, and what is waited in between, doubled each time."""
FIRST_WAIT_S, WAIT_MAX_S = 0.25, 4.0
IDLE_LOOK_S = 0.5
"""If nothing has come back for so long, one word is READ: a peer that is gone shows even where nobody asks anything."""
_TURN_S = 0.02
_CLOCK_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Remote:
    """Where the ring is, and by which adapter of this machine it is reached."""

    address: tuple[str, int]
    device: DeviceChoice


@dataclass(frozen=True, slots=True)
class Clocks:
    """The ring's monotonic clock minus this machine's, in nanoseconds, known to within `error_ns`; 0 on one machine."""

    offset_ns: int = 0
    error_ns: int = 0
    shared: bool = True


class Attachment:
    """A connection to a ring: verbs in `channel`, everything else in `ask`. `close` it.

    A thread does what must go on while the frontend is busy or idle: it takes completions, answers whether this
    frontend lives, notices that the other side has hung up, and looks after a peer that has been silent. It never holds
    what the token path waits for, beyond a bounded number of completions: it tries a lock and goes away if that is
    taken.
    """

    def __init__(
        self, device: Device, control: FrameSocket, channel: Channel, hello: RingHello, *, owns_device: bool = False
    ) -> None:
        self.device, self._owns_device = device, False
        self._control, self.channel, self.hello = control, channel, hello
        self._answers: list[Frame] = []
        self._answered = threading.Condition()
        self._asking = threading.Lock()
        self._looked: Patience | None = None
        self._over = False
        self._thread = threading.Thread(target=self._progress, name="blink-verbs-progress", daemon=True)
        self._thread.start()
        try:
            self.clocks = self._compare_clocks()
        except BaseException:  # else its thread would say for ever that this frontend lives
            self.close()
            raise
        self._owns_device = owns_device

    @property
    def record_offset_ns(self) -> int:
        """What the clock of the scheduler's trace records shows more than this machine's."""
        return self.clocks.offset_ns + self.hello.record_offset_ns

    def region(self, name: str) -> RemoteRegion:
        """Memory of the ring's side by name. Raises ControlLostError if it has none."""
        try:
            return self.hello.regions[name]
        except KeyError:
            raise ControlLostError("hello", f"the ring's side names no region {name!r}") from None

    # --- beside the verbs ---

    def ask(self, frame: Frame, limit_s: float = ANSWER_LIMIT_S) -> Frame:
        """Ask the ring's side for something, and its answer. Raises ControlLostError if none comes."""
        with self._asking:
            with self._answered:
                self._answers.clear()
            try:
                self._control.send(frame)
            except FrameError as error:
                raise ControlLostError(str(frame.get("ask")), str(error)) from None
            patience = Patience(limit_s)
            with self._answered:
                while not self._answers:
                    if self._control.closed or patience.over():
                        raise ControlLostError(str(frame.get("ask")), f"no answer within {limit_s:g} s")
                    self._answered.wait(0.1)
                return self._answers.pop(0)

    def _compare_clocks(self) -> Clocks:
        if self.hello.machine == machine_id():
            return Clocks()
        best: tuple[int, int] | None = None
        for _ in range(_CLOCK_ROUNDS):
            before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            theirs = _whole(self.ask({"ask": "now"}, CONNECT_LIMIT_S).get("now_ns"))
            after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            found = (after - before) // 2, theirs - (before + after) // 2
            best = found if best is None else min(best, found)
        assert best is not None
        return Clocks(best[1], best[0], shared=False)

    # --- the thread ---

    def _progress(self) -> None:
        while not self._over and not self._control.closed:
            try:
                for frame in self._control.arrived(_TURN_S):
                    self._take(frame)
            except FrameError as error:
                if not self._over:
                    self.channel.fail(ControlLostError("the connection to the ring", str(error)))
                self._control.closed = True
            if self.channel.failure is None:
                self._look()
        with self._answered:
            self._answered.notify_all()

    def _take(self, frame: Frame) -> None:
        if frame.get("ask") == "alive":
            self._control.send({"alive": True})
            return
        with self._answered:
            self._answers.append(frame)
            self._answered.notify_all()

    def _look(self) -> None:
        is_last = self._looked is not None and self._looked.over()
        self.channel.reap_if_free()
        silent_s = (time.monotonic_ns() - self.channel.completed_ns) / 1e9
        if silent_s < IDLE_LOOK_S:
            self._looked = None
        elif self._looked is None:
            if self.channel.look(self.region("header")) is not None:
                self._looked = Patience(COMPLETION_LIMIT_S)
        elif is_last:
            self.channel.give_up()

    def close(self) -> None:
        """Destroy the queue pair, then hang up: E2 begins with an old connection that is gone."""
        self._over = True
        self.channel.fail(ControlLostError("the connection to the ring", "it is closed"))
        self._thread.join()
        self.channel.close()
        self._control.close()
        if self._owns_device:
            self.device.close()


@dataclass(frozen=True, slots=True)
class Door:
    """Where a ring is to be had, and what the frontend takes it to be."""

    host: str
    port: int
    identity: Identity
    attempts: int = ATTEMPTS

    def open(self, device: Device, *, owns_device: bool = False) -> Attachment:
        """Say hello and join. One try; raises ConnectionFailedError if nobody is there, InputError if it is refused."""
        where = f"--connect {self.host}:{self.port}"
        try:
            end = socket.create_connection((self.host, self.port), CONNECT_LIMIT_S)
        except OSError as error:
            raise ControlLostError(where, error.strerror or str(error)) from None
        with ExitStack() as undone:
            control = FrameSocket(end)
            undone.callback(control.close)
            channel = Channel(device)
            undone.callback(channel.close)
            try:
                control.send({**self.identity.plain(), "pair": channel.address.plain(), "process": os.getpid()})
                # V3: with this answer the old queue pair is gone; the epoch is written only on what is made of it.
                hello = ring_hello_of(control.receive(CONNECT_LIMIT_S))
                channel.connect(hello.pair)
            except (FrameError, NotNowError) as error:
                raise ControlLostError(where, str(error)) from None
            except HelloError as error:
                raise InputError(f"{where}: refused: {error}") from None
            except Exception as error:  # of the adapter: it finds no way to that address, say
                raise LocalError(where, f"the adapter cannot connect ({error})") from None
            undone.pop_all()
        return Attachment(device, control, channel, hello, owns_device=owns_device)

    def open_patiently(self, device: Device) -> Attachment:
        """The same, tried so many times, with growing pauses. Raises the last failure."""
        return self._patiently(lambda: self.open(device))

    def open_with(self, choice: DeviceChoice) -> Attachment:
        """The same with a device that is opened for it, so that a change of its addresses does no harm.

        Raises InputError if there is no such device at all.
        """
        names = device_names()
        if not names:
            Device(choice)  # raises, and says what to do
        return self._patiently(lambda: self._open_with(choice))

    def _open_with(self, choice: DeviceChoice) -> Attachment:
        try:
            device = Device(choice)
        except InputError as error:  # its interface is down just now
            raise LocalError(f"--connect {self.host}:{self.port}", str(error)) from None
        try:
            return self.open(device, owns_device=True)
        except BaseException:
            device.close()
            raise

    def _patiently(self, attempt: Callable[[], Attachment]) -> Attachment:
        wait_s = FIRST_WAIT_S
        for left in range(self.attempts - 1, -1, -1):
            try:
                return attempt()
            except ConnectionFailedError:
                if not left:
                    raise
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, WAIT_MAX_S)
        raise AssertionError("attempts is at least 1")


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise ControlLostError("clocks", f"{value!r} is no time")
    return value
