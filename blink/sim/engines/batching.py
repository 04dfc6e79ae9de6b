"""Continuous batching, first come first served: who is in the next step, and who has to give up its KV blocks.

Pure bookkeeping without time. Sequences that decode advance together, so their state is one common step number and a
constant each; an unchanged batch costs the same whatever its size.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Protocol

from blink.common.policy import Blocked
from blink.perf.host_engine import HostEngineProfile
from blink.sim.engines.blocks import BlockPool
from blink.sim.engines.sequence import Chunk, Place, Sequence
from blink.sim.reuse import Found, Reuse


class Observer(Protocol):
    """Who wants to know of admissions and preemptions: the recorder."""

    def admitted(self, sequence: Sequence, resumed: bool) -> None: ...

    def preempted(self, sequence: Sequence) -> None: ...


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What bounds a step."""

    seqs_max: int
    tokens_max: int
    block_tokens: int
    chunked: bool
    overlap: bool  # a step is formed before the result of the one before is known
    reserve_prompt: bool = True  # admit only if the whole prompt fits, not merely its first chunk
    reserve_output: bool = False  # ... and the longest output


@dataclass(slots=True, eq=False)
class Step:
    """One step: the rows that decode (a list that nobody changes), their KV tokens, and chunks of prompts."""

    number: int
    rows: list[Sequence]
    kv_tokens: int
    chunks: list[Chunk]
    blocks: int  # in use after it was formed
    gone: set[Sequence] = field(default_factory=set)  # members whose token nobody wants any more
    launched_ns: int = 0
    started_ns: int = 0
    done_ns: int = 0

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens of the step."""
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def load_ns(self) -> int:
        """What its GPU waits for: keys and values that are loaded for a chunk."""
        return max((chunk.load_ns for chunk in self.chunks), default=0)

    def shapes(self) -> list[tuple[int, int]]:
        """(new tokens, context tokens) of each chunk, for the step model."""
        return [(chunk.tokens, chunk.context) for chunk in self.chunks]


class Batching:
    """The queues of an engine core. A subclass says with `_form` which kind of step comes next."""

    def __init__(
        self,
        limits: BatchLimits,
        pool: BlockPool,
        observer: Observer | None = None,
        profile: HostEngineProfile | None = None,
    ) -> None:
        self.limits, self.pool = limits, pool
        self.reuse: Reuse | None = None
        self.waiting: deque[Sequence] = deque()
        self.decoding: list[Sequence] = []  # replaced, never changed in place: steps keep it
        self.partial: Sequence | None = None
        self.blocked = Blocked.NOT
        self.preemptions = self.recomputed_tokens = self.cached_tokens = 0
        self._observer = observer
        self._leaving_count = 0
        self._base_sum = 0
        self._decode_step = 0  # scheduled
        self._result_step = 0  # of which the results are known
        self._orders = 0
        self._step_count = 0
        self._in_flight: deque[Step] = deque()
        self._due: list[list[Sequence]] = [[] for _ in range(limits.block_tokens)]  # by step modulo block size
        self._leaving: dict[int, list[Sequence]] = defaultdict(list)  # by decode step
        self._ending: dict[int, list[Sequence]] = defaultdict(list)

    # --- what others ask and tell ---

    @property
    def running_count(self) -> int:
        """Sequences that hold a place: they decode, wait for their last result, or a part of their prompt is done."""
        return len(self.decoding) + self._leaving_count + (self.partial is not None)

    def add(self, sequence: Sequence) -> None:
        """A new request joins the line."""
        self.waiting.append(sequence)

    def form(self) -> Step | None:
        """The next step, or None if there is nothing to compute."""
        self.blocked = Blocked.NOT
        step = self._form()
        if step is None and self.waiting and not self.running_count:
            step = self._form()  # the only one that ran was preempted
        if step is not None:
            self._in_flight.append(step)
        return step

    def _form(self) -> Step | None:
        raise NotImplementedError

    def result(self) -> tuple[Step, list[Sequence]]:
        """The oldest step's tokens are known: the step, and the sequences that ended with it, blocks given back."""
        step = self._in_flight.popleft()
        ended: list[Sequence] = []
        if step.rows:
            self._result_step += 1
            ended = self._ending.pop(self._result_step, [])
        ended = ended + [chunk.sequence for chunk in step.chunks if chunk.ends and chunk.sequence not in step.gone]
        for sequence in ended:
            self._retire(sequence)
        return step, ended

    def abort(self, sequence: Sequence) -> None:
        """A request is given up: it leaves now, and what steps in flight produce for it is dropped."""
        found = self._ending.get(sequence.leaves_at, [])
        if sequence in found:
            found.remove(sequence)
        for step in self._in_flight:
            step.gone.add(sequence)
        self._retire(sequence)

    # --- steps ---

    def _step(self, rows: list[Sequence], chunks: list[Chunk]) -> Step:
        kv_tokens = self._base_sum + len(rows) * (self._decode_step + 1) if rows else 0
        step = Step(self._step_count, rows, kv_tokens, chunks, self.pool.used)
        self._step_count += 1
        if rows:
            self._decode_step += 1
            for sequence in self._leaving.pop(self._decode_step, ()):
                self._leave(sequence)
        joined = [chunk.sequence for chunk in chunks if chunk.last and self._join(chunk)]
        if joined:
            self.decoding = self.decoding + joined
        return step

    def _leave(self, sequence: Sequence) -> None:
        """Its last token is scheduled: no further step, but the place and the blocks until the result is known."""
        self._remove_row(sequence)
        sequence.place = Place.LEAVING
        self._leaving_count += 1

    def _join(self, chunk: Chunk) -> bool:
        """The step yields the sequence's next token; whether it decodes from the next step on."""
        sequence = chunk.sequence
        sequence.tokens += 1
        sequence.joined_at = self._decode_step
        sequence.base = sequence.computed - self._decode_step
        if chunk.ends and (sequence.end_known or not self.limits.overlap):
            sequence.place = Place.LEAVING
            self._leaving_count += 1
            return False
        sequence.place = Place.DECODING
        self._base_sum += sequence.base
        if not self.limits.reserve_output:
            self._due[-sequence.base % self.limits.block_tokens].append(sequence)
        if not chunk.ends:
            self._ending[sequence.leaves_at].append(sequence)
            if self.limits.overlap and sequence.end_known:
                self._leaving[sequence.leaves_at].append(sequence)
        return True

    def _chunk(self, sequence: Sequence, tokens: int) -> Chunk:
        """The next `tokens` tokens of a sequence whose blocks are taken."""
        context, load_ns = sequence.computed, sequence.load_ns
        sequence.computed, sequence.load_ns = sequence.computed + tokens, 0
        last = sequence.computed == sequence.total
        if last and self.partial is sequence:
            self.partial = None
        elif not last:
            self.partial = sequence
        if last and self.reuse:
            self.reuse.keep(sequence.request)
            self.reuse.fit(self.pool.free * self.limits.block_tokens)
        return Chunk(sequence, tokens, context, last, last and sequence.tokens + 1 == sequence.end_count, load_ns)

    # --- rows and blocks ---

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_tokens)

    def _found(self, sequence: Sequence) -> tuple[int, Found]:
        """Blocks of its own that it finds again, and tokens that need not be computed, those of other prompts too."""
        total, size = sequence.total, self.limits.block_tokens
        cached = min(self.pool.cached(sequence.request.request_id), (total - 1) // size)
        if self.reuse is None:
            return cached, Found(cached * size)
        found = self.reuse.find(sequence.request)
        return (cached, Found(cached * size)) if cached * size >= found.tokens else (0, found)

    def _take_place(self, sequence: Sequence, cached: int, found: Found, blocks: int) -> None:
        """Admit the head of the line, `cached` of its blocks found again, `blocks` in all."""
        self.waiting.remove(sequence)
        self.pool.reclaim(sequence.request.request_id, cached)
        self.pool.take(blocks - cached)
        sequence.blocks = blocks
        sequence.computed, sequence.load_ns = found.tokens, found.load_ns
        if self.reuse:
            self.reuse.took(sequence.request, found)
            self.reuse.fit(self.pool.free * self.limits.block_tokens)
        sequence.place = Place.PREFILLING
        sequence.order = self._orders
        self._orders += 1
        self.cached_tokens += sequence.computed
        if sequence.preemptions:
            self.recomputed_tokens += sequence.total - sequence.computed
        if self._observer:
            self._observer.admitted(sequence, sequence.preemptions > 0)

    def _remove_row(self, sequence: Sequence) -> None:
        self.decoding = [row for row in self.decoding if row is not sequence]
        self._base_sum -= sequence.base
        if not self.limits.reserve_output:
            self._due[-sequence.base % self.limits.block_tokens].remove(sequence)

    def _preempt(self, sequence: Sequence, *, to_front: bool) -> None:
        """Give up its blocks and its place; what it has is computed again later."""
        if sequence.place is Place.DECODING:
            self._remove_row(sequence)
            self._forget_end(sequence)
            sequence.tokens += self._decode_step - sequence.joined_at
            sequence.joined_at = self._decode_step
            sequence.computed = sequence.base + self._decode_step
        else:
            self.partial = None
        filled = min(sequence.blocks, sequence.computed // self.limits.block_tokens)
        self.pool.give_cached(sequence.request.request_id, sequence.blocks, filled)
        sequence.place, sequence.blocks, sequence.computed = Place.WAITING, 0, 0
        sequence.preemptions += 1
        self.preemptions += 1
        if to_front:
            self.waiting.appendleft(sequence)
        else:
            self.waiting.append(sequence)
        if self._observer:
            self._observer.preempted(sequence)

    def _forget_end(self, sequence: Sequence) -> None:
        at = sequence.leaves_at
        if at > self._decode_step:  # else the step that ends it is in flight, and its result will
            self._ending[at].remove(sequence)
        if sequence in self._leaving.get(at, ()):
            self._leaving[at].remove(sequence)

    def _retire(self, sequence: Sequence) -> None:
        if sequence.place is Place.DECODING:
            self._remove_row(sequence)
            found = self._leaving.get(sequence.leaves_at, [])
            if sequence in found:
                found.remove(sequence)
            for step in self._in_flight:
                step.gone.add(sequence)
        elif sequence.place is Place.LEAVING:
            self._leaving_count -= 1
        elif sequence.place is Place.WAITING:
            self.waiting.remove(sequence)
        elif sequence.place is Place.PREFILLING:
            self.partial = None
        self.pool.give(sequence.blocks)
        sequence.blocks = 0
        sequence.place = Place.GONE

    def _grow(self) -> bool:
        """A block for every row whose last one is full; preempt from the end of the line where there is none.

        Whether anybody was preempted.
        """
        due = self._due[self._decode_step % self.limits.block_tokens]
        if len(due) <= self.pool.free:
            if due:
                self.pool.take(len(due))
                for sequence in due:
                    sequence.blocks += 1
            return False
        for sequence in sorted(due, key=lambda row: row.order):
            while sequence.place is Place.DECODING and not self.pool.free:
                self._give_way()
            if sequence.place is Place.DECODING:
                self.pool.take(1)
                sequence.blocks += 1
        return True

    def _give_way(self) -> None:
        """Preempt one sequence: the last in the line."""
        self._preempt(self.partial or self.decoding[-1], to_front=True)


class MixedBatching(Batching):
    """Every row decodes in every step; what is left of the token budget goes to prompts (vLLM, TensorRT-LLM)."""

    def _form(self) -> Step | None:
        preempted = bool(self.decoding) and self._grow()
        rows = self.decoding
        budget = self.limits.tokens_max - len(rows)
        chunks: list[Chunk] = []
        if self.partial is not None and budget > 0:
            budget -= self._continue(self.partial, budget, chunks)
            preempted = preempted or not chunks
        if not preempted:
            self._admit(budget, chunks)
        return self._step(rows, chunks) if rows or chunks else None

    def _continue(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """The next chunk of a prompt that is computed in part; it is last in line, so it preempts nobody but itself."""
        tokens = min(sequence.total - sequence.computed, budget)
        more = max(0, self._blocks_for(sequence.computed + tokens) - sequence.blocks)
        if more > self.pool.free:
            self._preempt(sequence, to_front=True)
            return 0
        self.pool.take(more)
        sequence.blocks += more
        chunks.append(self._chunk(sequence, tokens))
        return tokens

    def _admit(self, budget: int, chunks: list[Chunk]) -> None:
        limits = self.limits
        while self.waiting and budget > 0:
            sequence = self.waiting[0]
            if self.running_count + sum(chunk.last for chunk in chunks) >= limits.seqs_max:
                self.blocked = Blocked.BATCH
                return
            total = sequence.total
            cached, found = self._found(sequence)
            left = total - found.tokens
            if not limits.chunked and budget < left <= limits.tokens_max:
                return
            tokens = min(left, budget)
            blocks = self._blocks_for(total - left + tokens)
            fits = self._blocks_for(total) if limits.reserve_prompt else blocks
            if limits.reserve_output:
                blocks = fits = sequence.blocks_most
            if fits + (self.pool.watermark if self.running_count or chunks else 0) > self.pool.free:
                self.blocked = Blocked.KV
                return
            self._take_place(sequence, cached, found, blocks)
            chunks.append(self._chunk(sequence, tokens))
            budget -= tokens
