"""Sampling in plain PyTorch: the reference of the kernel, and what an engine on a CPU runs.

A row that has fewer tokens than its `min_tokens` cannot draw the end token, whose logit becomes minus infinity first.
Temperature 0 takes the highest logit, the lowest token among equals. Otherwise logits are divided by the temperature;
top-k keeps the k highest; top-p keeps, of those, the most probable ones that together reach p of their probability.
Tokens that tie with the last kept one are kept too, so the result does not depend on an order of sorting. Of the kept
tokens one is drawn by an exponential race: the highest of logit / temperature - log(E), with E exponential. It is
token i with the softmax probability of i, and the race needs no sum over the vocabulary, so rounding cannot make it
depend on how sums are split.

E comes from Philox, keyed by (seed, sample_index) and counted by token: a request that is served again, in any batch,
draws the same numbers.
"""

from __future__ import annotations

from typing import Any

from blink.hw.engines.buffers import StepTensors
from blink.hw.engines.lazy_torch import need_torch
from blink.hw.engines.philox import LOW, MULTIPLIERS, ROUNDS, WEYL

Tensor = Any


def sample(logits: Tensor, buffers: StepTensors, batch: int, eos_token: int | None = None) -> None:
    """Write `sampled` for `batch` rows of float32 logits (batch, vocabulary). `eos_token` None: the model has none."""
    torch = need_torch()
    if eos_token is not None:
        short = (buffers.sample_index[:batch].long() & LOW) < (buffers.min_tokens[:batch].long() & LOW)
        ends = torch.arange(logits.shape[-1], device=logits.device) == eos_token
        logits = logits.masked_fill(short[:, None] & ends, float("-inf"))
    temperature = buffers.temperature[:batch, None]
    drawn = temperature > 0
    top = logits.max(-1, keepdim=True).values
    scaled = (logits - top) / torch.where(drawn, temperature, 1.0)
    kept = scaled >= thresholds(scaled, buffers.top_k[:batch], buffers.top_p[:batch])
    key = (buffers.seed[:batch], buffers.sample_index[:batch])
    score = torch.where(kept, scaled - waits(*key, logits.shape[-1]).log(), float("-inf"))
    buffers.sampled[:batch] = torch.where(drawn[:, 0], score.argmax(-1), logits.argmax(-1)).int()


def thresholds(scaled: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Lowest kept value a row, (batch, 1), of scaled logits (batch, vocabulary)."""
    torch, size = need_torch(), scaled.shape[-1]
    ordered = scaled.sort(-1, descending=True).values
    k = torch.where((top_k > 0) & (top_k < size), top_k, size).long()[:, None]
    floor = ordered.gather(1, k - 1)
    weight = torch.where(ordered >= floor, ordered.exp(), 0.0)
    reached = weight.cumsum(-1) >= top_p[:, None] * weight.sum(-1, keepdim=True)
    # The first place where enough is reached; rounding may leave it nowhere, then all that top-k keeps stays.
    enough = torch.where(reached.any(-1), reached.int().argmax(-1), size - 1)[:, None]
    return torch.where(top_p[:, None] < 1, torch.maximum(ordered.gather(1, enough), floor), floor)


def waits(seed: Tensor, sample_index: Tensor, vocabulary_count: int) -> Tensor:
    """Exponential variates, (batch, vocabulary) float32, of rows with these int32 seeds and sample indices."""
    torch = need_torch()
    token = torch.arange(vocabulary_count, device=seed.device)
    word = _philox_word(token[None, :], seed.long()[:, None] & LOW, sample_index.long()[:, None] & LOW)
    uniform = (word.double() + 0.5) / 2**32
    return (-torch.log1p(-uniform)).float()


def _philox_word(token: Tensor, k0: Tensor, k1: Tensor) -> Tensor:
    """philox.token_words in int64: products wrap, and a mask after the shift takes their signs away."""
    torch = need_torch()
    c0, c1, c2, c3 = token, torch.zeros_like(token), torch.zeros_like(token), torch.zeros_like(token)
    for _ in range(ROUNDS):
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((second >> 32) & LOW) ^ c1 ^ k0, second & LOW
        c2, c3 = ((first >> 32) & LOW) ^ c3 ^ k1, first & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return c0
