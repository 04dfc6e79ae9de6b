"""The scheduler on the GPU in lock-step: one iteration a launch, under the driver of the native backend."""

from __future__ import annotations

from functools import lru_cache

from blink.common.errors import InputError
from blink.hw.cuda.build import require_cuda_compiler
from blink.hw.cuda.driver import open_cuda
from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.ports import Ingress
from blink.hw.cuda.ring import CudaRing
from blink.hw.cuda.scheduler import CudaScheduler
from blink.hw.native.build import require_compiler
from blink.hw.native.library import load_library
from blink.hw.native.settings import NativeSettings


@lru_cache
def load_kernels(flags: tuple[str, ...] = ()) -> Kernels:
    """The kernels of one build, loaded once. Raises InputError for what is missing."""
    return Kernels(open_cuda(), flags)


def missing() -> str | None:
    """None if a scheduler can run on a GPU here, else one line that says what is missing."""
    try:
        open_cuda()
        require_cuda_compiler()
        require_compiler()
    except InputError as error:
        return str(error)
    return None


class SteppedCudaRing(CudaRing):
    """A ring whose scheduler does one iteration each time it is launched."""

    def __init__(self, settings: NativeSettings, flags: tuple[str, ...] = ()) -> None:
        kernels = load_kernels(flags)
        super().__init__(kernels.cuda, load_library(), settings, Ingress.COPY)
        self._scheduler = CudaScheduler(kernels, self, kernel="step")

    def step(self, now_ns: int) -> int:
        """One iteration at a virtual time; the code of what it did."""
        self.put_state("virtual_now_ns", now_ns)
        self.cuda.wait(self.copier.stream)
        self._scheduler.launch()
        self.cuda.wait(self._scheduler.stream)
        error = self._scheduler.control["error"]
        if error:
            raise RuntimeError(f"the launch of a graph was refused (cudaError_t {error})")
        return int(self.read("report_offset", "report")[0]["action"])

    def close(self) -> None:
        """Give everything back."""
        self._scheduler.close()
        super().close()
