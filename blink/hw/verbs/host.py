"""The ring's side: registered memory, and a door at which frontends say hello. It posts nothing itself."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from blink.common.errors import InputError
from blink.hw.native.instance import Config
from blink.hw.verbs.areas import STRUCTURES, Area, ring_areas
from blink.hw.verbs.device import Device
from blink.hw.verbs.frames import Frame, FrameError, FrameSocket
from blink.hw.verbs.hello import HelloError, Identity, RingHello, disagreement, identity_of, pair_of
from blink.hw.verbs.memory import Registration, RemoteRegion, register
from blink.hw.verbs.patience import Patience
from blink.hw.verbs.queue_pair import QueuePair, QueuePairAddress

HELLO_LIMIT_S = 5.0
"""A frontend that has connected says hello within this time."""
ALIVE_LIMIT_S = 1.0
"""One that holds the ring answers within this time when another asks for it; else it is taken to be gone."""
_QUEUE_ENTRIES, _GREETINGS_MAX = 16, 8
_MACHINE = Path("/proc/sys/kernel/random/boot_id")
Asked = Callable[[Frame], Frame]
"""What a frontend asks for beside the verbs, and the answer."""


class Exported(Protocol):
    """Memory that peers may reach, in named areas."""

    backend: str
    areas: dict[str, Area]
    structures: dict[str, np.dtype[np.void]]
    trace_capacity: int

    @property
    def record_offset_ns(self) -> int:
        """What the clock of trace records shows more than this machine's monotonic one, once the scheduler is up."""

    def register(self, device: Device, area: Area) -> Registration:
        """Let peers reach an area."""


class HostBlock:
    """A scheduler's block in this process's memory, with times of this machine's clock."""

    record_offset_ns = 0

    def __init__(
        self, config: Config, dtypes: dict[str, np.dtype[np.void]], base: int, backend: str = "native"
    ) -> None:
        self.backend, self._base = backend, base
        self.areas = ring_areas(config, dtypes)
        self.structures = {name: dtypes[name] for name in STRUCTURES}
        self.trace_capacity = int(config["trace_capacity"][0])

    def register(self, device: Device, area: Area) -> Registration:
        """See Exported."""
        return register(device, self._base + area.offset_bytes, area.size_bytes, writable=area.writable)


class _Attached:
    """The frontend that has the ring."""

    def __init__(self, control: FrameSocket, pair: QueuePair, peer: str) -> None:
        self.control, self.pair, self.peer = control, pair, peer

    def end(self) -> None:
        """The queue pair first: from here on nothing of this frontend arrives."""
        self.pair.destroy()
        self.control.close()


class RingHost:
    """Listens and serves one frontend at a time, in a thread of its own. `close` it before the memory goes.

    A second frontend gets the ring if the first has hung up, or does not answer within ALIVE_LIMIT_S; else it is
    refused.

    V3. E2: the old queue pair is destroyed before the new frontend has its answer, so no WRITE of the old one lands
        after it. Pairs with the new frontend's WRITE of the epoch, which waits for that answer (attach.py, Door.open).
    """

    def __init__(
        self, device: Device, block: Exported, identity: Identity, address: tuple[str, int], asked: Asked,
        found: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._device, self._block, self._identity, self._asked = device, block, identity, asked
        self._found = found or {}
        self._listener = _listener(address)
        self._registrations: dict[str, Registration] = {}
        for name, area in block.areas.items():
            self._registrations[name] = block.register(device, area)
        self._queue = device.binding.CQ(device.context, _QUEUE_ENTRIES)
        self._attached: _Attached | None = None
        self._lock = threading.RLock()
        self._greetings = threading.BoundedSemaphore(_GREETINGS_MAX)
        self.life = 0
        self.refused: list[str] = []  # why, the last few
        self._over = False
        self._thread = threading.Thread(target=self._run, name="blink-ring-host", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._listener.getsockname()[:2]
        return host, port

    @property
    def regions(self) -> dict[str, RemoteRegion]:
        """What a frontend is told of the memory."""
        return {name: one.region for name, one in self._registrations.items()}

    @property
    def peer(self) -> str | None:
        """The frontend that has the ring."""
        attached = self._attached
        return None if attached is None else attached.peer

    # --- the thread ---

    def _run(self) -> None:
        while not self._over:
            ready = self._ready(0.2)
            if self._listener in ready:
                with contextlib.suppress(OSError):
                    end, peer = self._listener.accept()
                    self._open_the_door(FrameSocket(end), f"{peer[0]}:{peer[1]}")
            with self._lock:
                attached = self._attached
                if attached is not None and attached.control in ready:
                    self._hear(attached)

    def _ready(self, wait_s: float) -> list[socket.socket | FrameSocket]:
        """Of the door and the frontend that has the ring those that say something."""
        attached = self._attached
        ends: list[socket.socket | FrameSocket] = [self._listener]
        if attached is not None and attached.control.fileno() >= 0:
            ends.append(attached.control)
        try:
            return select.select(ends, [], [], wait_s)[0]
        except (OSError, ValueError):  # a takeover has just closed the old frontend's: the next look has the new one's
            return []

    def _hear(self, attached: _Attached) -> None:
        try:
            for frame in attached.control.arrived(0.0):
                if "ask" in frame:
                    attached.control.send(self._answer(frame))
        except FrameError:
            self.drop()

    def _answer(self, frame: Frame) -> Frame:
        if frame["ask"] == "now":
            return {"now_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC)}
        return self._asked(frame)

    def _open_the_door(self, control: FrameSocket, peer: str) -> None:
        """In a thread of its own, so that one who says nothing keeps nobody waiting; a few at once."""
        if not self._greetings.acquire(blocking=False):
            self._refuse(control, "too many are at the door", again=True)
            return

        def greet() -> None:
            try:
                self._greet(control, peer)
            finally:
                self._greetings.release()

        threading.Thread(target=greet, name="blink-ring-greeting", daemon=True).start()

    def _greet(self, control: FrameSocket, peer: str) -> None:
        try:
            frame = control.receive(HELLO_LIMIT_S)
            refusal = disagreement(self._identity, identity_of(frame))
            their_pair = pair_of(frame)
        except (FrameError, HelloError) as error:
            refusal = str(error)
        with self._lock:
            if self._over:
                refusal = "the ring is closed"
            if refusal is None and self._attached is not None and self._is_alive(self._attached):
                refusal = f"slots: frontend {self._attached.peer} has them, and it is alive"
            if refusal is not None:
                self._refuse(control, refusal)
                return
            # V3 pairs with the new frontend's WRITE of the epoch: the old queue pair is gone before the answer.
            self.drop()
            try:
                self._join(control, their_pair, peer)
            except Exception as error:  # of the adapter: it must not end this thread
                self._refuse(control, f"the ring's side cannot connect ({error})", again=True)

    def _join(self, control: FrameSocket, their_pair: QueuePairAddress, peer: str) -> None:
        pair = QueuePair(self._device, self._queue, 1, 0)
        try:
            pair.connect(their_pair)
            self._attached = _Attached(control, pair, peer)
            control.send(self._hello(pair).plain())
        except BaseException:
            self._attached = None
            pair.destroy()
            raise
        self.life += 1

    def _hello(self, pair: QueuePair) -> RingHello:
        return RingHello(
            identity=self._identity,
            pair=pair.address,
            regions=self.regions,
            structures=self._block.structures,
            backend=self._block.backend,
            life=self.life,
            machine=machine_id(),
            trace_capacity=self._block.trace_capacity,
            record_offset_ns=self._block.record_offset_ns,
            found=self._found,
        )

    def _refuse(self, control: FrameSocket, why: str, *, again: bool = False) -> None:
        """`again`: whoever tries again may be served."""
        self.refused = [*self.refused[-7:], why]
        with contextlib.suppress(FrameError):
            control.send({"refused": why[:1000], "again": again})
        control.close()

    def _is_alive(self, attached: _Attached) -> bool:
        try:
            attached.control.send({"ask": "alive"})
            patience, is_last = Patience(ALIVE_LIMIT_S), False
            while not is_last:
                is_last = patience.over()
                for frame in attached.control.arrived(patience.left_s):
                    if "alive" in frame:
                        return True
                    if "ask" in frame:
                        attached.control.send(self._answer(frame))
        except FrameError:
            return False
        return False

    # --- for the owner ---

    def drop(self) -> None:
        """Let go of the frontend that has the ring, if one has. Nothing of it arrives any more."""
        with self._lock:
            attached, self._attached = self._attached, None
            if attached is not None:
                attached.end()

    def close(self) -> None:
        """No frontend reaches the memory any more."""
        self._over = True
        self._thread.join()
        self._listener.close()
        self.drop()
        for registration in self._registrations.values():
            registration.close()
        self._queue.close()


def machine_id() -> str:
    """The same for processes that read the same monotonic clock."""
    try:
        return _MACHINE.read_text().strip()
    except OSError:
        return socket.gethostname()


def with_boot(identity: Identity, boot_id: str) -> Identity:
    """The identity of a ring that was seen before."""
    return replace(identity, boot_id=boot_id)


def _listener(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        return socket.create_server(address, family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=8)
    except OSError as error:
        raise InputError(f"--listen {host}:{port}: {error.strerror or error}") from None
