"""The ring's side of two hosts: a ring with its scheduler, and a door at which frontends on other hosts ask for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from blink.hw.native.library import load_library
from blink.hw.native.process import Stop
from blink.hw.verbs.device import Device, DeviceChoice
from blink.hw.verbs.frames import Frame
from blink.hw.verbs.gpu_block import GpuMemory
from blink.hw.verbs.hello import Identity
from blink.hw.verbs.host import Exported, HostBlock, RingHost
from blink.hw.verbs.probe import probe
from blink.serve.kept import Kept, open_kept
from blink.serve.log import Log
from blink.serve.plan import Order, Plan, plan_of
from blink.serve.remote_order import remote_digest

if TYPE_CHECKING:
    from blink.serve.device_kept import DeviceKept

RELAY_S, TURN_S = 0.001, 0.05
"""Between two looks: where trace records go through this process, and where it only watches."""
STOP_LIMIT_S, RECORDS_LIMIT_S = 15.0, 2.0
SETTLE_S = 0.005


@dataclass(frozen=True, slots=True)
class Offer:
    """What `blink backend` was asked for."""

    order: Order
    listen: tuple[str, int]
    device: DeviceChoice
    memory: GpuMemory | None = None  # None: host memory
    log_json: bool = False


def offer(asked: Offer) -> int:
    """Keep a ring until a signal, or until its frontend says that it is over. 0; 1 if the scheduler failed."""
    log = Log(as_json=asked.log_json, requests=False)
    plan = plan_of(asked.order)
    digest = remote_digest(asked.order, plan)
    device = Device(asked.device)
    try:
        found = probe(device)
        log.say("adapter " + ", ".join(f"{name}: {text}" for name, text in found.items()))
        boot_id = int.from_bytes(os.urandom(8), "little")
        plan = replace(plan, settings=replace(plan.settings, boot_id=boot_id))
        kept, exported = _open(asked, plan, log)
        try:
            kept.scheduler.wait_until_up()
            identity = Identity(boot_id=f"{boot_id:016x}", settings=digest)
            return _Keeping(kept, exported, device, identity, asked, found, log).run()
        finally:
            kept.close()
    finally:
        device.close()


def _open(asked: Offer, plan: Plan, log: Log) -> tuple[Kept | DeviceKept, Exported]:
    """A ring with its scheduler, and what of it can be registered."""
    if asked.memory is not None:
        from blink.serve.device_kept import DeviceKept

        on_device = DeviceKept(asked.order, plan, asked.memory, log.say)
        log.say(", ".join(f"{name}: {text}" for name, text in on_device.found.items()))
        return on_device, on_device.exported
    kept = open_kept(asked.order, plan, log.say)
    block, dtypes = kept.shared, load_library().dtypes
    config = np.frombuffer(bytes(block.view(0, dtypes["config"].itemsize)), dtypes["config"])
    return kept, HostBlock(config, dtypes, block.address, asked.order.backend)


class _Keeping:
    def __init__(
        self,
        kept: Kept | DeviceKept,
        exported: Exported,
        device: Device,
        identity: Identity,
        asked: Offer,
        found: dict[str, str],
        log: Log,
    ) -> None:
        self._kept, self._log, self._backend = kept, log, asked.order.backend
        self._over, self._stopped = threading.Event(), False
        self._stopping: Stop | None = None
        self._rounds = 0
        self._ended = threading.Event()
        self._host = RingHost(device, exported, identity, asked.listen, self._asked, found)

    def run(self) -> int:
        """The loop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._over.set())
        host, port = self._host.address
        self._log.say(f"ready on {f'[{host}]' if ':' in host else host}:{port}", backend=self._backend)
        peer, fault = None, None
        try:
            while not self._over.wait(RELAY_S if self._kept.relays else TURN_S) and fault is None:
                if self._stopping is not None:
                    self._stopped = self._kept.scheduler.stop(self._stopping)
                    self._drain()
                    self._ended.set()
                    break
                self._drain()
                fault = self._kept.scheduler.fault()
                if self._host.peer != peer:
                    peer = self._host.peer
                    self._log.say("no frontend has the ring" if peer is None else f"frontend {peer} has the ring")
            while self._ended.is_set() and self._host.peer is not None and not self._over.wait(TURN_S):
                self._drain()  # until the frontend has read the rest of the trace and hung up
        finally:
            self._host.close()
            if not self._ended.is_set():
                self._kept.scheduler.stop(Stop.ABORT)
        if fault is not None:
            self._log.say(f"the scheduler failed: {fault}")
        return int(fault is not None)

    def _drain(self) -> None:
        if self._kept.relays:
            self._kept.drain()
            self._rounds += 1

    def _wait_for_records(self) -> None:
        """Every record that was there before is in the shared memory afterwards."""
        due, seen = time.monotonic() + RECORDS_LIMIT_S, self._rounds
        time.sleep(SETTLE_S)
        while self._kept.relays and self._rounds < seen + 2 and time.monotonic() < due:
            time.sleep(RELAY_S)

    def _asked(self, frame: Frame) -> Frame:
        """Beside the verbs: a frontend may say that all is over, or wait for records that go through this process."""
        if frame.get("ask") == "records":
            self._wait_for_records()
            return {"records": True}
        if frame.get("ask") != "stop":
            return {"error": f"{frame.get('ask')!r} is nothing that can be asked"}
        self._stopping = Stop.DRAIN if frame.get("how") == int(Stop.DRAIN) else Stop.ABORT
        self._ended.wait(STOP_LIMIT_S)
        return {"clean": self._stopped}
