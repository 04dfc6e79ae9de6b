"""A ring in GPU memory with the persistent scheduler over it, for a frontend that reaches it by RDMA alone."""

from __future__ import annotations

from typing import Any

from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.lockstep import load_kernels
from blink.hw.cuda.ports import Ingress
from blink.hw.cuda.ring import CudaRing
from blink.hw.cuda.run import GPU_CLOCK
from blink.hw.cuda.scheduler import CudaScheduler
from blink.hw.engines.contract import Engine
from blink.hw.engines.torch_engine import TorchEngine
from blink.hw.native.library import load_library
from blink.hw.ring import Running
from blink.hw.verbs.gpu_block import GpuBlock, GpuMemory, check_gpu
from blink.serve.kept import Say
from blink.serve.plan import Order, Plan


class DeviceKept:
    """As blink.serve.kept.CudaKept, but nothing of the ring is in host memory: `exported` is what can be registered."""

    clock: dict[str, Any] = GPU_CLOCK
    relays = False

    def __init__(self, order: Order, plan: Plan, kind: GpuMemory, say: Say, kernels: Kernels | None = None) -> None:
        kernels = kernels or load_kernels()
        self.found = check_gpu(kernels.cuda, kind)
        self._engine: Engine | None = None
        if plan.engine is not None:
            say(f"loading {order.model}")
            self._engine = TorchEngine.of_model(order.model, plan.engine, device="cuda")
        self._ring = CudaRing(kernels.cuda, load_library(), plan.settings, Ingress.COPY)
        self._cuda_scheduler = CudaScheduler(kernels, self._ring, self._engine)
        self.exported = GpuBlock(
            kernels.cuda, self._ring.config, self._ring.library.dtypes, self._ring.base, kind,
            lambda: self._cuda_scheduler.record_ns(0),
        )  # fmt: skip
        self.scheduler: Running = self._cuda_scheduler

    def drain(self) -> None:
        """The frontend READs the trace's records where they are."""

    def close(self) -> None:
        """See Kept. What a scheduler uses that would not end is left to the end of the process."""
        self._cuda_scheduler.close()
        self.exported.close()
        if not self._cuda_scheduler.is_running:
            self._ring.close()
            if self._engine:
                self._engine.close()
