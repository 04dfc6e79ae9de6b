"""Both sides of a ring on one machine, joined by a loop within its adapter: for conformance, and to try it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.common.layout import U64
from blink.common.results import RunResult
from blink.frontend.operations import Write
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.process import SchedulerProcess, Stop, default_threads
from blink.hw.native.run import MONOTONIC_CLOCK, Progress, admitted, serve_over, settings_of
from blink.hw.native.settings import NativeSettings
from blink.hw.ring import Records, Tokens
from blink.hw.verbs.attach import Door
from blink.hw.verbs.device import ANY_DEVICE, Device, DeviceChoice
from blink.hw.verbs.frames import Frame
from blink.hw.verbs.hello import Identity
from blink.hw.verbs.host import HostBlock, RingHost
from blink.hw.verbs.ring import VerbsRing
from blink.hw.verbs.running import RemoteRunning
from blink.perf.plant import Plant
from blink.workload.requests import Requests

_SETTINGS = "a loop"
Asked = Callable[[Frame], Frame]


def missing() -> str | None:
    """What a loop needs and this machine lacks, None if nothing."""
    try:
        Device().close()
    except InputError as error:
        return str(error)
    return None


class Loop:
    """An instance in this process and a VerbsRing over it. `close` it; the instance stays."""

    def __init__(self, instance: Instance, asked: Asked, choice: DeviceChoice = ANY_DEVICE) -> None:
        self._device = Device(choice)
        self._host: RingHost | None = None
        try:
            block = HostBlock(instance.config, instance.library.dtypes, instance.base)
            self._host = RingHost(self._device, block, Identity("loop", _SETTINGS), ("127.0.0.1", 0), asked)
            door = Door(*self._host.address, Identity("", _SETTINGS))
            self.ring = VerbsRing(door.open_patiently(self._device), instance.settings)
        except BaseException:
            self._close_host()
            raise

    def _close_host(self) -> None:
        if self._host is not None:
            self._host.close()
        self._device.close()

    def close(self) -> None:
        """Nobody reaches the ring any more."""
        self.ring.close()
        self._close_host()


class SteppedVerbsRing:
    """A scheduler that goes one iteration at a time in this process, and a frontend that reaches its ring by verbs.

    Every WRITE has taken effect before an iteration begins, so that nothing depends on the adapter's speed.
    """

    backend = "native-rdma"

    def __init__(self, settings: NativeSettings, flags: tuple[str, ...] = ()) -> None:
        self._instance = Instance(load_library(flags), settings)
        try:
            self._loop = Loop(self._instance, lambda frame: {})
        except BaseException:
            self._instance.close()
            raise
        self._ring = self._loop.ring
        self._ring.drain_gap_ns = 0
        self.settings, self.config = settings, self._instance.config

    def close(self) -> None:
        """Give everything back."""
        self._loop.close()
        self._instance.close()

    # --- the frontend's operations, over verbs ---

    def write(self, write: Write) -> None:
        """Post a WRITE."""
        self._ring.write(write)

    def read_status(self) -> U64:
        """A READ of the status array."""
        return self._ring.read_status()

    def read_tokens(self, offset: NDArray[np.int64], count: NDArray[Any]) -> Tokens:
        """READs of ranges of the output area, in tokens."""
        return self._ring.read_tokens(offset, count)

    def set_eos(self, slot: int, eos_at: int) -> None:
        """Tell the stub with which token the slot's next request ends."""
        self._ring.set_eos(slot, eos_at)

    def drain(self) -> Records:
        """Trace records that were not drained before."""
        return self._ring.drain()

    def state(self) -> dict[str, int]:
        """The scheduler's state by field."""
        return self._ring.state()

    # --- the scheduler, in this process ---

    def step(self, now_ns: int) -> int:
        """One iteration at a virtual time; the code of what it did."""
        self._ring.flush()
        return self._instance.step(now_ns)

    @property
    def report_bytes(self) -> int:
        """Size of the report in front of its lists."""
        return self._instance.report_bytes

    def read(self, name: str, structure: str, count: int = 1) -> Records:
        """A copy of `count` structures that stand at an offset of the configuration."""
        return self._instance.read(name, structure, count)

    def words(self, name: str, offset_bytes: int, count: int) -> Tokens:
        """A copy of `count` u32 words, so far behind an offset of the configuration."""
        return self._instance.words(name, offset_bytes, count)


def serve(
    scenario: Scenario,
    requests: Requests,
    *,
    trace_path: Path | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] | None = None,
    time_scale: float = 1.0,
    flags: tuple[str, ...] = (),
    choice: DeviceChoice = ANY_DEVICE,
) -> RunResult:
    """Serve these requests as blink.hw.native.run.serve, with the frontend's way to the ring by verbs."""
    plant = Plant.of(scenario)
    with ExitStack() as undone:
        instance = Instance(load_library(flags), settings_of(scenario, plant, time_scale))
        undone.callback(instance.close)
        process = SchedulerProcess(instance, default_threads())
        undone.callback(process.kill)
        loop = Loop(instance, lambda frame: {"clean": process.stop(Stop(frame["how"]))}, choice)
        undone.callback(loop.close)
        return serve_over(
            scenario, requests, admitted(scenario, requests, plant), loop.ring, RemoteRunning(loop.ring),
            MONOTONIC_CLOCK, trace_path=trace_path, progress=progress, stop=stop, time_scale=time_scale,
            step=plant.step,
        )  # fmt: skip
