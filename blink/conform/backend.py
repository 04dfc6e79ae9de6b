"""What conformance asks of a backend, and the backends that there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from blink.common.config import Scenario
from blink.common.errors import InputError
from blink.common.lockstep import Machine, Stepper
from blink.common.results import RunResult
from blink.conform.mutants import flags_of
from blink.workload.requests import Requests

Progress = Callable[[int, int, int], None]
Stop = Callable[[], bool]


class Backend(Protocol):
    """A way to execute the specification."""

    @property
    def name(self) -> str: ...

    @property
    def in_real_time(self) -> bool:
        """Whether a run's times are measured: only such a run is replayed."""

    @property
    def time_scale(self) -> float:
        """What the times of a scenario are multiplied by."""

    def missing(self) -> str | None:
        """None if it can run here, else one line that says what to install."""

    def run(
        self, scenario: Scenario, requests: Requests, trace_path: Path, progress: Progress | None, stop: Stop
    ) -> RunResult:
        """Serve these requests and write the trace; `stop` ends it early."""

    def stepper(self, machine: Machine) -> Stepper:
        """A scheduler that goes in lock-step."""

    def double_claims(self, rounds: int) -> int | None:
        """How often two racing instances both claimed one slot; None where instances cannot race."""


@dataclass(frozen=True, slots=True)
class Sim:
    """The discrete-event simulator."""

    name: str = "sim"
    in_real_time: bool = False
    time_scale: float = 1.0

    def missing(self) -> str | None:
        """It runs wherever this package does."""
        return None

    def run(
        self, scenario: Scenario, requests: Requests, trace_path: Path, progress: Progress | None, stop: Stop
    ) -> RunResult:
        """Simulate."""
        from blink.sim.run import simulate

        return simulate(scenario, requests, trace_path=trace_path, progress=progress, stop=stop)

    def stepper(self, machine: Machine) -> Stepper:
        """The simulator's `Gpu`."""
        from blink.sim.lockstep import LockStep

        return LockStep(machine)

    def double_claims(self, rounds: int) -> int | None:
        """There is one thread of events."""
        return None


@dataclass(frozen=True, slots=True)
class Native:
    """The device scheduler compiled for the host; with `mutant` one that is wrong on purpose."""

    mutant: str | None = None
    time_scale: float = 1.0
    compiler_flags: tuple[str, ...] = ()
    name: str = "native"
    in_real_time: bool = True

    @property
    def flags(self) -> tuple[str, ...]:
        """For the compiler."""
        return (*self.compiler_flags, *flags_of(self.mutant))

    def missing(self) -> str | None:
        """A compiler, if none is found."""
        from blink.hw.native.build import require_compiler

        try:
            require_compiler()
        except InputError as error:
            return str(error)
        return None

    def run(
        self, scenario: Scenario, requests: Requests, trace_path: Path, progress: Progress | None, stop: Stop
    ) -> RunResult:
        """Serve in real time, with the scheduler in a process of its own."""
        from blink.hw.native.run import serve

        return serve(
            scenario, requests, trace_path=trace_path, progress=progress, stop=stop, time_scale=self.time_scale,
            flags=self.flags,
        )  # fmt: skip

    def stepper(self, machine: Machine) -> Stepper:
        """The scheduler's own `step`, in this process."""
        from blink.hw.native.lockstep import LockStep, lockstep_settings

        return LockStep(lockstep_settings(machine), flags=self.flags)

    def double_claims(self, rounds: int) -> int | None:
        """Two threads at one slot."""
        from blink.hw.native.races import double_claims

        return double_claims(rounds, self.flags)


@dataclass(frozen=True, slots=True)
class Cuda:
    """The device scheduler on a GPU with the stub engine; with `mutant` one that is wrong on purpose."""

    mutant: str | None = None
    time_scale: float = 1.0
    ingress: str = "copy"
    name: str = "cuda"
    in_real_time: bool = True

    @property
    def flags(self) -> tuple[str, ...]:
        """For the compiler."""
        return flags_of(self.mutant)

    def missing(self) -> str | None:
        """A GPU, its bindings or a compiler, if one is not found."""
        from blink.hw.cuda.lockstep import missing

        return missing()

    def run(
        self, scenario: Scenario, requests: Requests, trace_path: Path, progress: Progress | None, stop: Stop
    ) -> RunResult:
        """Serve in real time."""
        from blink.hw.cuda.ports import Ingress
        from blink.hw.cuda.run import serve

        return serve(
            scenario, requests, trace_path=trace_path, progress=progress, stop=stop, time_scale=self.time_scale,
            flags=self.flags, ingress=Ingress(self.ingress),
        )  # fmt: skip

    def stepper(self, machine: Machine) -> Stepper:
        """One launch an iteration."""
        from blink.hw.cuda.lockstep import SteppedCudaRing
        from blink.hw.native.lockstep import LockStep, lockstep_settings

        return LockStep(
            lockstep_settings(machine), open_ring=lambda settings: SteppedCudaRing.open(settings, self.flags)
        )  # fmt: skip

    def double_claims(self, rounds: int) -> int | None:
        """Two thread blocks at one slot. In a run a successor starts when the grid before it has ended."""
        from blink.hw.cuda.lockstep import load_kernels
        from blink.hw.cuda.races import double_claims

        return double_claims(load_kernels(self.flags), rounds)


@dataclass(frozen=True, slots=True)
class NativeRdma(Native):
    """The same scheduler; its frontend reaches the ring by RDMA, through a loop within this machine's adapter."""

    name: str = "native-rdma"

    def missing(self) -> str | None:
        """A compiler, pyverbs or a device, if one is not found."""
        from blink.hw.verbs.loop import missing

        return Native.missing(self) or missing()

    def run(
        self, scenario: Scenario, requests: Requests, trace_path: Path, progress: Progress | None, stop: Stop
    ) -> RunResult:
        """Serve in real time, with the scheduler in a process of its own."""
        from blink.hw.verbs.loop import serve

        return serve(
            scenario, requests, trace_path=trace_path, progress=progress, stop=stop, time_scale=self.time_scale,
            flags=self.flags,
        )  # fmt: skip

    def stepper(self, machine: Machine) -> Stepper:
        """The scheduler's own `step`, in this process; all else over verbs."""
        from blink.hw.native.lockstep import LockStep, lockstep_settings
        from blink.hw.verbs.loop import SteppedVerbsRing

        return LockStep(
            lockstep_settings(machine), open_ring=lambda settings: SteppedVerbsRing(settings, self.flags)
        )  # fmt: skip

    def double_claims(self, rounds: int) -> int | None:
        """The scheduler is native's; how a frontend reaches it does not matter to two of its instances."""
        return None


BACKENDS = ("sim", "native", "cuda", "native-rdma")


def _open(name: str, mutant: str | None, time_scale: float) -> Backend:
    if name == "sim":
        return Sim()
    if name == "native-rdma":
        return NativeRdma(mutant, time_scale)
    return Native(mutant, time_scale) if name == "native" else Cuda(mutant, time_scale)


def backends(names: Sequence[str], *, mutant: str | None = None, time_scale: float = 1.0) -> list[Backend]:
    """Backends by name. Raises InputError for a name that does not exist, and for what cannot run here."""
    flags_of(mutant)  # a mutant that does not exist is said before a compiler is looked for
    found: list[Backend] = []
    for name in names:
        if name not in BACKENDS:
            raise InputError(f"--backends: {name!r} does not exist; allowed: {', '.join(BACKENDS)}")
        backend = _open(name, mutant, time_scale)
        missing = backend.missing()
        if missing is not None:
            raise InputError(missing)
        found.append(backend)
    return found
