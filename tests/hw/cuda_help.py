"""What the tests of the CUDA backend share: a skip with the reason, a ring with a scheduler on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from blink.hw.cuda.lockstep import load_kernels, missing
from blink.hw.cuda.ports import Ingress
from blink.hw.cuda.ring import CudaRing
from blink.hw.cuda.scheduler import CudaScheduler
from blink.hw.native.library import load_library
from tests.hw.native_help import small_settings

_MISSING = missing()


def needs_gpu(body: Any) -> Any:
    """Marked gpu, and skipped with what is missing where a scheduler cannot run on a GPU."""
    return pytest.mark.gpu(pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))(body))


GPU_MARKS = (pytest.mark.gpu, pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING)))
"""The same for one of a test's parameters."""


@contextmanager
def scheduler_on_gpu(ingress: Ingress = Ingress.COPY, **changes: Any) -> Iterator[tuple[CudaRing, CudaScheduler]]:
    """A small ring with a scheduler that was not started yet; both are gone afterwards."""
    kernels = load_kernels()
    ring = CudaRing(kernels.cuda, load_library(), small_settings(**changes), ingress)
    scheduler = CudaScheduler(kernels, ring)
    try:
        yield ring, scheduler
    finally:
        scheduler.close()
        if not scheduler.is_running:
            ring.close()
