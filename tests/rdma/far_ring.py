"""A ring in another process, as on another host: its memory, its scheduler, and the door to it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from blink.common.config import Scenario
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.process import START_LIMIT_S, SchedulerProcess, Stop
from blink.hw.native.run import settings_of
from blink.hw.native.settings import NativeSettings
from blink.hw.verbs.attach import Door
from blink.hw.verbs.device import Device
from blink.hw.verbs.frames import Frame
from blink.hw.verbs.hello import Identity
from blink.hw.verbs.host import HostBlock, RingHost
from blink.perf.plant import Plant
from tests.rdma.ends import choice

TRACE_CAPACITY = 1 << 16
_NICE = 5
BOOT_ID, DIGEST = "00000000000000ab", "same on both sides"


class FarRing:
    """Forks a process that keeps the ring of a scenario. `close` it.

    `change(RingHost)` may break something there first. Before it is made no device may be open here: a fork shares it.
    """

    def __init__(
        self, scenario: Scenario, time_scale: float = 0.0, change: Callable[[type[RingHost]], None] | None = None
    ) -> None:
        settings = settings_of(scenario, Plant.of(scenario), time_scale)
        self.settings: NativeSettings = replace(settings, trace_capacity=TRACE_CAPACITY)
        load_library()  # for the process that is forked
        context = multiprocessing.get_context("fork")
        self._mine, its = context.Pipe()
        self._process = context.Process(target=_keep, args=(self.settings, its, self._mine, change))
        self._process.start()
        its.close()
        said = self.say("where", START_LIMIT_S + 30)
        assert isinstance(said, tuple), said
        self.address: tuple[str, int] = said
        self.pid = self._process.pid

    def door(self, **changes: Any) -> Door:
        """To the ring; `changes` are of what a frontend takes it to be."""
        return Door(*self.address, Identity(**{"boot_id": "", "settings": DIGEST, **changes}), attempts=4)

    def say(self, what: str, wait_s: float = 30.0) -> Any:
        """Ask the process for something, and what it answers."""
        self._mine.send(what)
        assert self._mine.poll(wait_s), f"no answer to {what!r}"
        return self._mine.recv()

    def kill(self) -> None:
        """As kill -9 would."""
        assert self.pid is not None
        os.kill(self.pid, signal.SIGKILL)
        self._process.join(10)

    def close(self) -> None:
        """Leave nothing behind."""
        if self._process.is_alive():
            self._mine.send("end")
            self._process.join(20)
        if self._process.is_alive():
            self.kill()
        self._mine.close()


def _keep(
    settings: NativeSettings, pipe: Connection, other: Connection, change: Callable[[type[RingHost]], None] | None
) -> None:
    other.close()
    try:
        if change is not None:
            change(RingHost)
        _Keeper(settings, pipe).run()
    except BaseException:
        pipe.send(traceback.format_exc())
    os._exit(0)


class _Keeper:
    def __init__(self, settings: NativeSettings, pipe: Connection) -> None:
        self._pipe = pipe
        self._instance = Instance(load_library(), settings)
        self._scheduler = SchedulerProcess(self._instance, 1)
        os.setpriority(os.PRIO_PROCESS, self._scheduler.pid, _NICE)  # in a guest it shares the one core with all others
        self._device = Device(choice())
        instance = self._instance
        block = HostBlock(instance.config, instance.library.dtypes, instance.base)
        identity = Identity(boot_id=BOOT_ID, settings=DIGEST)
        self._host = RingHost(self._device, block, identity, ("127.0.0.1", 0), self._asked)
        self._scheduler.wait_until_up()

    def _asked(self, frame: Frame) -> Frame:
        return {"clean": self._scheduler.stop(Stop(frame["how"]))}

    def run(self) -> None:
        """Answer until the end."""
        while True:
            try:
                what = self._pipe.recv()
            except EOFError:
                what = "end"
            if what == "end":
                break
            self._pipe.send(self._answer(what))
        self._host.close()
        self._scheduler.kill()
        self._device.close()
        self._instance.close()

    def _answer(self, what: str) -> Any:
        if what == "where":
            return self._host.address
        if what == "peer":
            return self._host.peer
        if what == "refused":
            return self._host.refused
        if what == "state":
            return self._instance.state()
        if what == "words":
            return self._instance.read_status().copy()
        if what == "epoch":
            return self._instance.header_epoch
        if what == "scheduler":
            return self._scheduler.pid
        raise ValueError(what)
