"""The reliable connection of one frontend to GPU memory, and what becomes of its WRITEs when the frontend dies."""

from __future__ import annotations

from collections.abc import Callable

from blink.frontend.operations import Write
from blink.sim.clock import Clock, at


class Connection:
    """WRITEs arrive in the order of their posting, for as long as the connection exists.

    A frontend that dies posts nothing more, but what is under way goes on arriving until the connection is destroyed;
    the rest is lost, and that is always the end of the order. `env` is a clock that outlives the frontend.
    """

    def __init__(self, env: Clock) -> None:
        self._env = env
        self._died_ns: int | None = None
        self.destroyed = False
        self.late_count = 0  # postings that arrived after the frontend had died
        self.lost_count = 0  # ... that never arrived
        self.on_post: Callable[[int], None] = lambda arrived_ns: None
        self.carry: Callable[[Write], Write] = lambda write: write  # what arrives of what is posted

    def deliver(self, posted_ns: int, arrived_ns: int, land: Callable[[], None]) -> None:
        """Let a WRITE that is posted at one time take effect at another, unless it is lost."""

        def arrive() -> None:
            if self.destroyed or (self._died_ns is not None and posted_ns > self._died_ns):
                self.lost_count += 1
                return
            self.late_count += self._died_ns is not None
            land()

        at(self._env, arrived_ns, arrive)
        self.on_post(arrived_ns)

    def cut(self) -> None:
        """The frontend dies now: what it would have posted later is not posted."""
        self._died_ns, self.on_post = self._env.now, lambda arrived_ns: None

    def destroy(self) -> None:
        """Nothing arrives any more."""
        self.destroyed = True
