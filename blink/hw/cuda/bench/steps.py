"""Step periods of a scheduler under a full batch, read off its own trace records."""

from __future__ import annotations

import time
from dataclasses import dataclass
from time import monotonic_ns

import numpy as np
from numpy.typing import NDArray

from blink.common.events import Event, GraphKind
from blink.common.lockstep import NO_EOS
from blink.common.request import Request
from blink.common.results import I64
from blink.hw.cuda.driver import Cuda
from blink.hw.cuda.engine_run import Answers, System, drawn_prompts
from blink.hw.cuda.host_scheduler import HostCalls
from blink.hw.native.driver import Frontend
from blink.hw.native.library import address_of
from blink.hw.native.process import Stop
from blink.hw.ring import Records
from blink.hw.texts import Texts

LIMIT_S = 120.0
_DRAIN_S = 0.002
_WHERE = ("instance", "launches", "graph_sequence", "completion", "iterations", "trace_dropped", "failed")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Nanoseconds of decode steps of a full batch."""

    period_ns: I64  # from a launch to the next launch, inside the window
    relaunch_ns: I64  # the same with a relaunch between them
    graph_ns: I64  # from a launch until its completion was seen
    claim_ns: I64  # from the claim of a prompt to the launch of its prefill


def run_batch(
    system: System, batch: int, steps: int, prompt_tokens: int, vocabulary_count: int | None = None
) -> Records:
    """The trace records of `batch` requests that run together for `steps` steps, from an idle scheduler to its end.

    With `vocabulary_count` a model samples. Nobody reads the ring while the batch runs, only the trace is drained.
    """
    system.ring.reset()
    texts = Texts(drawn_prompts(vocabulary_count), Answers().take) if vocabulary_count else None
    frontend = Frontend(
        system.ring, monotonic_ns, lambda request, now_ns: None, None,
        prompt_area_tokens=system.ring.settings.prompt_area_tokens, texts=texts, burst_max=batch,
    )  # fmt: skip
    system.scheduler.start()
    system.scheduler.wait_until_up()
    # Each enters a step later than the one before, as `resume_after_tokens` is 1; all end together, so that the last
    # graph has the whole batch.
    outputs = [steps + batch - index for index in range(batch)]
    requests = [Request(index, -1, prompt_tokens, NO_EOS, tokens, 0) for index, tokens in enumerate(outputs)]
    for request in requests:
        frontend.receive(request)
    while frontend.waiting_count:
        frontend.post()
    found, due, ended = [], time.monotonic() + LIMIT_S, 0
    while ended < batch:
        time.sleep(_DRAIN_S)
        records = system.ring.drain()
        found.append(records)
        ended += int(np.isin(records["what"] & 0xFF, (Event.FINISH, Event.ABORT, Event.REJECT)).sum())
        fault = system.scheduler.fault()
        if fault or time.monotonic() > due:
            state = system.ring.state()
            where = ", ".join(f"{name} {state[name]}" for name in _WHERE)
            raise RuntimeError(f"{fault or 'it takes too long'}: {batch - ended} of {batch} requests are open; {where}")
    if not system.scheduler.stop(Stop.DRAIN):
        raise RuntimeError("the scheduler did not stop")
    while (records := system.ring.drain()).size:
        found.append(records)
    return np.concatenate(found)


def step_times(records: Records, batch: int) -> StepTimes:
    """Of the decode steps in which `batch` sequences took part; the first ten are left out."""
    event = (records["what"] & 0xFF).astype(np.int64)
    kind = (records["what"] >> 8 & 0xFF).astype(np.int64)
    t_ns = records["t_ns"].astype(np.int64)
    launched = full_steps(records, batch, Event.GRAPH_LAUNCHED)[10:]
    relaunches = np.cumsum(event == Event.RELAUNCHED)
    prefills = np.cumsum((event == Event.GRAPH_LAUNCHED) & (kind == GraphKind.PREFILL))
    first, second = launched[:-1], launched[1:]
    plain = prefills[first] == prefills[second]
    crossed = relaunches[first] != relaunches[second]
    period = t_ns[second] - t_ns[first]
    done = full_steps(records, batch, Event.GRAPH_DONE)
    return StepTimes(
        period[plain & ~crossed], period[plain & crossed], _until_next(t_ns, launched, done), _claims(t_ns, event, kind)
    )


def full_steps(records: Records, batch: int, event: Event) -> NDArray[np.intp]:
    """Rows of `event` (a graph was launched, or is done) of the decode steps of `batch` sequences."""
    what = records["what"]
    rows: NDArray[np.intp] = np.flatnonzero(
        (what & 0xFF == event) & (what >> 8 & 0xFF == GraphKind.DECODE) & (records["detail"] == batch)
    )
    return rows


def _until_next(t_ns: I64, first: NDArray[np.intp], second: NDArray[np.intp]) -> I64:
    """From each of `first` to the next of `second`."""
    after = np.searchsorted(second, first)
    has = after < second.size
    return t_ns[second[after[has]]] - t_ns[first[has]]


def _claims(t_ns: I64, event: I64, kind: I64) -> I64:
    claims = np.flatnonzero(event == Event.CLAIM)
    launches = np.flatnonzero((event == Event.GRAPH_LAUNCHED) & (kind == GraphKind.PREFILL))
    return _until_next(t_ns, claims, launches)


def bare_ns(cuda: Cuda, system: System, batch: int, rounds: int) -> int:
    """The decode graph of the last run alone, launched back to back by a loop of the host: nanoseconds each.

    Its rows still stand in memory, so it does what the last step did. No scheduler may run.
    """
    table, stream = system.ring.settings.decode_table, cuda.stream()
    calls = HostCalls(cuda, system.scheduler.graphs, stream)
    index = table.batches.index(batch) * len(table.sequences)
    total_ns = system.ring.library.time_launches(calls.address, int(GraphKind.DECODE), index, rounds)
    cuda.close_stream(stream)
    return int(total_ns) // rounds


def host_loop_ns(system: System, rounds: int) -> I64:
    """The decode graph of index 0 by a plain host loop: launch, copy the tokens back, wait. `system` is on the host."""
    out = np.zeros(rounds, np.uint64)
    library, calls = system.ring.library, system.host_calls
    library.time_graph(calls.address, int(GraphKind.DECODE), 0, rounds, address_of(out))
    return out.astype(np.int64)
