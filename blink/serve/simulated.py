"""The twin in real time: the discrete-event model, stepped against the wall clock, with requests as they come.

Virtual time is wall time divided by the time scale; with a scale of 0 the model runs as fast as it goes. Every poll of
the simulated token reader that brings news reads the ring's bytes.

What the real machine does is not added to what is modelled: it stands for it. The model's client sends a request when
the real one did, and the first byte of a chunk leaves so that it is at the real client when the model has it at its
own. So that it can, what will not change any more is computed ahead of its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

import numpy as np

from blink.common.config import Scenario
from blink.common.config.replica import require_replica
from blink.common.layout import STATE_MASK
from blink.common.request import Request
from blink.common.results import I64, Outcome
from blink.common.units import NS_PER_MS
from blink.perf.plant import Plant
from blink.serve.backend import Finish, Job, Stats, count_states, finish_of
from blink.serve.bounds import bounds_of
from blink.serve.real_time import RealTime
from blink.serve.stub import StubText
from blink.sim.clock import at
from blink.sim.gaps import InterTokenGaps
from blink.sim.run import Model, recorder_of
from blink.sim.token_path import TokenPath
from blink.workload.requests import Requests, synthetic

TURN_MAX_NS = 2 * NS_PER_MS
"""Of wall time that one turn may take: then sockets are looked after before it goes on."""
COALESCE_NS = 20_000
"""Events that are so close together are done in one turn, the later ones before their time."""
POLL_NS = 100_000
"""A poll so soon after what it will see is done in the same turn."""
_FOREVER_NS = 1 << 62


Told = Callable[[Request, int, int], None]


class LivePath(TokenPath):
    """A token path that tells of every token as it is handed over. The scheduler plans one step at a time for it."""

    told: Told = staticmethod(lambda request, tokens, due_ns: None)
    over: Told = staticmethod(lambda request, status, due_ns: None)

    def needs_single_steps(self) -> bool:
        """The future is open: a request may come at any time."""
        return True

    def _needs_bytes(self, rows: int) -> bool:
        return True

    def _hand_over(self, slot: int, count: int, read_ns: int, written_ns: int, *, first: bool) -> None:
        super()._hand_over(slot, count, read_ns, written_ns, first=first)
        self.told(self._by_slot[slot], count, self.last_token_ns(slot))

    def _end(self, request: Request, status: int, token_count: int) -> None:
        super()._end(request, status, token_count)
        self.over(request, status, self.last_token_ns(request.slot) if token_count else self._env.now)

    @property
    def next_poll_ns(self) -> int:
        """When the next poll that sees news captures the ring; negative if nothing is stored that none has seen."""
        return self._armed_ns


class _NoGaps(InterTokenGaps):
    """A server does not keep every gap that ever was."""

    def add(self, gap_ns: int, weight: int) -> None: ...

    def add_all(self, gaps_ns: I64) -> None: ...


class LiveModel(Model):
    """A model without a load of its own. `ended` is called when a request leaves the ring or never gets there."""

    path: LivePath

    def __init__(self, scenario: Scenario, plant: Plant, trace_path: Path | None) -> None:
        recorder = recorder_of(scenario, _no_requests(), trace_path)
        super().__init__(scenario, plant, [], {}, _no_requests(), recorder, LivePath)
        self.path.gaps = _NoGaps()
        self.ended: Callable[[Request], None] = lambda request: None
        self.env.process(self.gpu.run())

    def _completed(self, request: Request) -> None:
        self.ended(request)

    def _refuse(self, request: Request, reason: str) -> None:
        self.ended(request)

    def send(self, request: Request, sent_ns: int) -> None:
        """A client sends a request, now or at a time that has passed."""
        request.sent_ns = sent_ns
        self.requests[request.request_id] = request
        self.dpu.learn_of(request, self._messages.request_bytes(request.prompt_tokens), sent_ns)

    @property
    def prefill_end_ns(self) -> int:
        """When the tokens of the prefill that runs will have been stored; negative if none runs."""
        return -1 if self.gpu._graph_since is None else self.gpu._alarm._due_ns

    @property
    def prefill_duration_ns(self) -> int:
        """Of the prefill that runs."""
        return self.prefill_end_ns - (self.gpu._graph_since or 0)

    def flush(self) -> None:
        """Write rows of the trace that are certain."""
        self.flush_trace()

    @property
    def window_used(self) -> int:
        """Launches of the scheduler's present window."""
        return self.gpu._launches

    @property
    def kv_blocks_used(self) -> int:
        """KV blocks that are reserved."""
        return self.gpu._claims.used_blocks


class SimulatedBackend:
    """A Backend over a LiveModel."""

    name = "sim"

    def __init__(
        self,
        scenario: Scenario,
        text: StubText,
        time_scale: float,
        trace_path: Path | None,
        now: Callable[[], int],
        real: RealTime | None = None,
    ) -> None:
        """`real`: what the machine takes, by default as the shipped profile says."""
        require_replica(scenario, "serve", ("blink", "cpu-resident"))
        self._plant = plant = Plant.of(scenario)
        self.bounds = bounds_of(scenario, plant)
        self._text, self._scale, self._now = text, time_scale, now
        self._model = model = LiveModel(scenario, plant, trace_path)
        model.path.told, model.path.over, model.ended = self._told, self._over, self._forget
        self._start_ns, self._begun = now(), False
        real = real or RealTime.load()
        self._noticed_ns = real.noticed_ns
        self._lead_ns = int(real.told_ns / time_scale) if time_scale else 0  # of virtual time
        self._early_max_ns = int(real.early_ns / max(1.0, time_scale))  # of virtual time
        self._early_share = real.early_share
        self._live: dict[int, tuple[Job, Request, list[int]]] = {}  # by number, until the client has all of it
        self._due: list[tuple[int, int, int, int, Finish | None]] = []  # due_ns, order, number, tokens, finish
        self._order = count()
        self._stats = Stats(
            batch_max=plant.limits.batch_max, kv_blocks=plant.memory.kv_block_count, window=plant.limits.window,
            block_tokens=plant.limits.block_tokens,
        )  # fmt: skip

    # --- time ---

    def _virtual(self, wall_ns: int) -> int:
        """The model's time at a time of the wall clock; a scale of 0 has no such relation."""
        return int((wall_ns - self._start_ns) / self._scale) if self._scale else self._model.env.now

    def _wall(self, virtual_ns: int) -> int:
        return self._start_ns + int(virtual_ns * self._scale)

    # --- jobs ---

    def submit(self, job: Job) -> None:
        """See Backend."""
        key = self._text.key(job)
        eos_at = self._text.eos_at(job, key)
        request = Request(job.number, -1, len(job.prompt), eos_at, job.output_tokens_max, -1)
        self._live[job.number] = job, request, self._text.text(key, min(eos_at, job.output_tokens_max))
        # What lies before the request happens before it. Its time is not that of this call.
        sent_ns = max(0, self._virtual(job.arrived_ns - self._noticed_ns))
        if sent_ns <= self._model.env.now:
            self._model.send(request, sent_ns)
        else:
            at(self._model.env, sent_ns, lambda: self._model.send(request, sent_ns))

    def cancel(self, job: Job) -> None:
        """See Backend."""
        found = self._live.pop(job.number, None)
        if found is None:
            return
        request = found[1]

        def hang_up() -> None:
            if request.outcome is Outcome.UNFINISHED:
                self._model.dpu.cancel(request)
                if request.slot < 0:
                    self._forget(request)

        at(self._model.env, max(self._model.env.now, self._virtual(self._now())), hang_up)

    def _forget(self, request: Request) -> None:
        self._model.requests.pop(request.request_id, None)
        if request.slot < 0 and request.request_id in self._live:
            self._push(self._model.env.now, request.request_id, 0, Finish.ERROR)

    def _told(self, request: Request, tokens: int, due_ns: int) -> None:
        self._push(due_ns, request.request_id, tokens, None)

    def _over(self, request: Request, status: int, due_ns: int) -> None:
        self._model.requests.pop(request.request_id, None)
        self._push(due_ns, request.request_id, 0, finish_of(status))

    def _push(self, due_ns: int, number: int, tokens: int, finish: Finish | None) -> None:
        heappush(self._due, (due_ns, next(self._order), number, tokens, finish))

    # --- turns ---

    def turn(self) -> int | None:
        """See Backend."""
        began_ns = self._now()
        if not self._begun:  # what it took to get here is no lag
            self._start_ns, self._begun = began_ns, True
        if not self._scale:
            self._run(_FOREVER_NS, began_ns)
            self._deliver(_FOREVER_NS)
        else:
            self._note_lag(began_ns)
            virtual_ns = self._virtual(began_ns)
            self._run(virtual_ns + COALESCE_NS, began_ns)
            if 0 <= (end_ns := self._model.prefill_end_ns) <= virtual_ns + self._early_ns():
                self._run(end_ns, began_ns)
            if self._model.path.next_poll_ns <= self._model.env.now + POLL_NS:
                self._run(self._model.path.next_poll_ns, began_ns)
            self._deliver(virtual_ns + self._lead_ns)
        self._model.flush()
        return self._next_ns()

    def _run(self, until_ns: int, began_ns: int) -> None:
        """Let the model go on until a virtual time, or until the turn that began then has taken long enough."""
        env, due = self._model.env, self._due
        events, steps = env._queue, 0
        while events and events[0][0] <= until_ns:
            env.step()
            steps += 1
            if not steps & 63 and self._now() - began_ns > TURN_MAX_NS:
                return
            if not self._scale and due:
                return  # as fast as it goes, but a client hears of a token before the next one is made

    def _early_ns(self) -> int:
        """How much before the end of the prefill that runs its end may be computed."""
        return min(self._early_max_ns, int(self._model.prefill_duration_ns * self._early_share))

    def _deliver(self, until_ns: int) -> None:
        """Tell of what is at the client by now, a job's tokens together."""
        due = self._due
        news: dict[int, tuple[int, Finish | None]] = {}
        while due and due[0][0] <= until_ns:
            _, _, number, tokens, finish = heappop(due)
            before = news.get(number, (0, None))
            news[number] = before[0] + tokens, finish or before[1]
        for number, (tokens, finish) in news.items():
            found = self._live.get(number)
            if found is None:
                continue
            job, request, text = found
            if job.claimed_ns < 0 <= request.claimed_ns:
                # The server's times begin when it notices a request.
                job.claimed_ns = self._wall(request.claimed_ns) + self._noticed_ns if self._scale else self._now()
            given, text[:tokens] = text[:tokens], []
            if finish is not None:
                del self._live[number]
            job.take(given, finish)

    def _next_ns(self) -> int | None:
        events, due = self._model.env._queue, self._due
        if not events and not due:
            return None
        if not self._scale:
            return self._now()
        times = [events[0][0] - COALESCE_NS] if events else []
        if self._model.prefill_end_ns >= 0:
            times.append(self._model.prefill_end_ns - self._early_ns())
        if due:
            times.append(due[0][0] - self._lead_ns)
        return self._wall(int(min(times)))

    def _note_lag(self, now_ns: int) -> None:
        events = self._model.env._queue
        lag_ns = max(0, now_ns - self._wall(int(events[0][0]))) if events else 0
        self._stats.lag_ns = lag_ns
        self._stats.lag_max_ns = max(self._stats.lag_max_ns, lag_ns)

    # --- the state of things ---

    def slot_states(self) -> bytes:
        """See Backend."""
        return (self._model.ring.ctl & np.uint64(STATE_MASK)).astype(np.uint8).tobytes()

    def stats(self) -> Stats:
        """See Backend."""
        model, stats = self._model, self._stats
        stats.running = model.gpu.running_count
        stats.slots = count_states(self.slot_states())
        stats.waiting = max(0, len(self._live) - stats.running)
        stats.kv_share = model.kv_blocks_used / max(1, stats.kv_blocks)
        stats.window_used, stats.relaunches = model.window_used, model.gpu.counters.relaunches
        stats.poll_count = model.path.status_reads + model.path.idle_status_reads
        return stats

    def close(self, *, complete: bool) -> None:
        """See Backend. What is cancelled still leaves the ring, in virtual time alone."""
        env = self._model.env
        due_s = time.monotonic() + 5.0
        while env._queue and time.monotonic() < due_s:
            env.step()
        self._model.close_trace(complete=complete and not self._model.slots.in_use_count)


def _no_requests() -> Requests:
    nothing = np.empty(0, np.int64)
    return synthetic(nothing, nothing, nothing)
