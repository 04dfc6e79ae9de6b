"""The planner: when captured graphs start, end and are stored."""

from __future__ import annotations

from dataclasses import dataclass

from blink.common.policy import GraphShape
from blink.perf.observed import RangeTracker
from blink.sim.batch import Batch, Live, Segment
from blink.sim.gpu_settings import GpuSettings
from blink.sim.overheads import StepOverheads
from blink.sim.ports import StepTimes


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prefill graph: what it computes of each prompt (`pieces`, in tokens), and when."""

    pieces: list[int]
    shape: GraphShape
    duration_ns: int
    done_ns: int
    stored_ns: int
    overdue: bool  # it will not end in time

    @property
    def tokens(self) -> int:
        """Of prompts, without the padding."""
        return sum(self.pieces)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a plan of decode steps begins: the number of its first graph and of its first decode step, KV tokens."""

    step: int
    decode_step: int
    kv_tokens: int
    now_ns: int


class Planner:
    """Asks the step model and the loop's costs; keeps nothing but the range that was asked for."""

    def __init__(self, overheads: StepOverheads, times: StepTimes, settings: GpuSettings) -> None:
        self._overheads, self._times, self._settings = overheads, times, settings
        self.ranges = RangeTracker()

    def prefill(self, lives: list[Live], step: int, now_ns: int) -> Prefill:
        """A graph that is launched now, for the next piece of each prompt."""
        overheads, throttle, count = self._overheads, self._settings.throttle, len(lives)
        pieces = [self._piece(live) for live in lives]
        shape = self._settings.prefill_table.choose(count, max(pieces))
        self.ranges.prefill(shape.batch, shape.sequence)
        duration_ns = self._times.prefill_ns(shape.batch, shape.sequence) + self._context_ns(lives, pieces)
        before_ns = overheads.before_ns(step, count)
        if throttle:
            duration_ns = throttle.prefill_ns(now_ns + before_ns, duration_ns, shape.batch, shape.sequence, sum(pieces))
        done_ns = now_ns + before_ns + duration_ns
        if overheads.late_ns:
            done_ns += overheads.late_ns(done_ns)
        stored_ns = done_ns + overheads.after_ns(step, count)
        return Prefill(pieces, shape, duration_ns, done_ns, stored_ns, self._overdue(duration_ns))

    def _piece(self, live: Live) -> int:
        left, options = live.prompt.prompt_tokens - live.computed, self._settings.options
        return min(left, options.chunk_tokens) if options and options.chunk_tokens else left

    def _context_ns(self, lives: list[Live], pieces: list[int]) -> int:
        """What a graph takes beyond its new tokens: contexts, and what has to be loaded first."""
        options = self._settings.options
        if options is None:
            return 0
        loads = max(live.load_ns for live in lives)
        contexts = [
            options.context_ns(new, live.computed) for live, new in zip(lives, pieces, strict=True) if live.computed
        ]
        return loads + sum(contexts)

    def decode(self, batch: Batch, start: Start, steps: int, stop_ns: int) -> Segment:
        """At most `steps` decode steps of an unchanged batch, none of them after the first boundary from `stop_ns`."""
        table, rows = self._settings.decode_table, len(batch.lives)
        longest = batch.kv_base_max + start.decode_step
        shape = table.choose(rows, longest)
        segment = Segment(batch, shape.batch, start.step)
        segment.before, after = self._overheads.around(start.step, steps, rows)
        decode_ns, kv_tokens, now = self._times.decode_ns, start.kv_tokens, start.now_ns
        throttle, late_ns = self._settings.throttle, self._overheads.late_ns
        self.ranges.decode(shape.batch, kv_tokens)
        launched, done, stored, sequence = segment.launched, segment.done, segment.stored, segment.sequence
        for before_ns, after_ns in zip(segment.before, after, strict=True):
            if longest > shape.sequence:
                shape = table.choose(rows, longest)
            duration_ns = decode_ns(shape.batch, kv_tokens)
            if throttle:
                duration_ns = throttle.decode_ns(now + before_ns, duration_ns)
            if self._overdue(duration_ns):
                if launched:
                    break  # it comes first in the next segment
                segment.overdue = True
                launched.append(now)
                sequence.append(shape.sequence)
                break
            launched.append(now)
            now += before_ns + duration_ns
            if late_ns:
                now += late_ns(now)
            done.append(now)
            now += after_ns
            stored.append(now)
            sequence.append(shape.sequence)
            kv_tokens += rows
            longest += 1
            if now >= stop_ns:
                break
        self.ranges.decode(shape.batch, kv_tokens)
        return segment

    def _overdue(self, duration_ns: int) -> bool:
        return 0 < self._settings.graph_timeout_ns < duration_ns
