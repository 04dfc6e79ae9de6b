"""Keys and values that prompts need not compute: in free KV blocks, in host memory, or sent by another replica.

Free KV blocks keep what they held until somebody takes them: whole hashed blocks of prompts, the least recently used
go first, of one prompt the last first. What is evicted moves to the host's memory if there is room, and is read back
over PCIe when a prompt asks for it. A prompt always computes its last token: it yields the first of the output.

Sequences that run do not share blocks: each holds all of its own, as one without a cache would. That is on the safe
side for memory; what is gained is the time of the prefill.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from blink.common.request import Request
from blink.workload.prefixes import Prefixes


@dataclass(frozen=True, slots=True)
class Found:
    """Tokens of a prompt that are there already, and how long it takes to get them where they are needed."""

    tokens: int
    load_ns: int = 0
    loaded_tokens: int = 0


class Reuse:
    """What one replica has of prompts that came before. Without `prefixes` only what is sent to it counts."""

    def __init__(self, prefixes: Prefixes | None, host_tokens: int = 0, load_ns_per_token: float = 0.0) -> None:
        self._prefixes, self._load_ns = prefixes, load_ns_per_token
        self._size = prefixes.block_tokens if prefixes else 0
        self._gpu: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._host: OrderedDict[int, None] = OrderedDict()
        self._host_max = host_tokens // self._size if self._size else 0
        self.asked_tokens = self.found_tokens = self.loaded_tokens = 0

    def find(self, request: Request) -> Found:
        """What a prompt finds now: its blocks from the first on, until one is nowhere."""
        most = request.prompt_tokens - 1
        ready = min(request.kv_ready_tokens, most)
        here, away = self._leading(request)
        tokens = min((here + away) * self._size, most)
        if ready >= tokens:
            return Found(ready)
        loaded = min(away * self._size, tokens)
        return Found(tokens, round(loaded * self._load_ns), loaded)

    def took(self, request: Request, found: Found) -> None:
        """A prompt was begun with what it found."""
        self.asked_tokens += request.prompt_tokens
        self.found_tokens += found.tokens
        self.loaded_tokens += found.loaded_tokens

    def _leading(self, request: Request) -> tuple[int, int]:
        here = away = 0
        for block in self._blocks(request):
            if block in self._gpu:
                here += 1
            elif block in self._host:
                away += 1
            else:
                break
        return here, away

    def _blocks(self, request: Request) -> tuple[int, ...]:
        return self._prefixes.blocks[request.request_id] if self._prefixes else ()

    def keep(self, request: Request) -> None:
        """A prompt is computed: its blocks are in the GPU's memory, the first the most recently used."""
        for block in reversed(self._blocks(request)):
            self._host.pop(block, None)
            self._gpu[block] = None
            self._gpu.move_to_end(block)

    def fit(self, free_tokens: int) -> None:
        """Free KV blocks hold so many tokens: what is more is evicted, to the host's memory as far as it goes."""
        while self._gpu and len(self._gpu) * self._size > free_tokens:
            block, _ = self._gpu.popitem(last=False)
            if self._host_max:
                self._host[block] = None
                self._host.move_to_end(block)
                if len(self._host) > self._host_max:
                    self._host.popitem(last=False)

    def counters(self) -> dict[str, int]:
        """Tokens of prompts, of these found, of these from the host's memory."""
        return {
            "prefix_asked_tokens": self.asked_tokens,
            "prefix_found_tokens": self.found_tokens,
            "prefix_loaded_tokens": self.loaded_tokens,
        }
