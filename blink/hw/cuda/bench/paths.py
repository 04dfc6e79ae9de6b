"""Both paths of the host into the ring: how long a word takes, there and back, and what a frontend sees of it."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from time import monotonic_ns, perf_counter_ns

import numpy as np

from blink.common.layout import STATUS_ARRAY_BYTES
from blink.common.lockstep import NO_EOS
from blink.common.request import Request
from blink.common.results import I64
from blink.hw.cuda.bench.steps import step_times
from blink.hw.cuda.copier import Copier
from blink.hw.cuda.engine_run import System
from blink.hw.cuda.kernels import SCHEDULER_THREADS, Kernels
from blink.hw.cuda.ring import CudaRing
from blink.hw.cuda.scheduler import CudaScheduler
from blink.hw.native.driver import Frontend
from blink.hw.native.process import Stop
from blink.hw.native.records import RecordReader

WORD_BYTES = 8


def echo_ns(kernels: Kernels, rounds: int, *, by_copy: bool) -> I64:
    """A number of the host until its answer is back, both seen from Python.

    The kernel polls a word in mapped memory or, `by_copy`, one in device memory that the copy engine writes; it answers
    into mapped memory in both cases.
    """
    cuda = kernels.cuda
    stream, pinned, device, copier = cuda.stream(), cuda.allocate_pinned(4096), cuda.allocate(4096), Copier(cuda)
    words = memoryview((ctypes.c_uint64 * 16).from_address(pinned)).cast("B").cast("Q")
    asked = device if by_copy else pinned
    kernels.launch(
        "echo", 1, 1, stream, ctypes.c_uint64(asked), ctypes.c_uint64(pinned + 8 * WORD_BYTES), ctypes.c_uint32(rounds)
    )
    times = np.zeros(rounds, np.int64)
    for number in range(1, rounds + 1):
        begun = perf_counter_ns()
        if by_copy:
            copier.put(device, number.to_bytes(WORD_BYTES, "little"))
        else:
            words[0] = number
        while words[8] != number:
            pass
        times[number - 1] = perf_counter_ns() - begun
    cuda.wait(stream)
    cuda.close_stream(stream)
    copier.close()
    words.release()
    cuda.free_pinned(pinned)
    cuda.free(device)
    return times


def status_read_ns(ring: CudaRing, rounds: int) -> I64:
    """A READ of the whole status array, as the frontend does it."""
    times = np.zeros(rounds, np.int64)
    for index in range(rounds):
        begun = perf_counter_ns()
        ring.read_status()
        times[index] = perf_counter_ns() - begun
    return times


def copy_read_ns(ring: CudaRing, rounds: int) -> I64:
    """64 KiB by the copy engine into pinned memory, without what Python makes of them."""
    times = np.zeros(rounds, np.int64)
    for index in range(rounds):
        begun = perf_counter_ns()
        ring.copier.get(ring.base, STATUS_ARRAY_BYTES)
        times[index] = perf_counter_ns() - begun
    return times


def scan_ns(kernels: Kernels, system: System, rounds: int) -> I64:
    """A scan of all slots of an idle ring by the scheduler's thread block."""
    assert isinstance(system.ring, CudaRing)
    assert isinstance(system.scheduler, CudaScheduler)
    cuda, stream = kernels.cuda, kernels.cuda.stream()
    out = cuda.allocate(8 * rounds)
    kernels.launch(
        "time_scan", 1, SCHEDULER_THREADS, stream,
        ctypes.c_uint64(system.ring.base), system.scheduler.host, ctypes.c_uint64(out), ctypes.c_uint32(rounds),
    )  # fmt: skip
    cuda.wait(stream)
    times = np.frombuffer(system.ring.copier.get(out, 8 * rounds), np.int64).copy()
    cuda.close_stream(stream)
    cuda.free(out)
    return times


@dataclass(frozen=True, slots=True)
class Seen:
    """Nanoseconds of single requests to an idle scheduler; the first and the last to within the error of two clocks."""

    published_ns: I64  # from just before the control word is written until the claim
    claimed_ns: I64  # from the claim until the launch of the prefill
    stored_ns: I64  # from the store of the first token until the frontend has read it


def seen_ns(system: System, requests: int, gap_s: float = 0.002) -> Seen:
    """One short request after another."""
    system.ring.reset()
    frontend = Frontend(
        system.ring, monotonic_ns, lambda request, now_ns: None, None,
        prompt_area_tokens=system.ring.settings.prompt_area_tokens,
    )  # fmt: skip
    system.scheduler.start()
    system.scheduler.wait_until_up()
    reader = RecordReader(None, frontend.request_of, system.scheduler.record_ns(0))
    done = [Request(index, -1, 8, NO_EOS, 2, 0) for index in range(requests)]
    for request in done:
        frontend.receive(request)
        while frontend.waiting_count:
            frontend.post()
        while frontend.in_ring_count:
            frontend.poll()
        time.sleep(gap_s)
    system.scheduler.stop(Stop.DRAIN)
    records = []
    while (found := system.ring.drain()).size:
        reader.take(found)
        records.append(found)
    return Seen(
        np.array([request.claimed_ns - request.published_ns for request in done], np.int64),
        step_times(np.concatenate(records), 1).claim_ns,
        np.array([request.read_ns - request.stored_ns for request in done], np.int64),
    )
