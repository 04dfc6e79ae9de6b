"""Records the life of requests and steps of a host-driven engine."""

from __future__ import annotations

import numpy as np

from blink.common.lifecycle import COLUMNS, NOTHING, LifeEvent, LifeWriter
from blink.common.results import I64
from blink.sim.clock import Clock
from blink.sim.engines.batching import Step
from blink.sim.engines.sequence import Sequence

_FLUSH_ROWS = 1 << 16


class LifecycleRecorder:
    """Gathers rows and writes them in chunks of a fixed size, so that the bytes depend on the run alone."""

    def __init__(self, env: Clock, writer: LifeWriter, request_count: int, flush_rows: int = _FLUSH_ROWS) -> None:
        self._env, self._writer, self._flush_rows = env, writer, flush_rows
        self._cut_ns: int | None = None
        self._counts = np.zeros(request_count, np.int64)
        self._single: list[tuple[int, ...]] = []
        self._blocks: list[I64] = []
        self._held = 0
        self._rows: list[Sequence] = []
        self._ids: I64 = np.empty(0, np.int64)

    def _add(
        self, event: LifeEvent, t_ns: int, request_id: int = NOTHING, step: int = NOTHING, rows: int = NOTHING,
        tokens: int = NOTHING, context: int = NOTHING, blocks: int = NOTHING,
    ) -> None:  # fmt: skip
        self._single.append((t_ns, event, request_id, step, rows, tokens, context, blocks))
        self._held += 1

    # --- requests ---

    def received(self, sequence: Sequence) -> None:
        """The client sent it; its tokens are ready at a known time."""
        request = sequence.request
        self._add(LifeEvent.RECEIVED, request.sent_ns, request.request_id, tokens=request.prompt_tokens)
        self._add(LifeEvent.TOKENIZED, request.tokenized_ns, request.request_id)

    def queued(self, t_ns: int, sequence: Sequence) -> None:
        """The core took it in."""
        self._add(LifeEvent.QUEUED, t_ns, sequence.request.request_id)

    def admitted(self, sequence: Sequence, resumed: bool) -> None:
        """It has a place and blocks."""
        self._add(
            LifeEvent.RESUMED if resumed else LifeEvent.SCHEDULED, self._env.now, sequence.request.request_id,
            tokens=sequence.total, context=sequence.computed, blocks=sequence.blocks,
        )  # fmt: skip

    def preempted(self, sequence: Sequence) -> None:
        """It lost both."""
        self._add(LifeEvent.PREEMPTED, self._env.now, sequence.request.request_id)

    def aborted(self, t_ns: int, sequence: Sequence) -> None:
        """Its client hung up and the core knows."""
        self._add(LifeEvent.ABORTED, t_ns, sequence.request.request_id)

    def delivered(self, t_ns: int, sequence: Sequence) -> None:
        """Its client has the last token."""
        request = sequence.request
        self._add(LifeEvent.DELIVERED, t_ns, request.request_id, tokens=request.output_tokens)

    # --- steps ---

    def launched(self, step: Step) -> None:
        """The host launched it."""
        count = len(step.rows)
        self._add(
            LifeEvent.STEP_LAUNCHED, step.launched_ns, step=step.number, rows=count + len(step.chunks),
            tokens=count + step.chunk_tokens, blocks=step.blocks,
        )  # fmt: skip
        for chunk in step.chunks:
            self._add(
                LifeEvent.PREFILL_CHUNK, step.launched_ns, chunk.sequence.request.request_id, step.number,
                tokens=chunk.tokens, context=chunk.context,
            )  # fmt: skip

    def done(self, step: Step, t_ns: int, members: list[Sequence], ended: list[Sequence]) -> None:
        """Its tokens are known to the core."""
        self._add(LifeEvent.STEP_DONE, step.done_ns, step=step.number)
        if members:
            if members is not self._rows:
                self._rows = members
                self._ids = np.array([sequence.request.request_id for sequence in members], np.int64)
            self._tokens(step, t_ns)
        for sequence in ended:
            request_id = sequence.request.request_id
            self._add(
                LifeEvent.FINISHED, t_ns, request_id, step.number, tokens=int(self._counts[request_id])
            )  # fmt: skip
        if self._held >= self._flush_rows:
            self.flush()

    def _tokens(self, step: Step, t_ns: int) -> None:
        self._pack()
        ids, counts = self._ids, self._counts
        counts[ids] += 1
        block = np.full((ids.size, len(COLUMNS)), NOTHING, np.int64)
        block[:, 0], block[:, 2], block[:, 3], block[:, 5] = t_ns, ids, step.number, counts[ids]
        block[:, 1] = np.where(block[:, 5] == 1, LifeEvent.FIRST_TOKEN, LifeEvent.TOKEN)
        self._blocks.append(block)
        self._held += ids.size

    # --- the file ---

    def _pack(self) -> None:
        if self._single:
            self._blocks.append(np.array(self._single, np.int64))
            self._single = []

    def flush(self) -> None:
        """Write what is held."""
        self._pack()
        if self._blocks:
            table = np.concatenate(self._blocks)
            if self._cut_ns is not None:
                table = table[table[:, 0] < self._cut_ns]
            self._writer.write({name: table[:, index] for index, name in enumerate(COLUMNS)})
        self._blocks, self._held = [], 0

    def cut(self, t_ns: int) -> None:
        """Of what is not written yet, all from `t_ns` on stays out of the trace, which is not complete then."""
        self._cut_ns = t_ns

    def close(self, *, complete: bool) -> None:
        """Write the rest and the footer."""
        self.flush()
        self._writer.close(complete=complete and self._cut_ns is None)

    def abort(self) -> None:
        """Leave no file behind."""
        self._writer.abort()
