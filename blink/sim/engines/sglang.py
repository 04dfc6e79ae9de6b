"""In the manner of SGLang.

1. Tokenizer manager process: one event loop parses and tokenizes a request; ZeroMQ carries it to the scheduler.
2. Scheduler process, a loop: take messages; a batch of prompts goes first if there is room, else the running requests
   decode; build inputs and launch. With overlap (the default) the batch before is taken in after that, one batch ahead.
3. Detokenizer process: detokenizes the outputs of a batch together.
4. Tokenizer manager: streams, in the event loop that also takes new requests.

Admission reserves a share of the output that running requests may still produce; the share falls with every decode
step and is estimated anew when blocks have run out after all and requests had to be retracted.
"""

from __future__ import annotations

from blink.common.policy import Blocked
from blink.perf.host_engine import HostEngineProfile
from blink.sim.engines.batching import Batching, BatchLimits, Observer, Step
from blink.sim.engines.blocks import BlockPool
from blink.sim.engines.layout import Layout
from blink.sim.engines.sequence import Chunk, Sequence

RETRACT_AHEAD_STEPS = 20
"""Decode steps for which a retraction provides, as SGLang's estimate of the new ratio has it."""


class PrefillFirstBatching(Batching):
    """A step is either a batch of prompts or one decode step of all rows."""

    def __init__(
        self, limits: BatchLimits, pool: BlockPool, observer: Observer | None, profile: HostEngineProfile
    ) -> None:
        super().__init__(limits, pool, observer)
        self._ratio = self._initial = profile.ratio_initial
        self._minimum = profile.ratio_minimum
        self._decay = (profile.ratio_initial - profile.ratio_minimum) / profile.ratio_decay_steps

    def _form(self) -> Step | None:
        chunks = self._prompts() if self.waiting or self.partial else []
        if chunks:
            return self._step([], chunks)
        if not self.decoding:
            return None
        if self._grow():
            self._ratio = self._estimated_ratio()
        else:
            self._ratio = max(self._minimum, self._ratio - self._decay)
        return self._step(self.decoding, []) if self.decoding else None

    def _remaining(self, sequence: Sequence) -> int:
        """Output tokens that a row may still produce."""
        return sequence.request.output_tokens_max - sequence.tokens - (self._decode_step - sequence.joined_at)

    def _estimated_ratio(self) -> float:
        limits = [row.request.output_tokens_max for row in self.decoding]
        if not limits:
            return self._initial
        done = sum(limits) - sum(self._remaining(row) for row in self.decoding)
        return min(1.0, (done + RETRACT_AHEAD_STEPS * len(limits)) / sum(limits))

    def _prompts(self) -> list[Chunk]:
        limits, budget = self.limits, self.limits.tokens_max
        chunks: list[Chunk] = []
        if self.partial is not None:
            budget -= self._continue(self.partial, budget, chunks)
        if not self.waiting or budget <= 0:
            return chunks
        if self.running_count + sum(chunk.last for chunk in chunks) >= limits.seqs_max:
            # As the loop would find, but without the sum over all rows, which a full batch would pay at every step.
            self.blocked = Blocked.BATCH
            return chunks
        reserved = sum(self._remaining(row) for row in self.decoding) * self._ratio
        room = self.pool.free * limits.block_tokens - reserved
        while self.waiting and budget > 0:
            sequence = self.waiting[0]
            if self.running_count + sum(chunk.last for chunk in chunks) >= limits.seqs_max:
                self.blocked = Blocked.BATCH
                return chunks
            total = sequence.total
            cached, found = self._found(sequence)
            left = total - found.tokens
            if not limits.chunked and budget < left <= limits.tokens_max:
                return chunks
            room -= total + sequence.request.output_tokens_max - sequence.tokens
            alone = not self.running_count and not chunks
            blocks = self._blocks_for(total)
            if (room < 0 and not alone) or blocks > self.pool.free:
                self.blocked = Blocked.KV
                return chunks
            self._take_place(sequence, cached, found, blocks)
            tokens = min(left, budget)
            chunks.append(self._chunk(sequence, tokens))
            budget -= tokens
        return chunks

    def _continue(self, sequence: Sequence, budget: int, chunks: list[Chunk]) -> int:
        """The next chunk of a prompt whose blocks were taken when it was admitted."""
        tokens = min(sequence.total - sequence.computed, budget)
        chunks.append(self._chunk(sequence, tokens))
        return tokens

    def _victim(self) -> Sequence:
        """The row with the fewest tokens of output, of those the one with the longest prompt, is cheapest to redo."""
        return min(
            self.decoding,
            key=lambda row: (-self._remaining(row) + row.request.output_tokens_max, -row.request.prompt_tokens),
        )

    def _give_way(self) -> None:
        self._preempt(self._victim(), to_front=False)


LAYOUT = Layout(batching=PrefillFirstBatching, tokenizer_thread=False, detokenizer_process=True)
