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
    """`batching` makes the core's queues; the flags say which work has a thread or a process of its own.

    `compiled_core`: the core's loop runs outside of Python. In its process one Python thread hands it requests and
    another fetches and sends its responses; they share one interpreter lock, and so count as one busy thread.
    """

    batching: MakeBatching
    tokenizer_thread: bool
    detokenizer_process: bool
    compiled_core: bool = False

    @property
    def busy_threads(self) -> int:
        """Threads that work at the same time: core, server, and what has a thread of its own."""
        return 2 + self.tokenizer_thread + self.detokenizer_process + self.compiled_core
