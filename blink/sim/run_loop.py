"""What every model of a serving stack shares: the loop over events, the digest that names a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from blink.common.config import Scenario
from blink.sim.client import Clients
from blink.sim.clock import Clock
from blink.workload.requests import Requests

Progress = Callable[[int, int, int], None]
_EVENTS_BETWEEN_CHECKS = 64


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """How a run is recorded: the name of the run in the trace's header, and how many rows are held before some are
    written; None: as many as the recorder's own default says."""

    run: str
    flush_rows: int | None = None


def drain(
    env: Clock,
    clients: Clients,
    total: int,
    progress: Progress | None,
    stop: Callable[[], bool] | None,
    between: Callable[[], None] | None = None,
) -> bool:
    """Let time pass until nothing is left to happen; True if it was stopped before.

    `between` is called every few events. Raises RuntimeError if a request never ended.
    """
    step, queue = env.step, env._queue
    while queue:
        for _ in range(_EVENTS_BETWEEN_CHECKS):
            if not queue:
                break
            step()
        if between:
            between()
        if progress:
            progress(total - clients.open, total, env.now)
        if stop and stop():
            return True
    if clients.open:
        raise RuntimeError(f"the model is stuck: {clients.open} requests never ended")
    return False


def run_digest(scenario: Scenario, load: Requests) -> str:
    """The same for the same scenario and requests: 16 hex digits."""
    digest = hashlib.blake2b(json.dumps(scenario.resolved(), sort_keys=True).encode(), digest_size=8)
    for column in (load.arrival_ns, load.prompt_tokens, load.output_tokens):
        digest.update(column.tobytes())
    return digest.hexdigest()
