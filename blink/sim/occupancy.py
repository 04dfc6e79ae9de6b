"""How full the batch and the KV cache are over time, and what the head of the line waits for."""

from __future__ import annotations

from blink.common.policy import Blocked
from blink.common.results import SchedulerCounters

_WAITS = {
    Blocked.BATCH: "wait_batch_ns",
    Blocked.KV: "wait_kv_ns",
    Blocked.WINDOW: "wait_window_ns",
    Blocked.TURN: "wait_gpu_ns",
}


class Occupancy:
    """Integrals over virtual time, added up in the scheduler's counters."""

    def __init__(self, counters: SchedulerCounters) -> None:
        self._counters = counters
        self._until_ns = 0
        self._blocked = Blocked.NOT
        self._blocked_since_ns = 0
        self.last_end_ns = 0  # of the last time anything ran

    def until(self, now_ns: int, running: int, kv_blocks: int) -> None:
        """Since the last call `running` sequences and `kv_blocks` reserved blocks were held."""
        if running:
            self.last_end_ns = now_ns
        counters, elapsed = self._counters, now_ns - self._until_ns
        self._until_ns = now_ns
        counters.batch_ns += running * elapsed
        counters.batch_max = max(counters.batch_max, running)
        counters.kv_block_ns += kv_blocks * elapsed

    def blocked(self, now_ns: int, reason: Blocked) -> None:
        """From now on the head of the line waits for `reason`."""
        counter = _WAITS.get(self._blocked)
        if counter is not None:
            waited = now_ns - self._blocked_since_ns
            setattr(self._counters, counter, getattr(self._counters, counter) + waited)
        self._blocked, self._blocked_since_ns = reason, now_ns
