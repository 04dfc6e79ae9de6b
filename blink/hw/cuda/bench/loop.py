"""The table of the loop: what stands around a graph, with the stub engine, alone and beside busy processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from blink.common.events import GraphKind
from blink.common.policy import GraphShape, GraphTable, Limits
from blink.common.results import I64
from blink.common.states import SLOT_COUNT
from blink.hw.cuda.bench.paths import copy_read_ns, echo_ns, scan_ns, seen_ns, status_read_ns
from blink.hw.cuda.bench.samples import Row
from blink.hw.cuda.bench.steps import bare_ns, host_loop_ns, run_batch, step_times
from blink.hw.cuda.engine_run import System
from blink.hw.cuda.kernels import Kernels
from blink.hw.cuda.ports import Ingress
from blink.hw.cuda.ring import CudaRing
from blink.hw.measure.busy import busy_processes
from blink.hw.native.settings import Durations, NativeSettings

Say = Callable[[str], None]
BATCHES = (1, 16, 64)
STEPS, HOST_STEPS, ROUNDS, SINGLES = 12_000, 4_000, 2_000, 200
_OUTPUT_TOKENS = 16_384
_CONTEXT = _OUTPUT_TOKENS + 64


def loop_settings(batch: int, window: int = 120) -> NativeSettings:
    """A scheduler for `batch` long requests over a stub whose graphs take no time."""
    prefill = GraphTable(GraphKind.PREFILL, (1,), (64,), 64, GraphShape(GraphKind.PREFILL, 1, 64))
    decode = GraphTable(
        GraphKind.DECODE, (batch,), (_CONTEXT,), batch * _CONTEXT, GraphShape(GraphKind.DECODE, batch, _CONTEXT)
    )
    return NativeSettings(
        limits=Limits(batch, 1, 16, window, resume_after_tokens=1),  # run_batch counts on a step after each prefill
        prefill_table=prefill,
        decode_table=decode,
        kv_block_count=(batch + 1) * _CONTEXT // 16,
        prompt_area_tokens=SLOT_COUNT * 64,
        output_capacity_tokens=_OUTPUT_TOKENS,
        slot_count=SLOT_COUNT,
        durations=Durations.none(prefill, decode),
    )


def loop_rows(kernels: Kernels, busy: Sequence[int], say: Say = lambda text: None) -> Iterator[Row]:
    """Every row. `busy`: numbers of busy processes beside which everything is measured, 0 for none."""
    for batch in BATCHES:
        gpu, host = System.on_gpu(kernels, loop_settings(batch)), System.on_host(kernels, loop_settings(batch))
        for count in busy:
            say(f"the loop with a batch of {batch} and {count} busy processes")
            with busy_processes(count):
                yield from _around(kernels, gpu, batch, count, STEPS)
                yield from _around(kernels, host, batch, count, HOST_STEPS)
                name = f"host loop: launch, copy, wait; batch {batch}"
                yield Row.of(name, host.name, count, host_loop_ns(host, HOST_STEPS))
        host.close()
        gpu.close()
    for ingress in Ingress:
        yield from _path_rows(kernels, ingress, busy, say)


def _around(kernels: Kernels, system: System, batch: int, busy: int, steps: int) -> Iterator[Row]:
    times = step_times(run_batch(system, batch, steps, 8), batch)
    bare = bare_ns(kernels.cuda, system, batch, 1_000)
    yield Row.of(f"step, inside the window; batch {batch}", system.name, busy, times.period_ns, bare_ns=bare)
    yield Row.of(f"step, across a relaunch; batch {batch}", system.name, busy, times.relaunch_ns, bare_ns=bare)
    yield Row.of(f"launch until done is seen; batch {batch}", system.name, busy, times.graph_ns, bare_ns=bare)


def _path_rows(kernels: Kernels, ingress: Ingress, busy: Sequence[int], say: Say) -> Iterator[Row]:
    system = System.on_gpu(kernels, loop_settings(1), ingress=ingress)
    for count in busy:
        say(f"the path {ingress.value} with {count} busy processes")
        with busy_processes(count):
            for what, times in _path_times(kernels, system, ingress):
                yield Row.of(f"{what}; {ingress.value}", system.name, count, times)
    yield Row.of(f"scan of {SLOT_COUNT} slots; {ingress.value}", system.name, 0, scan_ns(kernels, system, ROUNDS))
    steps = step_times(run_batch(system, 1, ROUNDS, 8), 1)
    yield Row.of(f"step, inside the window, batch 1; {ingress.value}", system.name, 0, steps.period_ns)
    system.close()


def _path_times(kernels: Kernels, system: System, ingress: Ingress) -> Iterator[tuple[str, I64]]:
    assert isinstance(system.ring, CudaRing)
    yield "a word to the GPU and its answer", echo_ns(kernels, ROUNDS, by_copy=ingress is Ingress.COPY)
    yield "READ of the status array", status_read_ns(system.ring, ROUNDS)
    if ingress is Ingress.COPY:
        yield "64 KiB into pinned memory", copy_read_ns(system.ring, ROUNDS)
    seen = seen_ns(system, SINGLES)
    yield "prompt published until claimed", seen.published_ns
    yield "claim until launch", seen.claimed_ns
    yield "token stored until read", seen.stored_ns
