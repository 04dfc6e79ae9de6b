"""The compiled kernels on the device."""

from __future__ import annotations

from blink.hw.cuda.build import build
from blink.hw.cuda.driver import Cuda

NAMES = (
    "blink_scheduler", "blink_step", "blink_prologue", "blink_epilogue", "blink_stub", "blink_clock", "blink_echo",
    "blink_time_scan", "blink_race",
)  # fmt: skip
SCHEDULER_THREADS = 256
IO_THREADS = 256


class Kernels:
    """Builds (or finds) and loads them; each under its name without the prefix."""

    def __init__(self, cuda: Cuda, extra_flags: tuple[str, ...] = ()) -> None:
        self.cuda = cuda
        self.module = cuda.load(build(cuda.arch, extra_flags))
        self.functions = {name.removeprefix("blink_"): cuda.function(self.module, name) for name in NAMES}

    def launch(self, name: str, grid: int, block: int, stream: int, *arguments: object) -> None:
        """Launch one by its name."""
        self.cuda.launch(self.functions[name], grid, block, stream, *arguments)
