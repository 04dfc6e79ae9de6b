"""The scheduler on the GPU in lock-step: one iteration a launch, under the driver of the native backend."""

from __future__ import annotations

from collections import defaultdict
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
from blink.hw.native.room import has_room, larger
from blink.hw.native.settings import NativeSettings

_LISTED = 64
"""Entries of the report's lists that come with each step: more than a script's batch has, as a rule."""


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
    """A ring whose scheduler does one iteration each time it is launched.

    To capture and to instantiate graphs takes far longer than a script, so a ring that was closed serves the next one:
    `SteppedCudaRing.open` gives out one of those, fresh and with other limits, in the same memory.
    """

    @classmethod
    def open(cls, settings: NativeSettings, flags: tuple[str, ...] = ()) -> SteppedCudaRing:
        """A ring with a fresh scheduler. What the compiler's flags make of the kernels is kept apart."""
        room, idle = larger(settings, settings), _IDLE[flags]
        if idle:
            found = idle.pop()
            if has_room(found.room, settings):
                found.renew(settings)
                return found
            room = larger(found.room, settings)
            found.give_back()
        made = cls(room, flags)
        made.renew(settings)
        return made

    def __init__(self, room: NativeSettings, flags: tuple[str, ...] = ()) -> None:
        kernels = load_kernels(flags)
        super().__init__(kernels.cuda, load_library(), room, Ingress.COPY)
        self._scheduler = CudaScheduler(kernels, self, kernel="step")
        self._flags = flags
        self._seen: dict[str, bytes] = {}

    def renew(self, settings: NativeSettings) -> None:
        """As CudaRing's."""
        super().renew(settings)
        self._seen = {}

    def step(self, now_ns: int) -> int:
        """One iteration at a virtual time; the code of what it did."""
        self.put_state("virtual_now_ns", now_ns)
        self._scheduler.launch(self.copier.stream)  # what was written before it and what is read after it are in order
        self._look()
        error = self._scheduler.control["error"]
        if error:
            raise RuntimeError(f"the launch of a graph was refused (cudaError_t {error})")
        return int(self.read("report_offset", "report")[0]["action"])

    def _look(self) -> None:
        """What every step is asked for, with one wait: the state, the report, the head of its lists."""
        state, report = self.library.dtypes["state"].itemsize, self.report_bytes
        sizes = {"state_offset": state, "report_offset": report + 4 * _LISTED}
        found = self.copier.gather((self._at(name), size) for name, size in sizes.items())
        self._seen = {"state_offset": found[:state], "report_offset": found[state:]}

    def _bytes(self, name: str, offset_bytes: int, size_bytes: int) -> bytes:
        seen = self._seen.get(name, b"")
        if offset_bytes + size_bytes <= len(seen):
            return seen[offset_bytes : offset_bytes + size_bytes]
        return super()._bytes(name, offset_bytes, size_bytes)

    def close(self) -> None:
        """Leave it to the next one; give its memory back if its scheduler does not work."""
        if self._scheduler.control["error"]:
            self.give_back()
        else:
            _IDLE[self._flags].append(self)

    def give_back(self) -> None:
        """Give graphs and memory back."""
        self._scheduler.close()
        super().close()


_IDLE: defaultdict[tuple[str, ...], list[SteppedCudaRing]] = defaultdict(list)
