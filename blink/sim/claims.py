"""Claimed requests: their places in the batch, their KV blocks, their KV tokens."""

from __future__ import annotations

from blink.common import policy
from blink.common.policy import Pending
from blink.common.request import Request
from blink.common.results import SchedulerCounters
from blink.common.ring import Ring
from blink.common.states import SlotState
from blink.sim.batch import Batch, Live
from blink.sim.gpu_settings import GpuSettings
from blink.sim.reuse import Reuse


class Claims:
    """Everything that holds a place. `recorded`: batches carry columns for a trace."""

    def __init__(
        self,
        ring: Ring,
        requests: dict[int, Request],
        settings: GpuSettings,
        counters: SchedulerCounters,
        *,
        recorded: bool,
    ) -> None:
        self._ring, self._requests, self._counters, self._recorded = ring, requests, counters, recorded
        self._limits = settings.limits
        self.reuse: Reuse | None = settings.options.reuse if settings.options else None
        self.running: dict[int, Live] = {}  # by slot: they decode
        self.partial: list[Live] = []  # part of the prompt is still to be computed
        self.batch = Batch.of({}, recorded=False)
        self.kv_tokens = 0  # of what decodes
        self.used_blocks = 0
        self._free_blocks = list(range(settings.kv_block_count - 1, -1, -1))

    @property
    def free_block_count(self) -> int:
        """KV blocks that nobody has reserved."""
        return len(self._free_blocks)

    def all(self) -> list[Live]:
        """Everything that holds a place."""
        return [*self.running.values(), *self.partial]

    def find(self, slot: int) -> Live | None:
        """The request that holds a place and has that slot."""
        return self.running.get(slot) or next((live for live in self.partial if live.slot == slot), None)

    def claim(self, prompt: Pending, now_ns: int) -> Live:
        """Take the slot of a prompt by compare and swap, and the KV blocks of all its tokens."""
        slot, epoch = prompt.slot, self._ring.slot_epoch(prompt.slot)
        word = self._ring.word(slot)
        if not self._ring.compare_and_swap(slot, word, SlotState.PREFILL_PROCESSING):
            raise RuntimeError(f"slot {slot} changed between scan and claim")
        descriptor = self._ring.descriptor(slot)
        request = self._requests[descriptor.request_id]
        need = policy.kv_blocks_needed(prompt.prompt_tokens, prompt.output_tokens_max, self._limits.block_tokens)
        blocks = policy.take_blocks(self._free_blocks, need)
        ends = (request.eos_at, descriptor.output_tokens_max, descriptor.output_capacity)
        end_count = policy.end_count(*ends)
        request.claimed_ns, request.kv_block_count = now_ns, need
        self.used_blocks += need
        self._counters.kv_blocks_max = max(self._counters.kv_blocks_max, self.used_blocks)
        live = Live(
            request, prompt, slot, descriptor.generation, epoch, blocks, end_count,
            policy.end_status(end_count, *ends), now_ns,
        )  # fmt: skip
        if self.reuse:
            self._find_prefix(live, self.reuse)
        return live

    def _find_prefix(self, live: Live, reuse: Reuse) -> None:
        """What its prompt finds; its own blocks take the place of what other prompts have left in free ones."""
        found = reuse.find(live.request)
        reuse.took(live.request, found)
        live.computed, live.load_ns = found.tokens, found.load_ns
        self._fit(reuse)

    def _fit(self, reuse: Reuse) -> None:
        reuse.fit(len(self._free_blocks) * self._limits.block_tokens)

    def prefilled(self, live: Live, decode_step: int) -> None:
        """Its first token is there: after `decode_step` decode steps it joins the batch at the next `rebuild`."""
        if self.reuse:
            self.reuse.keep(live.request)
            self._fit(self.reuse)
        self.running[live.slot] = live
        self.kv_tokens += live.prompt.prompt_tokens + 1
        live.end_step = decode_step + live.end_count - 1
        live.kv_base = live.prompt.prompt_tokens + 1 - decode_step

    def given_up(self, live: Live) -> None:
        """Its prefill never ends: it counts as running until it is released."""
        self.running[live.slot] = live
        self.kv_tokens += live.prompt.prompt_tokens

    def release(self, live: Live, token_count: int) -> None:
        """A claimed request has ended with that many tokens: its place, its blocks, its KV tokens."""
        if self.running.pop(live.slot, None) is not None:
            self.kv_tokens -= live.prompt.prompt_tokens + token_count
        else:
            self.partial.remove(live)  # its tokens were not counted yet
        policy.return_blocks(self._free_blocks, live.blocks)
        self.used_blocks -= len(live.blocks)

    def rebuild(self) -> None:
        """The batch after its set of sequences has changed."""
        self.batch = Batch.of(self.running, recorded=self._recorded)
