"""How an engine spreads its work over processes, and how it forms batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from blink.perf.host_engine import HostEngineProfile
from blink.sim.engines.batching import Batching, BatchLimits, Observer
from blink.sim.engines.blocks import BlockPool

MakeBatching = Callable[[BatchLimits, BlockPool, Observer | None, HostEngineProfile], Batching]


@dataclass(frozen=True, slots=True)
class Layout:
    """`batching` makes the core's queues; the flags say which work has a thread or a process of its own."""

    batching: MakeBatching
    tokenizer_thread: bool
    detokenizer_process: bool

    @property
    def busy_threads(self) -> int:
        """Threads that work at the same time: core, server, and what has a thread of its own."""
        return 2 + self.tokenizer_thread + self.detokenizer_process
