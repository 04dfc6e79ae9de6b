"""What a keeper keeps: a ring in shared memory and the scheduler over it, in one of three ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from blink.hw.cuda.lockstep import load_kernels
from blink.hw.cuda.run import GPU_CLOCK
from blink.hw.cuda.scheduler import CudaScheduler
from blink.hw.cuda.shared_ring import SharedRing
from blink.hw.engines.contract import Engine
from blink.hw.engines.on_host import HostModelScheduler
from blink.hw.engines.torch_engine import TorchEngine
from blink.hw.native.instance import Instance
from blink.hw.native.library import load_library
from blink.hw.native.memory import SharedBlock
from blink.hw.native.process import SchedulerProcess, default_threads
from blink.hw.native.run import MONOTONIC_CLOCK
from blink.hw.ring import Records, Running
from blink.serve.plan import Order, Plan

Say = Callable[[str], None]
HOST_STEP_MAX_NS = 120_000_000_000
"""A CPU may take so long for one step of a model; its scheduler's heart stands still meanwhile."""


class Kept(Protocol):
    """`scheduler` runs over the ring in `shared`.

    `relays`: whether trace records reach a server only through this process; it must then `drain` all the time, and a
    server may drain the shared block, too. Where it is False, a record is drained once: by the server, or for a trace.
    """

    clock: dict[str, Any]
    relays: bool

    @property
    def scheduler(self) -> Running: ...

    @property
    def shared(self) -> SharedBlock:
        """The block that a server attaches to."""

    @property
    def header_epoch(self) -> int:
        """The frontend's epoch in the ring."""

    def state(self) -> dict[str, int]:
        """The scheduler's state by field."""

    def drain(self) -> Records:
        """Trace records that were not drained before, with times of the scheduler's clock."""

    def close(self) -> None:
        """End the scheduler and give everything back."""


class Lasting(Running, Protocol):
    """A scheduler whose memory stays in use for as long as it would not end."""

    @property
    def is_running(self) -> bool: ...

    def close(self) -> None: ...


class NativeKept:
    """The compiled scheduler in a process of its own, with its stub engine."""

    clock = MONOTONIC_CLOCK
    relays = False

    def __init__(self, plan: Plan) -> None:
        self._instance = Instance(load_library(), plan.settings)
        self.scheduler: Running = self._scheduler(plan)

    def _scheduler(self, plan: Plan) -> Running:
        return SchedulerProcess(self._instance, default_threads())

    @property
    def shared(self) -> SharedBlock:
        """See Kept."""
        return self._instance.shared

    @property
    def header_epoch(self) -> int:
        """See Kept."""
        return self._instance.header_epoch

    def state(self) -> dict[str, int]:
        """See Kept."""
        return self._instance.state()

    def drain(self) -> Records:
        """See Kept."""
        return self._instance.drain()

    def close(self) -> None:
        """See Kept."""
        self.scheduler.kill()
        self._instance.close()


class HostModelKept(NativeKept):
    """The compiled scheduler on a thread of this process, with a model whose steps the CPU computes."""

    def __init__(self, order: Order, plan: Plan, say: Say) -> None:
        assert plan.engine is not None
        say(f"loading {order.model} for the CPU")
        self._engine = TorchEngine.of_model(order.model, plan.engine, device="cpu")
        super().__init__(plan)

    def _scheduler(self, plan: Plan) -> Running:
        return HostModelScheduler(self._instance, self._engine, HOST_STEP_MAX_NS)

    def close(self) -> None:
        """See Kept. A thread in the middle of a step keeps its memory until the process ends."""
        self.scheduler.kill()
        if not getattr(self.scheduler, "is_running", False):
            self._instance.close()


class CudaKept:
    """The persistent scheduler on a GPU, with the stub or a model."""

    clock = GPU_CLOCK
    relays = True

    def __init__(self, ring: SharedRing, scheduler: Lasting, engine: Engine | None = None) -> None:
        """Everything becomes this object's to close."""
        self._ring, self._engine = ring, engine
        self.scheduler: Lasting = scheduler

    @classmethod
    def opened(cls, order: Order, plan: Plan, say: Say) -> CudaKept:
        """On the first GPU. Raises InputError for what is missing."""
        kernels = load_kernels()  # the context is made before PyTorch loads anything
        engine: Engine | None = None
        if plan.engine is not None:
            say(f"loading {order.model}")
            engine = TorchEngine.of_model(order.model, plan.engine, device="cuda")
        ring = SharedRing(kernels.cuda, load_library(), plan.settings)
        say("capturing graphs" if engine is None else f"capturing {len(engine.shapes)} graphs")
        return cls(ring, CudaScheduler(kernels, ring, engine), engine)

    @property
    def shared(self) -> SharedBlock:
        """See Kept."""
        return self._ring.instance.shared

    @property
    def header_epoch(self) -> int:
        """See Kept."""
        return self._ring.instance.header_epoch

    def state(self) -> dict[str, int]:
        """See Kept."""
        return self._ring.state()

    def drain(self) -> Records:
        """See Kept. The server gets a copy with times of its own clock, and the scheduler's state."""
        records = self._ring.drain()
        self._ring.mirror()
        if records.size:
            ours = records.copy()
            host_ns = ours["t_ns"].astype(np.int64) - self.scheduler.record_ns(0)
            ours["t_ns"] = host_ns.astype(np.uint64)
            self._ring.append(ours)
        return records

    def close(self) -> None:
        """See Kept. What a scheduler uses that would not end is left to the end of the process."""
        self.scheduler.close()
        if not self.scheduler.is_running:
            self._ring.close()
            if self._engine:
                self._engine.close()


def open_kept(order: Order, plan: Plan, say: Say) -> Kept:
    """A fresh ring with its scheduler, which is not waited for yet. Raises InputError for what is missing here."""
    if order.backend == "cuda":
        return CudaKept.opened(order, plan, say)
    return HostModelKept(order, plan, say) if plan.engine is not None else NativeKept(plan)
